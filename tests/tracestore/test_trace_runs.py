"""Runs: each is open as long as its process has its lock, and a dead process's run is closed once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import ActorStarted, Bus, LlmCallFailed, StoreError, TraceStore, WriterCore
from callboard.tracestore.codec import encode_line
from callboard.tracestore.sql.batches import PROCESS_LOST
from callboard.tracestore.sqlite import files
from callboard.tracestore.sqlite import schema as migrations
from callboard.tracestore.sqlite.files import run_locks
from callboard.tracestore.writing.overflow import SpillFile, spill_path
from tests.support.present import present
from tests.support.programs import started

from .test_trace_file import integrity
from .test_trace_queries import story, written
from .trace_making import Maker, sql


def runs(path: Path) -> dict[str, str | None]:
    """The ending of each run. None for an open run."""
    return dict(sql(path, "SELECT run_id, ending FROM runs"))


async def start_writer(store: TraceStore, run_id: str = "run_next") -> None:
    """Run a writer until one event is committed, like a new process."""
    bus = Bus(run_id=run_id)
    core = WriterCore.for_bus(store, bus)
    bus.publish(ActorStarted(actor="x"))
    bus.close()
    with anyio.fail_after(20):
        await core.run()


async def test_a_lost_call_is_failed_in_its_own_run(store: TraceStore, make: Maker) -> None:
    """The end is the run's next event at the run's last time, with the ids of the start. Its cost is unknown."""
    ids = {"session_id": "s", "turn_id": "t", "message_id": "m", "caused_by": "c", "tags": {"team": "red"}}
    started = make.started("req_1", attempt=2, **ids)
    last = make(ActorStarted(actor="x"))
    await store.write([started, last])
    await start_writer(store)
    (row,) = await store.calls()
    assert (row.status, row.error_class) == ("failed", PROCESS_LOST)
    assert (row.run_id, row.tags) == ("run_test", {"team": "red"})
    assert (row.finished_us, row.latency_ms, row.retry_count, row.will_retry) == (last.ts_us, 1000, 1, False)
    assert (row.cost.nano_usd, row.cost.reason, row.usage) == (None, PROCESS_LOST, None)
    *_, end = await store.events(run_id="run_test")
    assert isinstance(end.data, LlmCallFailed)
    assert (end.seq, end.ts_us, end.mono_ns) == (last.seq + 1, last.ts_us, last.mono_ns)
    assert [getattr(end, name) for name in ids] == list(ids.values())
    assert (end.request_id, end.attempt) == ("req_1", 2)
    assert await store.committed_seq("run_test") == last.seq + 1
    assert runs(store.path)["run_test"] == PROCESS_LOST


async def test_the_rows_of_a_lost_call_can_be_rebuilt_from_events(tmp_path: Path, make: Maker) -> None:
    async with TraceStore(tmp_path / "trace.db") as store:
        await store.write([make.started(), make.started("req_2"), make.completed("req_2")])
        await start_writer(store)
        events, calls = await store.events(), await store.calls()
    async with TraceStore(tmp_path / "again.db") as again:
        await again.write(events)
        assert await again.calls() == calls


async def test_a_living_run_is_not_ended(tmp_path: Path, make: Maker) -> None:
    """While a store holds the run, another store does not end its calls."""
    path = tmp_path / "trace.db"
    async with TraceStore(path) as living, TraceStore(path) as other:
        living.hold_run("run_test")
        await living.write([make.started()])
        assert await other.close_lost_runs() == []
        assert [row.status for row in await other.calls()] == ["started"]
        await living.write([make.completed()])
    assert runs(path) == {"run_test": "closed"}
    assert run_locks(path) == []


async def test_a_run_has_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second store that would write the same run is refused. The lock is private for any umask.

    If the lock can't be created, the error names the file.
    """
    path, old = tmp_path / "trace.db", os.umask(0)
    try:
        async with TraceStore(path) as one, TraceStore(path) as two:
            one.hold_run("run_x")
            one.hold_run("run_x")
            with pytest.raises(StoreError, match="run_x is already being written"):
                two.hold_run("run_x")
            assert run_locks(path) == ["run_x"]
            assert stat.S_IMODE((tmp_path / "trace.db.run-run_x").stat().st_mode) == 0o600
    finally:
        os.umask(old)
    assert run_locks(path) == []
    with pytest.raises(StoreError, match="nowhere"):
        TraceStore(tmp_path / "nowhere" / "trace.db").hold_run("run_x")


async def test_a_run_with_open_calls_is_only_ended_by_the_next_writer(tmp_path: Path, make: Maker) -> None:
    """Its own store, a reader, and a store that writes something else close without ending it."""
    path = tmp_path / "trace.db"
    async with TraceStore(path) as store:
        store.hold_run("run_test")
        await store.write([make.started()])
    async with TraceStore.open_readonly(path) as reader:
        assert [row.status for row in await reader.calls()] == ["started"]
    async with TraceStore(path) as store:
        await store.use_prices(None)
    assert runs(path) == {"run_test": None}
    async with TraceStore(path) as store:
        assert await store.close_lost_runs() == ["run_test"]
        assert await store.close_lost_runs() == []
        assert len(await store.events()) == 2


async def test_spilled_events_are_written_before_a_run_is_ended(store: TraceStore, make: Maker) -> None:
    """If a call's real end is in a spill file, the call gets that end. Before that, the run stays open."""
    started, completed = make.started(), make.completed()
    await store.write([started])
    spill = SpillFile(spill_path(store.path, "run_test"), 10**6)
    spill.append([completed])
    assert await store.close_lost_runs() == []
    spill.close()
    await start_writer(store)
    (row,) = await store.calls()
    assert row.status == "completed"
    assert runs(store.path)["run_test"] == PROCESS_LOST


async def test_late_events_open_an_ended_run_again(store: TraceStore, make: Maker) -> None:
    """Events of a late spill file are stored. The next start ends the calls that are still open."""
    await store.write([make(ActorStarted(actor="x"))])
    assert await store.close_lost_runs() == ["run_test"]
    path = spill_path(store.path, "run_test")
    path.write_bytes(encode_line(make.started()))
    await start_writer(store)
    assert [(row.status, row.error_class) for row in await store.calls()] == [("failed", PROCESS_LOST)]


async def test_lock_files_without_a_run_are_removed(store: TraceStore, make: Maker) -> None:
    stray = store.path.with_name("trace.db.run-run_stray")
    stray.touch()
    store.hold_run("run_test")
    await store.close_lost_runs()
    assert run_locks(store.path) == ["run_test"]


async def test_a_file_of_version_1_is_kept(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without open calls are over. The others are ended at the next start of a writer."""
    path = tmp_path / "trace.db"
    with contextlib.closing(sqlite3.connect(path)) as file:
        for statement in migrations.MIGRATIONS[0][1]:
            file.execute(statement)
        file.execute("INSERT INTO schema_history VALUES (1, 'initial', 1)")
        file.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        file.execute("PRAGMA user_version = 1")
        file.executescript(
            """
            INSERT INTO runs VALUES (1, 'run_done', 5, 6, 7), (2, 'run_open', 5, 9, 7);
            INSERT INTO events (run, seq, topic, ts_us, mono_ns, data) VALUES (1, 7, 'host.made', 6, 0, '{"x":1}');
            INSERT INTO calls (request_id, attempt, run, ts_us, day, status, provider, model)
            VALUES ('a', 1, 1, 5, 0, 'completed', 'p', 'p:m'), ('b', 1, 2, 5, 0, 'started', 'p', 'p:m');
            """
        )
    async with TraceStore(path) as store:
        assert runs(path) == {"run_done": "unknown", "run_open": None}
        assert await store.close_lost_runs() == ["run_open"]
        calls = await store.calls()
        assert {row.request_id: row.status for row in calls} == {"a": "completed", "b": "failed"}
        assert [(event.run_id, event.seq) for event in await store.events()] == [("run_done", 7), ("run_open", 8)]


@given(cut=st.integers(0, len(story())), starts=st.integers(1, 3))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_death_calls_have_one_end(
    tmp_path_factory: pytest.TempPathFactory, cut: int, starts: int
) -> None:
    """The death may come after any commit, and any number of starts may follow. Each start has exactly one end."""
    path = tmp_path_factory.mktemp("cut") / "trace.db"
    anyio.run(written, path, [[envelope] for envelope in story()[:cut]])

    async def restart() -> None:
        for number in range(starts):
            async with TraceStore(path) as store:
                await start_writer(store, f"run_next_{number}")

    anyio.run(restart)
    assert_sound(path)
    assert sql(path, "SELECT count(*) FROM runs WHERE ended_us IS NULL") == [(0,)]


def assert_sound(path: Path) -> None:
    """Assert that every started attempt has exactly one end as event and as row, and that run numbers have no
    gaps.
    """
    with contextlib.closing(sqlite3.connect(path)) as file:
        ends = file.execute(
            """
            SELECT request_id, attempt, sum(topic = 'llm.call_started'), sum(topic <> 'llm.call_started')
              FROM events WHERE topic GLOB 'llm.*' GROUP BY request_id, attempt
            """
        ).fetchall()
        assert {(started, ended) for *_, started, ended in ends} <= {(1, 1)}
        rows = file.execute("SELECT request_id, attempt FROM calls WHERE status <> 'started'").fetchall()
        assert sorted(rows) == sorted((request, attempt) for request, attempt, *_ in ends)
        for (seqs,) in file.execute(
            "SELECT json_group_array(seq) FROM (SELECT * FROM events ORDER BY run, seq) GROUP BY run"
        ):
            numbers = [int(seq) for seq in seqs.strip("[]").split(",")]
            assert numbers == list(range(1, len(numbers) + 1))


_CALLS_FOR_EVER = """
    import anyio, itertools, sys
    from callboard.bus.bus import Bus
    from tests.tracestore.trace_making import Maker
    from callboard.tracestore import TraceStore, WriterCore, WriterOptions

    async def main():
        async with TraceStore(sys.argv[1]) as store:
            bus = Bus()
            core = WriterCore.for_bus(store, bus, options=WriterOptions(batch_seconds=0.001))
            make = Maker(bus.run_id)
            async with anyio.create_task_group() as group:
                group.start_soon(core.run)
                print("calling", flush=True)
                for number in itertools.count():
                    request = f"{bus.run_id}-{number}"
                    bus.publish(make.started(request).data, request_id=request, attempt=1)
                    if number >= 10:
                        ended = f"{bus.run_id}-{number - 10}"
                        bus.publish(make.completed(ended).data, request_id=ended, attempt=1)
                    await anyio.sleep(0.0005)

    anyio.run(main)
"""

ROUNDS = int(os.environ.get("CALLBOARD_KILL_ROUNDS", "4"))


@pytest.fixture
def killed() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.deep("many kills")
async def test_processes_are_killed_during_calls(tmp_path: Path, killed: list[subprocess.Popen[str]]) -> None:
    """One of two writers is killed in each round. Each start ends the calls of the dead, never those of the
    living.
    """
    path, chance = tmp_path / "trace.db", random.Random(7)
    for _ in range(ROUNDS):
        for process in killed[-1:]:  # the other process continues in the next round
            process.kill()
            process.communicate()
        del killed[-1:]
        while len(killed) < 2:
            process = started(_CALLS_FOR_EVER, path)
            killed.insert(0, process)
            assert await anyio.to_thread.run_sync(present(process.stdout).readline) == "calling\n"
        await anyio.sleep(chance.uniform(0.0, 0.15))
    for process in killed:
        process.kill()
        process.communicate()
    async with TraceStore(path) as store:
        await start_writer(store)
        assert await integrity(store) == "ok"
        lost = [row for row in await store.calls(limit=None) if row.error_class == PROCESS_LOST]
    assert lost
    assert set(runs(path).values()) == {PROCESS_LOST, "closed"}
    assert run_locks(path) == []
    assert_sound(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of every fork beside threads")
async def test_a_forked_child_does_not_hold_its_parents_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOCK_TIMEOUT_SECONDS", 0.5)
    path = tmp_path / "trace.db"
    process = started(_FORKS_AND_IS_KILLED, path)
    child = int(present(process.stdout).readline())
    try:
        process.wait(20)
        async with TraceStore(path) as store:
            await start_writer(store)
            ends = {row.request_id: (row.status, row.error_class) for row in await store.calls()}
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()
    assert ends == {"req_spilled": ("completed", None), "req_open": ("failed", PROCESS_LOST)}
    assert run_locks(path) == []


_FORKS_AND_IS_KILLED = """
    import asyncio, os, signal, sys, time
    from pathlib import Path
    from tests.tracestore.trace_making import Maker
    from callboard.tracestore import TraceStore
    from callboard.tracestore.sqlite.files import FileLock
    from callboard.tracestore.writing.overflow import SpillFile, spill_path

    async def main(path):
        async with TraceStore(path) as store:
            store.hold_run("run_dead")
            make = Maker("run_dead")
            await store.write([make.started("req_open"), make.started("req_spilled")])
            SpillFile(spill_path(path, "run_dead"), 1_000_000).append([make.completed("req_spilled")])
            lock = FileLock(path)
            child = os.fork()
            if child == 0:
                time.sleep(600)
            lock.try_acquire()
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main(Path(sys.argv[1])))
"""
