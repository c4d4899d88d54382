"""The tests of the interface `Store`. Each runs on a trace file and on a trace in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.tracestore import PostgresStore, Store, TraceStore
from tests.support.postgres_server import PostgresServer, why_not

KINDS = ("sqlite", "postgres")


class Place:
    """A place for one trace, which is empty at first, and for the stores that open it."""

    def __init__(self, kind: str, folder: Path, dsn: str | None) -> None:
        self.kind = kind
        self.folder = folder
        self.dsn = dsn

    def store(self, *, clock: Clock = SYSTEM_CLOCK, readonly: bool = False) -> Store:
        """Another store on the trace, which is not yet open."""
        if self.dsn is None:
            return TraceStore(self.folder / "trace.db", clock=clock, readonly=readonly)
        return PostgresStore(self.dsn, path=self.folder / "trace", clock=clock, readonly=readonly)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The place of a test's trace, of either kind."""
    with ExitStack() as opened:
        dsn = None
        if request.param == "postgres":
            if (reason := why_not()) is not None:
                pytest.skip(reason)
            server: PostgresServer = request.getfixturevalue("postgres_server")
            dsn = opened.enter_context(server.clean_database(server.template("trace", _migrate)))
        yield Place(request.param, tmp_path, dsn)


def _migrate(dsn: str) -> None:
    async def migrate() -> None:
        async with PostgresStore(dsn, path="/tmp/nowhere/trace"):
            pass

    asyncio.run(migrate())


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """An open store on an empty trace."""
    async with place.store() as opened:
        yield opened
