"""A PostgreSQL server that stops, hangs, and loses the locks of a trace."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events.calls import LlmCallFailed
from callboard.engine import Engine
from callboard.tracestore import PostgresStore, PriceTable
from callboard.tracestore.postgres import database as link
from callboard.tracestore.postgres.database import Database
from callboard.tracestore.postgres.statements import Statements
from callboard.tracestore.sql.batches import PROCESS_LOST
from callboard.tracestore.sql.connection import Patience, bounded
from callboard.tracestore.writing.overflow import SpillFile, leftovers, spill_path
from tests.support.depth import is_quick

from ...support.engines import registry
from ...support.postgres_server import StartedServer
from ...support.programs import started
from ...support.scripted import Say
from ..trace_making import Maker
from ..writer_rig import until

# A server that stops, starts again, or cuts connections: calls continue, and no event is lost or stored twice.


async def asked(engine: Engine, times: int) -> None:
    """Run calls one after the other. Each must get its reply."""
    for _ in range(times):
        message = await engine.generate("s:m", "Hello?")
        assert message.text == "Hello."


async def test_calls_continue_while_the_server_is_down(server: StartedServer, dsn: str, tmp_path: Path) -> None:
    """Events wait in memory and in files. They are written in order after the server is up."""
    store = PostgresStore(dsn, path=tmp_path / "trace")
    async with Engine(models=registry(*[Say("Hello.")] * 1000), store=store, capture_content=True) as engine:
        await asked(engine, 3)
        await engine.flush()
        server.stop()
        try:
            await asked(engine, 5)
            with pytest.raises(StoreError):
                await engine.flush()
        finally:
            server.start()
        await asked(engine, 2)
        await engine.flush()
        run_id = engine.bus.run_id
        committed = await store.committed_seq(run_id)  # events about the store itself may still follow
        calls, events = await store.calls(), await store.events(limit=None)
        assert [call.status for call in calls] == ["completed"] * 10
        assert sorted(event.seq for event in events) == sorted({event.seq for event in events})
        assert committed in {event.seq for event in events}
    async with PostgresStore(dsn, path=tmp_path / "trace") as again:
        assert {call.status for call in await again.calls()} == {"completed"}
        assert (await again.sql("SELECT run_id, ending FROM runs")).rows == ((run_id, "closed"),)
        assert leftovers(again.path) == []


async def test_engines_start_while_the_server_is_down(server: StartedServer, dsn: str, tmp_path: Path) -> None:
    """The first successful write creates the tables. The next engine also writes the spilled events."""
    first, second = (PostgresStore(dsn, path=tmp_path / "trace") for _ in range(2))
    server.stop()
    try:
        async with Engine(models=registry(*[Say("Hello.")] * 1000), store=first) as engine:
            await asked(engine, 4)
        assert leftovers(first.path)
        async with Engine(models=registry(*[Say("Hello.")] * 1000), store=second) as engine:
            await asked(engine, 2)
            server.start()
            await engine.flush()
            await until(lambda: not leftovers(first.path))
            assert [call.status for call in await second.calls()] == ["completed"] * 6
    finally:
        if server.process_id is None:
            server.start()


_PROGRAM = """
import asyncio, sys
from callboard import Engine
from tests.support.engines import registry
from tests.support.scripted import Say
from callboard.tracestore import PostgresStore

async def main() -> None:
    store = PostgresStore(sys.argv[1], path=sys.argv[2], lease_seconds=1.0)
    engine = Engine(models=registry(*[Say("Hello.")] * 1000), store=store)
    async with engine:
        while True:
            await engine.generate("s:m", "Hello?")
            print("answered", flush=True)

asyncio.run(main())
"""


async def test_a_killed_process_loses_no_reply(dsn: str, tmp_path: Path) -> None:
    """The events of a delivered reply are committed, or in the journal. The next process on this machine adopts
    the journal.
    """
    async with PostgresStore(dsn, path=tmp_path / "trace"):
        pass
    with started(_PROGRAM, dsn, tmp_path / "trace") as program:
        assert program.stdout is not None
        answers = 0
        for _ in range(20):
            answers += await asyncio.to_thread(program.stdout.readline) == "answered\n"
        program.send_signal(signal.SIGKILL)
        rest = await asyncio.to_thread(program.stdout.read)
        answers += rest.count("answered\n")
    store = PostgresStore(dsn, path=tmp_path / "trace", lease_seconds=1.0)
    async with Engine(models=registry(*[Say("Hello.")] * 1000), store=store) as engine:
        await asked(engine, 1)
        await engine.flush()
        with anyio.fail_after(20):
            while leftovers(store.path) or "started" in await statuses(store):  # noqa: ASYNC110 - no event tells it
                await anyio.sleep(0.1)
        assert (await statuses(store)).count("completed") >= answers + 1


async def statuses(store: PostgresStore) -> list[str]:
    """The status of each call in the trace."""
    return [call.status for call in await store.calls(limit=None)]


async def test_a_cut_transaction_is_rolled_back(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker
) -> None:
    """The write fails with StoreUnavailable, and the next batch uses a new connection."""
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        await store.write([make.started("req_1")])

        def cut(statements: Statements) -> None:
            statements.run("UPDATE calls SET status = 'failed'")
            server.cut_connections()
            statements.run("SELECT 1")

        with pytest.raises(StoreUnavailable):
            await store._database.write(cut)
        assert [call.status for call in await store.calls()] == ["started"]
        server.cut_connections()
        await store.write([make.completed("req_1")])
        server.cut_connections()
        assert [call.status for call in await store.calls()] == ["completed"]


@pytest.mark.more("more cuts")
async def test_cut_connections_lose_no_event(server: StartedServer, dsn: str, tmp_path: Path, make: Maker) -> None:
    """If a writer repeats each batch until it succeeds, every event is stored once."""
    chance = random.Random(16)
    written = [make.started(f"req_{number}") for number in range(100 if is_quick() else 300)]

    async def cutter() -> None:
        for _ in range(10 if is_quick() else 60):  # otherwise, on a slow machine, each new connection would be cut
            await anyio.sleep(chance.random() / 20)
            await asyncio.to_thread(server.cut_connections)

    async with PostgresStore(dsn, path=tmp_path / "trace") as store, anyio.create_task_group() as group:
        group.start_soon(cutter)
        for begin in range(0, len(written), 5):
            while True:
                try:
                    await store.write(written[begin : begin + 5])
                    break
                except StoreUnavailable:
                    await anyio.sleep(0.001)
    async with PostgresStore.open_readonly(dsn) as reader:
        assert [event.seq for event in await reader.events(limit=None)] == [event.seq for event in written]
        assert len(await reader.calls(limit=None)) == len(written)


async def test_a_write_that_waits_too_long_can_be_repeated(dsn: str, tmp_path: Path, make: Maker) -> None:
    """If another writer's transaction takes too long, the write fails with StoreUnavailable and can be
    repeated.
    """
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        await store._database.alone(lambda connection: connection.execute("SET lock_timeout = 50"))
        entered = anyio.Event()
        loop = asyncio.get_running_loop()

        def slow(statements: Statements) -> None:
            loop.call_soon_threadsafe(entered.set)
            statements.run("SELECT pg_sleep(0.5)")

        async with opened(dsn) as other, anyio.create_task_group() as group:
            group.start_soon(other.write, slow)
            await entered.wait()
            with pytest.raises(StoreUnavailable):
                await store.write([make.started()])
        await store.write([make.started()])


async def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    store = PostgresStore("postgresql://me:geheim@127.0.0.1:1/trace", path=tmp_path / "trace")
    with pytest.raises(StoreUnavailable) as refused:
        await store.open()
    with pytest.raises(StoreError) as no_dsn:
        PostgresStore("postgresql://me:geheim@[::1/trace?no=such", path=tmp_path / "trace")
    assert "geheim" not in f"{refused.value} {no_dsn.value} {store.name}"
    assert isinstance(refused.value.__cause__, psycopg.Error)


async def test_only_the_first_connection_waits_for_a_server_that_does_not_reply(tmp_path: Path) -> None:
    """The first connection fails after its time limit. For a while after that, others fail immediately."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        database = Database(f"postgresql://me@127.0.0.1:{port}/trace?connect_timeout=2")
        with pytest.raises(StoreUnavailable):
            await database.open()
        database.is_open = True
        begun = time.monotonic()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await database.read("SELECT 1")
            with pytest.raises(StoreUnavailable):
                await database.write(lambda statements: statements.run("SELECT 1"))
        assert time.monotonic() - begun < 10  # Ten waits would take 20 seconds.
        await database.close()


async def test_a_primary_that_became_a_standby_is_left(dsn: str, tmp_path: Path, make: Maker) -> None:
    async with PostgresStore(dsn, path=tmp_path / "trace") as store:
        await store._database.alone(
            lambda connection: connection.execute("SET default_transaction_read_only = on")
        )
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.write([make.started()])
        await store.write([make.started()])
        assert len(await store.calls()) == 1


# A server that accepts connections and never replies: each caller gets an error in time.

SOON = Patience(work=0.3, cancelled=0.3)


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncIterator[Database]:
    database = Database(dsn, **options)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def one(statements: Statements) -> int:
    ((found,),) = statements.run("SELECT 1")
    return int(found)


async def test_unanswered_work_fails_in_time_and_is_not_tried_again_immediately(
    server: StartedServer, dsn: str
) -> None:
    async with opened(dsn, single=True, patience=SOON) as database:
        with server.hanging():
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="does not answer"):
                    await database.write(one)
        database._writer._reach._ask_at = 0.0  # the wait is over
        assert await database.write(one, patience=Patience()) == 1


async def test_a_cancelled_caller_does_not_wait_for_the_server(server: StartedServer, dsn: str) -> None:
    async with opened(dsn, patience=Patience(cancelled=0.3)) as database:
        with server.hanging():
            began = time.monotonic()
            with anyio.move_on_after(0.1) as scope:
                await database.look(one)
            assert scope.cancelled_caught
            assert time.monotonic() - began < 4
        assert await database.look(one) == 1


async def test_closing_waits_for_no_server(
    server: StartedServer, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_CLOSE_SECONDS", 0.3)
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
    cut: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await bounded(work(), Patience(), lambda: cut.append("now")) == "done"
    assert await bounded(work(), Patience(work=30.0), lambda: cut.append("now")) == "done"
    assert cut == []


# Leases: a run is alive while its process renews its lease, by the database's clock.

QUICK = 0.4
HOUR = 3600.0
"""Lengths of leases in these tests, in seconds. A test ends a lease of an hour itself."""


def store(dsn: str, folder: Path, lease_seconds: float = QUICK) -> PostgresStore:
    return PostgresStore(dsn, path=folder / "trace", lease_seconds=lease_seconds)


async def dead(dsn: str, folder: Path, make: Maker, *, lease_seconds: float = QUICK) -> None:
    """Leave a run with a call in progress, as a killed process does."""
    dying = store(dsn, folder, lease_seconds)
    await dying.open()
    dying.hold_run(make.run_id)
    await dying.write([make.started(tags={"a": "b"}, estimated_input_tokens=7)])
    dying._living._runs.clear()
    await dying.close()


async def end_leases(store: PostgresStore) -> None:
    """Set the end of all leases into the past."""
    await store._database.write(
        lambda statements: statements.run("UPDATE run_leases SET lease_until = now() - interval '1 hour'")
    )


async def test_a_run_is_lost_when_its_lease_is_over(dsn: str, tmp_path: Path, make: Maker) -> None:
    """Before the end of the lease, the run is not lost. Then its call gets an end with the run's next number."""
    await dead(dsn, tmp_path, make, lease_seconds=HOUR)
    async with store(dsn, tmp_path / "other") as other:
        assert await other.close_lost_runs() == []
    async with store(dsn, tmp_path / "other") as other:  # a new one, because the first would also look by itself
        await end_leases(other)
        assert await other.close_lost_runs(PriceTable.default()) == [make.run_id]
        assert await other.close_lost_runs() == []
        (call,) = await other.calls()
        assert (call.status, call.error_class, call.tags) == ("failed", PROCESS_LOST, {"a": "b"})
        *_, end = await other.events()
        assert isinstance(end.data, LlmCallFailed)
        assert (end.seq, end.run_id) == (2, make.run_id)
        assert (await other.sql("SELECT run_id, ending FROM runs")).rows == ((make.run_id, PROCESS_LOST),)


async def test_a_living_run_is_not_ended(dsn: str, tmp_path: Path, make: Maker) -> None:
    """The lease is renewed while the store is open. When the store closes, the run is ended in order."""
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


async def test_a_writing_store_looks_for_lost_runs_again(dsn: str, tmp_path: Path, make: Maker) -> None:
    """A process that starts before the end of the dead run's lease ends the run later."""
    await dead(dsn, tmp_path, make, lease_seconds=HOUR)
    async with store(dsn, tmp_path / "other") as other:
        assert await other.close_lost_runs() == []
        await end_leases(other)
        with anyio.fail_after(10):
            while [call.status for call in await other.calls()] != ["failed"]:  # noqa: ASYNC110 - no event tells it
                await anyio.sleep(0.05)


async def test_a_run_with_spilled_events_here_is_not_ended(dsn: str, tmp_path: Path, make: Maker) -> None:
    await dead(dsn, tmp_path, make)
    spill = SpillFile(spill_path(tmp_path / "trace", make.run_id), 1 << 20)
    assert spill.append([make.completed()]) == 1
    spill.close()
    await asyncio.sleep(QUICK * 1.2)
    same = store(dsn, tmp_path)
    await same.open()  # as an engine does, whose writer then stores the spilled events
    try:
        assert await same.close_lost_runs() == []
    finally:
        await same.close()


async def test_a_process_that_was_cut_off_continues_its_run(dsn: str, tmp_path: Path, make: Maker) -> None:
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


async def test_no_lease_ends_after_the_servers_start(
    server: StartedServer, dsn: str, tmp_path: Path, make: Maker
) -> None:
    """Living processes could not renew their leases while the server was down."""
    await dead(dsn, tmp_path, make, lease_seconds=3)
    server.stop()
    await asyncio.sleep(0.2)
    server.start()
    async with store(dsn, tmp_path / "other", 3) as other:
        await end_leases(other)
        assert await other.close_lost_runs() == []


async def test_a_run_that_was_shipped_is_not_ended_here(dsn: str, tmp_path: Path, make: Maker) -> None:
    async with store(dsn, tmp_path) as here:
        await here.write([make.started()])
        await here._database.write(lambda statements: statements.run("UPDATE runs SET shipped_from = 'host'"))
        assert await here.close_lost_runs() == []
