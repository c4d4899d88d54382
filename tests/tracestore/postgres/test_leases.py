"""Leases: a run lives as long as its process says so, by the database's clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from callboard.bus.events.calls import LlmCallFailed
from callboard.tracestore import PostgresStore, PriceTable
from callboard.tracestore.sql.batches import PROCESS_LOST
from callboard.tracestore.writing.spill import SpillFile, spill_path
from tests.support.postgres_server import StartedServer
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio

QUICK = 0.4
"""The length of leases in these tests, in seconds."""


def store(dsn: str, folder: Path, lease_seconds: float = QUICK) -> PostgresStore:
    return PostgresStore(dsn, path=folder / "trace", lease_seconds=lease_seconds)


async def dead(dsn: str, folder: Path, make: Maker, *, lease_seconds: float = QUICK) -> None:
    """Leave a run with a call under way, as a process does that is killed."""
    dying = store(dsn, folder, lease_seconds)
    await dying.open()
    dying.hold_run(make.run_id)
    await dying.write([make.started(tags={"a": "b"}, estimated_input_tokens=7)])
    dying._living._held.clear()
    await dying.close()


async def test_a_run_is_lost_when_its_lease_is_over(dsn: str, tmp_path: Path, make: Maker) -> None:
    """Not before. Its calls get an end in its own numbers, and the run says how it ended."""
    await dead(dsn, tmp_path, make)
    async with store(dsn, tmp_path / "early") as early:
        assert await early.close_lost_runs() == []
    await asyncio.sleep(QUICK * 1.2)
    async with store(dsn, tmp_path / "other") as other:
        assert await other.close_lost_runs(PriceTable.default()) == [make.run_id]
        assert await other.close_lost_runs() == []
        (call,) = await other.calls()
        assert (call.status, call.error_class, call.tags) == ("failed", PROCESS_LOST, {"a": "b"})
        *_, end = await other.events()
        assert isinstance(end.data, LlmCallFailed)
        assert (end.seq, end.run_id) == (2, make.run_id)
        assert (await other.sql("SELECT run_id, ending FROM runs")).rows == ((make.run_id, PROCESS_LOST),)


async def test_a_run_that_lives_is_left_alone(dsn: str, tmp_path: Path, make: Maker) -> None:
    """Its lease is renewed for as long as its store is open; when that closes, the run has ended in order."""
    async with store(dsn, tmp_path) as living, store(dsn, tmp_path / "other") as other:
        living.hold_run(make.run_id)
        await living.write([make.started()])
        for _ in range(4):
            await asyncio.sleep(QUICK / 2)
            assert await other.close_lost_runs() == []
        await living.write([make.completed()])
        await living.close()
        assert await other.close_lost_runs() == []
        assert (await other.sql("SELECT ending FROM runs")).rows == (("closed",),)
        assert (await other.sql("SELECT count(*) FROM run_leases")).rows == ((0,),)


async def test_whoever_writes_looks_for_lost_runs_again(dsn: str, tmp_path: Path, make: Maker) -> None:
    """A process that starts before the dead one's lease is over ends its run later."""
    await dead(dsn, tmp_path, make)
    async with store(dsn, tmp_path / "other") as other:
        assert await other.close_lost_runs() == []
        with anyio.fail_after(10):
            while [call.status for call in await other.calls()] != ["failed"]:  # noqa: ASYNC110 - no event tells it
                await anyio.sleep(0.05)


async def test_nobody_ends_a_run_whose_spilled_events_are_on_this_machine(
    dsn: str, tmp_path: Path, make: Maker
) -> None:
    """They are written first."""
    await dead(dsn, tmp_path, make)
    spill = SpillFile(spill_path(tmp_path / "trace", make.run_id), 1 << 20)
    assert spill.append([make.completed()]) == 1
    spill.close()
    await asyncio.sleep(QUICK * 1.2)
    same = store(dsn, tmp_path)
    await same.open()  # as an engine does, whose writer takes the events in
    try:
        assert await same.close_lost_runs() == []
    finally:
        await same.close()


async def test_a_process_that_was_cut_off_takes_its_run_up_again(dsn: str, tmp_path: Path, make: Maker) -> None:
    """Its calls were ended meanwhile; they end as they did, and the run is open."""
    async with store(dsn, tmp_path) as cut_off, store(dsn, tmp_path / "other") as other:
        cut_off.hold_run(make.run_id)
        await cut_off.write([make.started()])
        await other._database.write(lambda statements: statements.run("DELETE FROM run_leases"))
        assert await other.close_lost_runs() == [make.run_id]
        await asyncio.sleep(QUICK)
        await cut_off.write([make.completed()])
        (call,) = await other.calls()
        assert call.status == "completed"
        assert (await other.sql("SELECT ended_us, ending FROM runs")).rows == ((None, None),)
        await asyncio.sleep(QUICK)
        assert await other.close_lost_runs() == []


async def test_no_lease_is_over_right_after_the_server_has_started(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker
) -> None:
    """Who lives could not renew it while the server was down."""
    await dead(dsn, tmp_path, make, lease_seconds=3)
    server.stop()
    await asyncio.sleep(0.2)
    server.start()
    async with store(dsn, tmp_path / "other", 3) as other:
        await other._database.write(
            lambda statements: statements.run("UPDATE run_leases SET lease_until = now() - interval '1 hour'")
        )
        assert await other.close_lost_runs() == []


async def test_a_run_that_was_shipped_is_not_ended_here(dsn: str, tmp_path: Path, make: Maker) -> None:
    """It ends where it comes from."""
    async with store(dsn, tmp_path) as here:
        await here.write([make.started()])
        await here._database.write(lambda statements: statements.run("UPDATE runs SET shipped_from = 'host'"))
        assert await here.close_lost_runs() == []
