"""A server that takes connections and answers nothing: whoever waits for it is let go in time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import anyio
import pytest

from callboard.bus.errors import StoreUnavailable
from callboard.tracestore import PostgresStore
from callboard.tracestore.postgres import database as database_module
from callboard.tracestore.postgres import database as link
from callboard.tracestore.postgres.database import Database
from callboard.tracestore.postgres.statements import Statements
from callboard.tracestore.sql.connection import Patience, bounded
from tests.support.postgres_server import StartedServer
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio

SOON = Patience(work=0.3, cancelled=0.3)


def one(statements: Statements) -> int:
    ((found,),) = statements.run("SELECT 1")
    return int(found)


async def test_work_that_is_not_answered_fails_in_time_and_is_not_tried_again_at_once(
    server: StartedServer, dsn: str
) -> None:
    database = Database(dsn, single=True, patience=SOON)
    await database.open()
    try:
        with server.hanging():
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="does not answer"):
                    await database.write(one)
    finally:
        await database.close()


async def test_it_works_again_when_the_server_does(
    server: StartedServer, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_ASKED_AGAIN", 0.0)
    database = Database(dsn, single=True)
    await database.open()
    try:
        with server.hanging(), pytest.raises(StoreUnavailable, match="does not answer"):
            await database.write(one, patience=SOON)
        assert await database.write(one) == 1
    finally:
        await database.close()


async def test_whoever_is_cancelled_does_not_wait_for_it(server: StartedServer, dsn: str) -> None:
    database = Database(dsn, patience=Patience(cancelled=0.3))
    await database.open()
    try:
        with server.hanging():
            began = time.monotonic()
            with anyio.move_on_after(0.1) as scope:
                await database.look(one)
            assert scope.cancelled_caught
            assert time.monotonic() - began < 4
        assert await database.look(one) == 1
    finally:
        await database.close()


async def test_closing_does_not_wait_for_it(
    server: StartedServer, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_CLOSE_SECONDS", 0.3)
    store = PostgresStore(dsn, path=tmp_path / "trace")
    await store.open()
    await store.write([Maker("run_a").started("req_1")])
    with server.hanging():
        reading = asyncio.ensure_future(store.calls())
        await asyncio.sleep(0)
        with anyio.fail_after(30):
            await store.close()
        assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], StoreUnavailable)
    async with PostgresStore(dsn, path=tmp_path / "trace") as again:
        assert [call.request_id for call in await again.calls()] == ["req_1"]


async def test_work_without_a_limit_is_never_cut() -> None:
    """Nor is work that has ended."""
    cut: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await bounded(work(), Patience(), lambda: cut.append("now")) == "done"
    assert await bounded(work(), Patience(work=30.0), lambda: cut.append("now")) == "done"
    assert cut == []
