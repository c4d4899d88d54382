"""A trace file that can't be written: calls continue, the reason is reported, and lost events are counted."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from callboard import StoreUnavailable
from callboard.bus import Envelope, Lossless, StoreError, StoreStateChanged, Subscription
from callboard.engine import Engine
from callboard.engine.watching.health import check_store
from callboard.tracestore import PriceTable, TraceStore, WriterOptions
from tests.support.depth import first_is_quick

from ..support.disks import Medium, attempt_mount, medium
from ..support.engines import keeping, registry
from ..support.present import present
from ..support.programs import started
from ..support.scripted import Say
from ..support.virtual_time import runs_on
from ..tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")
IMPATIENT = WriterOptions(first_retry=0.01, longest_retry=0.05, spill_after=2, batch_seconds=0.0)
TINY_MEMORY = msgspec.structs.replace(IMPATIENT, memory_events=40)


class Rig:
    """An engine on a trace file, a session on it, and all published events."""

    def __init__(self, engine: Engine, events: Subscription) -> None:
        self.engine = engine
        self.seen: list[Envelope] = []
        self._events = events
        self._session = engine.session("s:m")

    async def talk(self, turns: int) -> None:
        """Run turns, each of which must get its reply."""
        for _ in range(turns):
            assert (await self._session.send("Hi")).text == "ab"

    async def until(self, state: str) -> None:
        hosted = self.engine._host.life
        assert hosted is not None
        with anyio.fail_after(20):
            while present(hosted.writer).state != state:  # noqa: ASYNC110
                await anyio.sleep(0.005)

    async def complaint(self) -> str:
        """The text of the failed check of the writer in the health report."""
        report = await self.engine.health(offline=True)
        (check,) = [check for check in report.checks if check.name == "store:writer"]
        assert not check.ok
        return check.detail

    def states(self) -> list[StoreStateChanged]:
        """All changes of the store's state that were published since the start."""
        self.seen += self._events.take()
        return [envelope.data for envelope in self.seen if isinstance(envelope.data, StoreStateChanged)]


@contextlib.asynccontextmanager
async def rig_on(path: Path, options: WriterOptions = IMPATIENT, *, content: bool = False) -> AsyncIterator[Rig]:
    says = [Say("a", "b") for _ in range(400)]
    engine = Engine(models=registry(*says), store=path, prices=PriceTable.default(), capture_content=content)
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    async with engine:
        hosted = await engine._host.running_life()
        present(hosted.writer)._options = options
        yield Rig(engine, events)


async def stored(path: Path) -> set[tuple[str, int]]:
    async with TraceStore.open_readonly(path) as store:
        assert await store.check() == []
        return {(envelope.run_id, envelope.seq) for envelope in await store.events(limit=None)}


async def make_file(path: Path) -> None:
    """Write a trace file of many pages, as an earlier process would."""
    async with rig_on(path, content=True) as rig:
        await rig.talk(60)


def spill_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.spill-*"))


def remove_database(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def remove_locks(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}.run-*"):
        each.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 16 MB, which only root can mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not attempt_mount("-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(folder)):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


# -- A full disk


async def test_a_full_disk_loses_as_many_events_as_it_reports(small_disk: Path) -> None:
    """If database and spill file have no room, a limited number of events stays in memory. The others are counted
    as lost.
    """
    path, ballast = small_disk / "trace.db", small_disk / "ballast"
    async with rig_on(path, TINY_MEMORY) as rig:
        await rig.talk(3)
        await rig.engine.flush()
        with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        await rig.talk(60)
        await rig.until("dropping")
        with pytest.raises(StoreError, match="disk is full"):
            await rig.engine.flush()
        assert "disk is full" in await rig.complaint()
        ballast.unlink()
        with pytest.raises(StoreError, match="events were lost"):
            await rig.engine.flush()
        await rig.talk(3)
        await rig.engine.flush()
        hosted = rig.engine._host.life
        assert hosted is not None
        said = present(hosted.writer).statistics()
        run_id = rig.engine.bus.run_id
        assert said.lost_first_seq is not None
        assert said.lost_last_seq is not None
        assert f"{said.lost} lost" in await rig.complaint()
        states = rig.states()
    assert [change.current for change in states][-1] == "ok"
    assert states[-1].lost == said.lost > 0
    missing = {(run_id, envelope.seq) for envelope in rig.seen} - await stored(path)
    assert len(missing) == said.lost
    assert {seq for _, seq in missing} <= set(range(said.lost_first_seq, said.lost_last_seq + 1))


async def test_a_database_that_is_full_spills_and_loses_nothing(tmp_path: Path) -> None:
    """SQLite's limit of pages acts as a quota. Events go to the spill file, and later into the store."""
    path = tmp_path / "trace.db"
    async with rig_on(path, content=True) as rig:
        await rig.talk(3)
        await rig.engine.flush()
        database = present(rig.engine.store)._database
        ((pages,),) = await database.read("PRAGMA page_count")
        await database.read(f"PRAGMA max_page_count = {pages}")
        await rig.talk(80)
        await rig.until("spilling")
        await rig.talk(3)
        assert "disk is full" in await rig.complaint()
        assert spill_files(tmp_path)
        await database.read("PRAGMA max_page_count = 1000000")
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
        assert rig.states()[-1].current == "ok"
    assert {(run_id, seq) for seq in range(1, last + 1)} <= await stored(path)
    assert not spill_files(tmp_path)


# -- A file without rights


async def test_a_read_only_file_is_written_once_it_can_be(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "trace.db"
    if as_root := os.geteuid() == 0:  # root can write files of any mode
        path = request.getfixturevalue("small_disk") / "trace.db"
    await make_file(path)
    if as_root:
        assert attempt_mount("-o", "remount,ro", str(path.parent))
    else:
        path.chmod(0o400)
    async with rig_on(path) as rig:
        await rig.talk(3)
        with pytest.raises(StoreError, match=r"readonly|read-only|unable to open|Read-only"):
            await rig.engine.flush()
        assert "trace.db" in await rig.complaint()
        if as_root:
            assert attempt_mount("-o", "remount,rw", str(path.parent))
        else:
            path.chmod(0o600)
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
    assert {(run_id, seq) for seq in range(1, last + 1)} <= await stored(path)


async def test_a_folder_that_cannot_be_used_stops_no_call(tmp_path: Path) -> None:
    """The lock of the run is created after the folder can be created."""
    (tmp_path / "here").write_text("no folder")
    path = tmp_path / "here" / "trace.db"
    async with rig_on(path) as rig:
        await rig.talk(3)
        with pytest.raises(StoreError, match="File exists"):
            await rig.engine.flush()
        assert "File exists" in await rig.complaint()
        (tmp_path / "here").unlink()
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
        assert list(path.parent.glob("*.run-*")), "the lock of the run is held"
    assert {(run_id, seq) for seq in range(1, last + 1)} <= await stored(path)


# -- A file that another process has locked

_HOLDER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_locked_file_is_written_after_its_release(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    async with rig_on(path) as rig:
        await rig.talk(1)
        await rig.engine.flush()
        await present(rig.engine.store)._database.read("PRAGMA busy_timeout = 20")
        with started(_HOLDER, path) as holder:
            assert await anyio.to_thread.run_sync(present(holder.stdout).readline) == "held\n"
            await rig.talk(10)
            with pytest.raises(StoreError, match="locked"):
                await rig.engine.flush()
            assert "locked" in await rig.complaint()
            present(holder.stdin).close()
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
    assert {(run_id, seq) for seq in range(1, last + 1)} <= await stored(path)


_ANOTHER = """
import asyncio, sys
from pathlib import Path
from tests.faults.test_store_faults import rig_on

async def main():
    async with rig_on(Path(sys.argv[1])) as rig:
        print(rig.engine.bus.run_id, flush=True)
        await asyncio.gather(*(rig.engine.session("s:m").send("Hi") for _ in range(100)))
        await rig.engine.flush()
        print(rig.engine.bus.last_seq, flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def test_two_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with started(_ANOTHER, path) as other:
        assert other.stdout is not None
        other_run = (await anyio.to_thread.run_sync(other.stdout.readline)).strip()
        async with rig_on(path) as rig:
            for _ in range(20):
                await rig.talk(5)
                await rig.engine.flush()
            run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
            other_last = int(await anyio.to_thread.run_sync(other.stdout.readline))
            present(other.stdin).close()
    wanted = {(run_id, seq) for seq in range(1, last + 1)} | {(other_run, seq) for seq in range(1, other_last + 1)}
    assert wanted <= await stored(path)
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls(limit=None)
    assert len({row.request_id for row in rows}) == len(rows) == 200
    assert {row.status for row in rows} == {"completed"}


# -- A file that is damaged or deleted


def pages(path: Path) -> dict[str, tuple[int, int]]:
    """Return where pages of each kind begin, and how many of their bytes to overwrite."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        ((size,),) = file.execute("PRAGMA page_size")
        roots = dict(file.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"))
    found = {name: ((root - 1) * size, size) for name, root in roots.items()}
    return {"header": (16, 60), "schema": (100, 3000), **found}


@pytest.mark.parametrize(
    "page",
    first_is_quick(
        ["header", "events", "schema", "calls", "runs", "events_by_request", "content"],
        "more pages of the file",
        quick=2,
    ),
)
async def test_a_damaged_page_stops_no_call_and_events_go_to_the_next_file(tmp_path: Path, page: str) -> None:
    """The damage is reported. Events that can't be written are kept until the file is moved away, without a
    restart.
    """
    path = tmp_path / "trace.db"
    await make_file(path)
    place, size = pages(path)[page]
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * size)
    async with rig_on(path, content=True) as rig:
        await rig.talk(5)
        with pytest.raises(StoreError, match=r"malformed|not a database"):
            await rig.engine.flush()
        assert "trace.db" in await rig.complaint()
        hosted = rig.engine._host.life
        assert hosted is not None
        before = present(hosted.writer).statistics().committed  # events that touch no damaged page
        path.rename(tmp_path / "damaged.db")
        remove_database(path)
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
        assert rig.states()[-1].current == "ok"
    assert {(run_id, seq) for seq in range(before + 1, last + 1)} <= await stored(path)


async def test_a_file_that_is_deleted_while_the_engine_runs_is_created_again(tmp_path: Path) -> None:
    """The engine creates a new file. Only the events of the deleted file are lost."""
    path = tmp_path / "trace.db"
    async with rig_on(path) as rig:
        await rig.talk(3)
        await rig.engine.flush()
        before = rig.engine.bus.last_seq
        remove_database(path)
        remove_locks(path)
        await rig.talk(3)
        await rig.engine.flush()
        run_id, last = rig.engine.bus.run_id, rig.engine.bus.last_seq
        async with TraceStore(path) as another:
            assert await another.close_lost_runs() == [], "the new file shows that the run is alive"
    found = await stored(path)
    assert {(run_id, seq) for seq in range(before + 1, last + 1)} <= found


async def test_lost_runs_are_ended_when_the_file_can_be_written(tmp_path: Path) -> None:
    """An engine starts on a damaged file. When a good file replaces it, the engine ends the lost runs of the good
    file.
    """
    path = tmp_path / "trace.db"
    lost = "INSERT INTO runs (run_id, first_us, last_us, committed_seq) VALUES ('run_dead', 1, 1, 0)"
    await make_file(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute(lost)
        path.rename(tmp_path / "aside.db")
        path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
        async with rig_on(path) as rig:
            await rig.talk(1)
            await rig.until("spilling")
            (tmp_path / "aside.db").rename(path)
            await rig.until("ok")
            with anyio.fail_after(20):
                while True:
                    ((ending,),) = held.execute("SELECT ending FROM runs WHERE run_id = 'run_dead'")
                    if ending is not None:
                        break
                    await anyio.sleep(0.01)
    assert ending == "process_lost"


# A closed trace can be read where nothing can be written. A trace that was not closed is refused with the reason.


@pytest.fixture
def media(tmp_path: Path) -> Iterator[Medium]:
    with medium(tmp_path / "media") as made:
        yield made


async def closed_trace(folder: Path) -> Path:
    """Create a trace file with an engine, and close the engine."""
    path = folder / "trace.db"
    async with keeping(path, Say("Hello")) as engine:
        await engine.session("s:m", session_id="ses_1").send("Hi")
    return path


async def test_a_closed_trace_is_read_on_read_only_media(media: Medium, tmp_path: Path) -> None:
    """Calls, events, a saved session, a dry run of a repricing and a backup work."""
    path = await closed_trace(media.folder)
    media.make_writable(False)
    before = sorted(path.parent.iterdir())
    async with TraceStore.open_readonly(path) as store:
        assert [row.status for row in await store.calls()] == ["completed"]
        assert len(await store.events()) > 3
        assert (await store.saved_session("ses_1")) is not None
        assert (await store.reprice(PriceTable([]), dry_run=True)).calls == 1
        assert await store.check() == []
        assert await store.journal_mode() == "wal"
        await store.backup(tmp_path / "copy.db")
        with pytest.raises(StoreError, match="reading only"):
            await store.undo_reprice()
    assert sorted(path.parent.iterdir()) == before
    async with TraceStore.open_readonly(tmp_path / "copy.db") as copy:
        assert len(await copy.calls()) == 1


async def test_the_checks_only_report_that_the_file_cannot_be_written(media: Medium) -> None:
    path = await closed_trace(media.folder)
    media.make_writable(False)
    found = await check_store(TraceStore(path))
    assert [check.name for check in found if not check.ok] == ["store:writable"]


async def test_a_trace_that_was_not_closed_is_refused_with_the_reason(media: Medium, tmp_path: Path) -> None:
    """Without its write-ahead log, the trace would lack events. A backup is refused with the same reason."""
    source = tmp_path / "trace.db"
    async with TraceStore(source) as writer:
        await writer.write([Maker("run_1").started()])
        for ending in ("", "-wal"):
            shutil.copy(f"{source}{ending}", media.folder / f"trace.db{ending}")
    media.make_writable(False)
    path = media.folder / "trace.db"
    with pytest.raises(StoreUnavailable, match=r"not closed by its writer.*copy the file and trace\.db-wal"):
        await TraceStore.open_readonly(path).open()
    with pytest.raises(StoreUnavailable, match="not closed by its writer"):
        await TraceStore.open_readonly(path).backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_reading_ends_when_another_process_writes(media: Medium) -> None:
    """The reader assumed that the file never changes, so its results would be wrong."""
    path = await closed_trace(media.folder)
    media.make_writable(False)
    async with TraceStore.open_readonly(path) as reader:
        media.make_writable(True)
        async with TraceStore(path) as writer:
            await writer.write([Maker("run_2").started()])
            with pytest.raises(StoreUnavailable, match="Open it again"):
                await reader.calls()
            async with TraceStore.open_readonly(path) as anew:
                assert len(await anew.calls()) == 2


async def test_a_reader_in_a_writable_folder_shows_new_rows(tmp_path: Path) -> None:
    path = await closed_trace(tmp_path)
    async with TraceStore.open_readonly(path) as reader, TraceStore(path) as writer:
        await writer.write([Maker("run_2").started()])
        assert len(await reader.calls()) == 2
