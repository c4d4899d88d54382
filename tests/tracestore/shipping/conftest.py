"""A trace file, and an empty shared store on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.postgres_server import PostgresServer, why_not
from callboard.tracestore import PostgresStore, TraceStore


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of an empty shared store."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.clean_database(server.template("shared", _migrate)) as dsn:
        yield dsn


def _migrate(dsn: str) -> None:
    async def migrate() -> None:
        with TemporaryDirectory() as folder:
            async with PostgresStore(dsn, path=Path(folder) / "trace"):
                pass

    asyncio.run(migrate())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The path of a trace file, which is not there yet."""
    return tmp_path / "trace.db"


@pytest.fixture
async def local(trace: Path) -> AsyncIterator[TraceStore]:
    """The open trace file."""
    async with TraceStore(trace) as store:
        yield store
