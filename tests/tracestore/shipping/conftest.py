"""A trace file, and an empty shared store on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from callboard.tracestore import PostgresStore, ShippingOptions, TraceShipper, TraceStore
from tests.support.postgres_server import PostgresServer, why_not


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
    """The path of a trace file that does not exist yet."""
    return tmp_path / "trace.db"


@pytest.fixture
async def local(trace: Path) -> AsyncIterator[TraceStore]:
    """The open trace file."""
    async with TraceStore(trace) as store:
        yield store


async def ship(trace: Path, shared: str, batch: int = 2000) -> None:
    """Send all events of a file."""
    shipper = TraceShipper(trace, shared, options=ShippingOptions(batch_events=batch))
    try:
        await shipper.ship()
    finally:
        await shipper.close()


def lose_marks(trace: Path) -> None:
    """Remove the marks, so that the shared store takes the file for another one."""
    for mark in trace.parent.glob(f"{trace.name}.shipped-*"):
        mark.unlink()
