"""The trace file is private and survives a crash. Files of other programs are refused, and an open store does not
delay the exit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sqlite3
import stat
from pathlib import Path

import anyio
import pytest

from callboard import StoreError, TraceStore
from callboard.tracestore.health import file_facts
from callboard.tracestore.sqlite import database, files
from callboard.tracestore.sqlite import schema as migrations
from callboard.tracestore.sqlite.database import Database, Row, Statements

from ..support.present import present
from ..support.programs import started
from .trace_making import Maker, sql


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def refused(path: Path) -> str:
    """Return the error with which the store refuses the file. The file must be unchanged."""
    before = fingerprint(path)
    with pytest.raises(StoreError) as caught:
        await TraceStore(path).open()
    assert fingerprint(path) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_only_the_owner_can_read_the_file(tmp_path: Path, make: Maker) -> None:
    """The file and SQLite's files next to it have mode 0600. A new folder has mode 0700."""
    old = os.umask(0)
    try:
        async with TraceStore(tmp_path / "home" / "trace.db") as store:
            await store.write([make.started()])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()}
    finally:
        os.umask(old)
    assert {"trace.db", "trace.db-wal", "trace.db-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700


async def test_a_symlink_and_a_folder_are_refused(tmp_path: Path) -> None:
    """Another user's link must not lead to a write elsewhere. The error names a path that is not a file."""
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / "trace.db").symlink_to(target)
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere")
    for name in ("trace.db", "dangling.db"):
        with pytest.raises(StoreError, match="symbolic link"):
            await TraceStore(tmp_path / name).open()
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError, match="not a regular file"):
        await TraceStore(tmp_path).open()


async def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    """A text file, a damaged SQLite file and another application's tables are not changed."""
    path = tmp_path / "trace.db"
    path.write_text("my diary")
    assert "not a database" in await refused(path)
    path.write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    await refused(path)
    path.unlink()
    sql(path, "PRAGMA journal_mode = WAL", "CREATE TABLE recipes (name TEXT)")
    assert "another application" in await refused(path)


async def test_a_newer_file_is_refused(tmp_path: Path, make: Maker) -> None:
    path = tmp_path / "trace.db"
    async with TraceStore(path) as store:
        await store.write([make.started()])
    sql(path, "PRAGMA user_version = 99")
    message = await refused(path)
    assert "version 99" in message
    assert f"up to {migrations.SCHEMA_VERSION}" in message
    assert "Update Callboard" in message
    with pytest.raises(StoreError, match="version 99"):
        await TraceStore.open_readonly(path).open()


async def test_a_newer_file_with_a_live_log_is_refused(tmp_path: Path, make: Maker) -> None:
    """The write-ahead log of a killed later version is not merged into the file."""
    path = tmp_path / "trace.db"
    async with TraceStore(path) as store:
        await store.write([make.started()])
    process = started(
        """
        import os, sqlite3, sys
        later = sqlite3.connect(sys.argv[1])
        later.execute("PRAGMA user_version = 99")
        os._exit(0)
        """,
        path,
    )
    process.communicate()
    assert path.with_name("trace.db-wal").stat().st_size > 0
    assert "version 99" in await refused(path)


async def test_opening_twice_keeps_the_data(tmp_path: Path, make: Maker) -> None:
    """A host can create the store without a loop. Repeated opening and closing is harmless."""
    store = await anyio.to_thread.run_sync(TraceStore, tmp_path / "trace.db")
    for _ in range(2):
        await store.open()
        await store.open()
        await store.write([make.started()])
        await store.close()
        await store.close()
    async with store:
        assert len(await store.events()) == 2
    with pytest.raises(StoreError, match="not open"):
        await store.events()


async def test_a_failed_migration_is_undone(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails half-way is rolled back with its record. The old code can still open the file."""
    path = tmp_path / "trace.db"
    async with TraceStore(path) as store:
        await store.write([make.started()])
    second = ("broken", ("CREATE TABLE half (x INTEGER) STRICT", "CREATE TABLE half (x INTEGER) STRICT"))
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, second))
        patch.setattr(migrations, "SCHEMA_VERSION", len(migrations.MIGRATIONS))
        with pytest.raises(StoreError, match="half"):
            await TraceStore(path).open()
        with pytest.raises(StoreError, match="Upgrade it with"):
            await TraceStore.open_readonly(path).open()
    async with TraceStore(path) as store:
        assert len(await store.events()) == 1


async def test_reading_needs_a_file_and_writes_nothing(tmp_path: Path, make: Maker) -> None:
    path = tmp_path / "trace.db"
    with pytest.raises(StoreError, match="no trace file"):
        await TraceStore.open_readonly(path).open()
    assert os.listdir(tmp_path) == []
    async with TraceStore(path) as store, TraceStore.open_readonly(path) as reader:
        await store.write([make.started()])
        assert len(await reader.calls()) == 1
        with pytest.raises(StoreError, match="reading only"):
            await reader.write([make.completed()])


async def test_flushed_events_survive_kill_9(tmp_path: Path) -> None:
    process = started(
        """
        import anyio, sys, time
        from callboard.bus.bus import Bus
        from callboard.bus.events.operation import ActorStarted
        from callboard.tracestore import TraceStore, WriterCore

        async def main():
            store = TraceStore(sys.argv[1])
            await store.open()
            bus = Bus(run_id="run_killed")
            core = WriterCore.for_bus(store, bus)
            async with anyio.create_task_group() as group:
                group.start_soon(core.run)
                for n in range(5000):
                    bus.publish(ActorStarted(actor=f"actor {n}"))
                    if n % 7 == 0:
                        await anyio.sleep(0)
                await core.flush()
                print("flushed", flush=True)
                time.sleep(60)

        anyio.run(main)
        """,
        tmp_path / "trace.db",
    )
    assert await anyio.to_thread.run_sync(present(process.stdout).readline) == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    async with TraceStore(tmp_path / "trace.db") as store:
        assert await store.committed_seq("run_killed") == 5000
        assert [e.seq for e in await store.events(limit=None)] == list(range(1, 5001))
        assert await integrity(store) == "ok"


async def integrity(store: TraceStore) -> str:
    ((verdict,),) = await store._database.read("PRAGMA integrity_check")
    return str(verdict)


@pytest.mark.parametrize("ending", ["", "raise RuntimeError('boom')"])
async def test_an_open_store_does_not_delay_the_exit(tmp_path: Path, ending: str) -> None:
    process = started(
        f"""
        import asyncio, sys
        from callboard.tracestore import TraceStore
        kept = []

        async def main():
            store = TraceStore(sys.argv[1])
            kept.append(store)
            await store.open()
            print("open", flush=True)
            {ending}

        asyncio.run(main())
        """,
        tmp_path / "trace.db",
        fresh=True,
    )
    assert await anyio.to_thread.run_sync(present(process.stdout).readline) == "open\n"
    process.communicate(timeout=30)


async def test_a_thread_can_finish_after_the_main_thread(tmp_path: Path) -> None:
    """A host's thread can write and close its store after the main thread has ended."""
    process = started(
        """
        import asyncio, sys, threading
        from tests.tracestore.trace_making import Maker
        from callboard.tracestore import TraceStore

        opened = threading.Event()

        async def work():
            async with TraceStore(sys.argv[1]) as store:
                opened.set()
                make = Maker()
                for _ in range(20):
                    await store.write([make.started()])
                    await asyncio.sleep(0.01)

        threading.Thread(target=lambda: asyncio.run(work())).start()
        opened.wait()  # since Python 3.12 no thread may be started any more when the main one is over
        """,
        tmp_path / "trace.db",
        fresh=True,
    )
    _, errors = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=20))
    assert (process.returncode, errors) == (0, "")
    async with TraceStore(tmp_path / "trace.db") as store:
        assert len(await store.events()) == 20


@pytest.mark.parametrize("looks", [1, 2])
async def test_a_file_that_another_process_creates_is_accepted(tmp_path: Path, looks: int) -> None:
    """Another process creates the tables during the check. The file is never taken for a foreign one."""
    path = tmp_path / "trace.db"

    async def nothing(_: Database) -> None:
        pass

    opened = Database(path)
    await opened.open(nothing)
    read, seen = opened.read, 0

    async def read_and_be_overtaken(sql: str) -> list[Row]:
        nonlocal seen
        rows = await read(sql)
        seen += 1
        if seen == looks:
            async with TraceStore(path):
                pass
        return rows

    opened.read = read_and_be_overtaken  # type: ignore[method-assign, assignment]
    await migrations.check(opened)
    await opened.close()


async def test_a_cancelled_write_is_atomic(tmp_path: Path) -> None:
    """A cancelled transaction is committed or rolled back as a whole, at any time, and the next one works. Its
    caller, its task, or also its inner task is cancelled, as at the end of a loop.
    """
    make = Maker()
    async with TraceStore(tmp_path / "trace.db") as store:
        for step in range(18):
            batch = [make.started(f"req_{step}"), make.completed(f"req_{step}")]
            if step % 3 == 0:
                with anyio.move_on_after(step * 0.0002):
                    await store.write(batch)
                continue
            before = asyncio.all_tasks()
            write = asyncio.ensure_future(store.write(batch))
            await asyncio.sleep(step * 0.0002)
            for task in asyncio.all_tasks() - before if step % 3 == 1 else {write}:
                task.cancel()
            await asyncio.wait([write])
            assert len(await store.events(limit=None)) % 2 == 0
        events = len(await store.events())
        await store.write([make.started("last")])
        assert len(await store.events()) == events + 1


async def test_a_failing_transaction_is_rolled_back(tmp_path: Path) -> None:
    async with TraceStore(tmp_path / "trace.db") as store:

        def work(statements: Statements) -> None:
            statements.run("INSERT INTO runs (run_id, first_us, last_us, committed_seq) VALUES ('x', 1, 1, 1)")
            raise ValueError("changed my mind")

        with pytest.raises(ValueError, match="changed my mind"):
            await store._database.write(work)
        assert await store.committed_seq("x") == 0


async def test_a_lock_that_is_kept_is_reported(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write fails in time, and its error names the lock. Reads work, and a waiting write succeeds after the
    release.
    """
    monkeypatch.setattr(database, "needs_file_lock", lambda: True)
    async with TraceStore(tmp_path / "trace.db") as store:
        holder = files.FileLock(store.path)
        assert holder.try_acquire()
        with monkeypatch.context() as patch:
            patch.setattr(files, "_LOCK_TIMEOUT_SECONDS", 0.05)
            with pytest.raises(StoreError, match=r"trace\.db\.lock.*locked by another process"):
                await store.write([make.started()])
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(store.write, [make.started()])
                for _ in range(5):
                    assert await store.events() == []
                holder.release()
        holder.close()
        assert len(await store.events()) == 1


def test_importing_the_store_loads_no_heavy_module() -> None:
    process = started(
        """
        import callboard, sys
        assert not [name for name in sys.modules if name.endswith("prices.files")]  # which reads the snapshot
        from callboard.tracestore import PriceTable
        PriceTable.default()
        print(sorted({"sqlite3", "aiosqlite", "yaml", "structlog", "httpx", "ulid"} & set(sys.modules)))
        """,
        fresh=True,
    )
    out, errors = process.communicate(timeout=20)
    assert (out, errors) == ("[]\n", "")


def test_durability_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="'normal' or 'full'"):
        Database("x", durability="fast")  # type: ignore[arg-type]


# The state of a trace file: SQLite's checks, and the facts of the file system.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file that is not open."""
    path = tmp_path / "home" / "trace.db"

    async def make() -> None:
        async with TraceStore(path):
            pass

    anyio.run(make)
    return path


def fill(path: Path, rows: int) -> None:
    """Enlarge the file, so that reading it takes a while."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ballast (text)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [("x" * 500,)] * rows)
    connection.close()


def overwrite(path: Path, place: int, size: int) -> None:
    """Overwrite some bytes at a place counted from the end of the file."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END)
        file.write(b"\xff" * size)


async def test_a_good_file_has_nothing_wrong_with_it(trace: Path) -> None:
    async with TraceStore(trace) as writer, TraceStore.open_readonly(trace) as reader:
        assert await writer.check() == []
        assert await reader.check() == []
        assert await reader.journal_mode() == "wal"


@pytest.mark.parametrize("size", [8, 4096])
async def test_damage_inside_the_file_is_reported_in_sqlites_words(trace: Path, size: int) -> None:
    fill(trace, 2000)
    overwrite(trace, -3 * 4096, size)
    async with TraceStore.open_readonly(trace) as store:
        assert await store.check()


async def test_a_check_that_takes_too_long_stops_and_leaves_the_connection_usable(trace: Path) -> None:
    fill(trace, 20_000)
    async with TraceStore.open_readonly(trace) as store:
        with pytest.raises(TimeoutError, match="not checked within"):
            await store.check(seconds=-1.0)
        assert await store.check() == []
        assert await store.calls() == []


def test_the_facts_of_a_file_are_its_mode_its_place_and_its_disk(trace: Path) -> None:
    """Only the owner can read a new file. A file that others can read is reported."""
    facts = file_facts(trace)
    assert facts.exists
    assert facts.size == trace.stat().st_size > 0
    assert facts.open_to_others == ()
    assert facts.writable
    assert facts.free_bytes > 0
    assert facts.sqlite_version == sqlite3.sqlite_version
    trace.chmod(0o644)
    assert file_facts(trace).open_to_others == (trace,)


def test_inspecting_a_missing_file_creates_nothing(tmp_path: Path) -> None:
    facts = file_facts(tmp_path / "a" / "b" / "trace.db")
    assert not facts.exists
    assert facts.writable
    assert facts.folder == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "locked"),
    [
        *[((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True)],
        *[((3, 50, 7), False), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False)],
    ],
)
def test_the_reason_for_the_lock_file_is_the_version_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], locked: bool
) -> None:
    """Versions that can lose rows of two writers need the lock file. Fixed versions don't."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))
    facts = file_facts(tmp_path / "trace.db")
    assert facts.file_lock is locked is database.needs_file_lock()
    assert ("trace.db.lock" in facts.locking) is locked
    assert facts.sqlite_version in facts.locking


async def test_two_checks_at_once_take_turns(trace: Path) -> None:
    """A connection has one progress handler. Neither check removes the handler of the other."""
    async with TraceStore.open_readonly(trace) as store:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(store.check)
