"""The trace file: private, refused if it is another program's, intact after a crash, and no obstacle to an
exit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sqlite3
import stat
import time
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
    """What the store says when it refuses the file, which must be unchanged."""
    before = fingerprint(path)
    with pytest.raises(StoreError) as caught:
        await TraceStore(path).open()
    assert fingerprint(path) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_the_file_is_its_owners_alone(tmp_path: Path, make: Maker) -> None:
    """Mode 0600 for the file and what SQLite puts beside it, 0700 for a folder that we made."""
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
    """Somebody else's link doesn't lead us to write where they want; a path that is no file is named as such."""
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


async def test_what_is_no_database_of_ours_is_refused(tmp_path: Path) -> None:
    """A text file, rubbish behind our first bytes, and another application's tables stay as they are."""
    path = tmp_path / "trace.db"
    path.write_text("my diary")
    assert "not a database" in await refused(path)
    path.write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
    await refused(path)
    path.unlink()
    sql(path, "PRAGMA journal_mode = WAL", "CREATE TABLE recipes (name TEXT)")
    assert "another application" in await refused(path)


async def test_a_newer_file_is_refused(tmp_path: Path, make: Maker) -> None:
    """A file from a later version is not guessed at; the error names both versions and says what to do."""
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
    """Looking at a file that a later version has just been killed over doesn't fold its log into it."""
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


async def test_a_store_can_be_made_before_there_is_a_loop(tmp_path: Path) -> None:
    """A host configures first and runs later."""
    store = await anyio.to_thread.run_sync(TraceStore, tmp_path / "trace.db")
    async with store:
        assert await store.calls() == []


async def test_opening_twice_keeps_what_is_there(tmp_path: Path, make: Maker) -> None:
    """Migrations run once; closing and opening again, also twice, is harmless."""
    store = TraceStore(tmp_path / "trace.db")
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


async def test_a_failed_migration_leaves_no_trace(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that fails half-way is undone with its record, and the file still opens with the old code."""
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
    """A reader makes no file, writes none, and sees what a living writer has committed."""
    path = tmp_path / "trace.db"
    with pytest.raises(StoreError, match="no trace file"):
        await TraceStore.open_readonly(path).open()
    assert os.listdir(tmp_path) == []
    async with TraceStore(path) as store, TraceStore.open_readonly(path) as reader:
        await store.write([make.started()])
        assert len(await reader.calls()) == 1
        with pytest.raises(StoreError, match="reading only"):
            await reader.write([make.completed()])


async def test_what_was_flushed_survives_kill_9(tmp_path: Path) -> None:
    """A process is killed right after flush() returned; every event published before it is in the file."""
    process = started(
        """
        import anyio, sys, time
        from callboard.bus.bus import Bus
        from callboard.bus.events.codec import ActorStarted
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


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise RuntimeError('boom')"])
async def test_a_store_left_open_does_not_keep_the_interpreter(tmp_path: Path, ending: str) -> None:
    """However the program ends, it ends, within two seconds."""
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
    began = time.monotonic()
    process.communicate(timeout=10)
    assert time.monotonic() - began < 2


async def test_a_thread_that_still_works_at_the_end_is_let_finish(tmp_path: Path) -> None:
    """A host's own thread closes its store after the main thread is over; nothing is pulled from under it."""
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
async def test_a_file_that_another_process_makes_meanwhile_is_ours(tmp_path: Path, looks: int) -> None:
    """Whatever is seen before and after another process has made the tables, the file is never called foreign."""
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


async def test_a_full_disk_is_an_error_and_passes(tmp_path: Path, make: Maker) -> None:
    """SQLite's own limit stands for a full disk: the batch is refused whole, and goes in when there is room."""
    async with TraceStore(tmp_path / "trace.db") as store:
        await store.write([make.started()])
        ((pages,),) = await store._database.read("PRAGMA page_count")
        await store._database.read(f"PRAGMA max_page_count = {pages}")
        batch = [make.started(f"req_{n}", tags={"padding": "x" * 500}) for n in range(200)]
        with pytest.raises(StoreError, match="full"):
            await store.write(batch)
        assert len(await store.events(limit=None)) == 1
        await store._database.read("PRAGMA max_page_count = 100000")
        await store.write(batch)
        assert len(await store.events(limit=None)) == 201


async def test_a_cancelled_write_is_whole(tmp_path: Path) -> None:
    """Cancelled by anyio or by asyncio, at any moment, a transaction happens or doesn't; the next one works."""
    make = Maker()
    async with TraceStore(tmp_path / "trace.db") as store:
        for step in range(12):
            batch = [make.started(f"req_{step}"), make.completed(f"req_{step}")]
            if step % 2:
                with anyio.move_on_after(step * 0.0003):
                    await store.write(batch)
            else:
                task = asyncio.ensure_future(store.write(batch))
                await asyncio.sleep(step * 0.0003)
                task.cancel()
                await asyncio.wait([task])
        events = len(await store.events())
        assert events % 2 == 0
        await store.write([make.started("last")])
        assert len(await store.events()) == events + 1


async def test_a_failing_transaction_is_rolled_back(tmp_path: Path) -> None:
    """An exception in the middle leaves nothing behind, and the connection usable."""
    async with TraceStore(tmp_path / "trace.db") as store:

        def work(statements: Statements) -> None:
            statements.run("INSERT INTO runs (run_id, first_us, last_us, committed_seq) VALUES ('x', 1, 1, 1)")
            raise ValueError("changed my mind")

        with pytest.raises(ValueError, match="changed my mind"):
            await store._database.write(work)
        assert await store.committed_seq("x") == 0


async def test_a_lock_that_is_never_given_back_is_reported(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing fails in time, with the lock's name; reading goes on, and a write that waits comes through."""
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


async def test_a_transaction_whose_task_is_lost_still_ends_whole(tmp_path: Path, make: Maker) -> None:
    """The inner task cancelled as well, as when a loop ends: all of it is there or nothing, and the next works."""
    async with TraceStore(tmp_path / "trace.db") as store:
        for step in range(8):
            before = asyncio.all_tasks()
            write = asyncio.ensure_future(store.write([make.started(f"r{step}"), make.completed(f"r{step}")]))
            await asyncio.sleep(0)
            await asyncio.sleep(0.0002 * step)
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.wait([write])
            assert len(await store.events(limit=None)) % 2 == 0
        await store.write([make.started("last")])
        assert [row.request_id for row in await store.calls(limit=1)] == ["last"]


def test_importing_the_store_stays_light() -> None:
    """Neither SQLite, YAML nor the logger is imported before it is needed."""
    process = started(
        """
        import sys
        from callboard.tracestore import PriceTable
        PriceTable.default()
        print(sorted({"sqlite3", "aiosqlite", "yaml", "structlog", "httpx", "ulid"} & set(sys.modules)))
        """,
        fresh=True,
    )
    out, errors = process.communicate(timeout=20)
    assert (out, errors) == ("[]\n", "")


def test_everything_exported_exists() -> None:
    """`__all__` is what the package offers, sorted, and all of it is documented."""
    from callboard import tracestore

    assert list(tracestore.__all__) == sorted(tracestore.__all__)
    for name in tracestore.__all__:
        exported = getattr(tracestore, name)
        assert name in ("CallStatus", "Durability", "Redact", "StoreState") or exported.__doc__, name


def test_the_lock_is_used_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions of SQLite with the WAL-reset bug, and no others."""
    for version, needed in [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ]:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        assert database.needs_file_lock() is needed


def test_durability_is_one_of_two() -> None:
    """A misspelt durability is found at once."""
    with pytest.raises(ValueError, match="'normal' or 'full'"):
        Database("x", durability="fast")  # type: ignore[arg-type]


# Whether a trace file is well: what SQLite finds in it, and what the file system says around it.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file that nobody has open."""
    path = tmp_path / "home" / "trace.db"

    async def make() -> None:
        async with TraceStore(path):
            pass

    anyio.run(make)
    return path


def fill(path: Path, rows: int) -> None:
    """Make the file so large that reading it takes a while."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ballast (text)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [("x" * 500,)] * rows)
    connection.close()


def overwrite(path: Path, place: int, size: int) -> None:
    """Spoil some bytes, counted from the end of the file."""
    with open(path, "r+b") as file:
        file.seek(place, os.SEEK_END)
        file.write(b"\xff" * size)


async def test_a_good_file_has_nothing_wrong_with_it(trace: Path) -> None:
    """Over a connection that only reads, as over the writer's own."""
    async with TraceStore(trace) as writer, TraceStore.open_readonly(trace) as reader:
        assert await writer.check() == []
        assert await reader.check() == []
        assert await reader.journal_mode() == "wal"


@pytest.mark.parametrize("size", [8, 64, 4096])
async def test_damage_inside_the_file_is_found_and_told_in_sqlites_words(trace: Path, size: int) -> None:
    """A page that was overwritten does not keep the file from opening."""
    fill(trace, 2000)
    overwrite(trace, -3 * 4096, size)
    async with TraceStore.open_readonly(trace) as store:
        assert await store.check()


async def test_a_check_that_takes_too_long_stops_and_leaves_the_connection_usable(trace: Path) -> None:
    """A file of many gigabytes holds nobody up for ever."""
    fill(trace, 20_000)
    async with TraceStore.open_readonly(trace) as store:
        with pytest.raises(TimeoutError, match="not checked within"):
            await store.check(seconds=-1.0)
        assert await store.check() == []
        assert await store.calls() == []


async def test_a_store_that_is_not_open_can_not_be_checked(trace: Path) -> None:
    """The error says what to do."""
    with pytest.raises(StoreError, match="call open"):
        await TraceStore(trace).check()


def test_the_facts_of_a_file_are_its_mode_its_place_and_its_disk(trace: Path) -> None:
    """A file that we made is its owner's alone."""
    facts = file_facts(trace)
    assert facts.exists
    assert facts.size == trace.stat().st_size > 0
    assert facts.open_to_others == ()
    assert facts.writable
    assert facts.free_bytes > 0
    assert facts.sqlite_version == sqlite3.sqlite_version


def test_a_file_that_others_may_read_is_found(trace: Path) -> None:
    """It may hold what people said to a model."""
    trace.chmod(0o644)
    assert file_facts(trace).open_to_others == (trace,)


def test_looking_at_a_file_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    """The folder that counts is the nearest one that exists."""
    facts = file_facts(tmp_path / "a" / "b" / "trace.db")
    assert not facts.exists
    assert facts.writable
    assert facts.folder == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "locked"),
    [((3, 40, 1), True), ((3, 44, 6), False), ((3, 50, 6), True), ((3, 50, 7), False), ((3, 51, 3), False)],
)
def test_the_lock_file_is_explained_by_the_version_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], locked: bool
) -> None:
    """Versions that can lose rows to two writers need it, mended ones don't."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))
    facts = file_facts(tmp_path / "trace.db")
    assert facts.file_lock is locked is database.needs_file_lock()
    assert ("trace.db.lock" in facts.locking) is locked
    assert facts.sqlite_version in facts.locking


async def test_two_checks_at_once_take_turns(trace: Path) -> None:
    """A connection has one progress handler; neither check switches off the other's."""
    async with TraceStore.open_readonly(trace) as store:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(store.check)
