"""Readers of a trace see the events that dead processes left in journals and spill files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from callboard import PostgresStore, TraceStore, costs
from callboard.engine.stores import existing_store
from callboard.engine.web_view.subject import Subject
from callboard.tracestore import TraceShipper
from callboard.tracestore.writing.journal import Journal, Waiting
from callboard.tracestore.writing.overflow import SpillFile, journal_paths, leftovers, spill_path, waiting_files
from tests.cli.running import call
from tests.support.depth import first_is_quick
from tests.support.disks import Medium, medium
from tests.support.postgres_server import PostgresServer, why_not
from tests.support.programs import ended, started
from tests.support.virtual_time import runs_on
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from callboard import Engine, PostgresStore, TraceStore
from tests.support.engines import registry
from tests.support.scripted import Say

async def held(self, envelopes):
    await asyncio.sleep(3600)

async def main(place, ending, dsn=None):
    store = Path(place) if dsn is None else PostgresStore(dsn, path=place)
    engine = await Engine(models=registry(Say("one"), Say("two")), store=store, capture_content=True).__aenter__()
    session = engine.session("s:m", session_id=f"ses_{os.getpid()}" if ending == "again" else "ses_x")
    await session.send("First")
    await engine.flush()
    TraceStore.write = PostgresStore.write = held   # the process dies before its next commit
    await session.send("Second")
    print("answered", flush=True)
    if ending == "lives":
        sys.stdin.read()
    elif ending == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
    os._exit(0)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace file whose writer died after its second reply, which was not committed."""
    path = tmp_path / "trace.db"
    left_behind(path, "exit")
    return path


def left_behind(path: Path, ending: str, *dsn: str) -> None:
    """Run the program until it dies, and check that it left a journal behind."""
    done = ended(PROGRAM, path, ending, *dsn)
    assert done.stdout == "answered\n", done.stderr
    assert any(file.stat().st_size for file in waiting_files(path))


async def lines(path: Path, *command: str) -> list[str]:
    """Return the lines of JSON that a command prints about a trace."""
    run = partial(call, *command, "--db", str(path), home=path.parent / "home", exits=0)
    done = await anyio.to_thread.run_sync(run)  # a command has an event loop of its own
    assert "late_events" not in done.stderr
    return done.stdout.splitlines()


async def of_calls(path: Path) -> int:
    async with TraceStore.open_readonly(path) as store:
        return [row.status for row in await store.calls()].count("completed")


async def of_costs(path: Path) -> int:
    return sum(row.calls for row in await costs(trace=path))


async def of_sessions(path: Path) -> int:
    async with TraceStore.open_readonly(path) as store:
        saved = await store.saved_session("ses_x")
        assert saved is not None
        return len(saved.messages) // 2


async def of_events(path: Path) -> int:
    async with TraceStore.open_readonly(path) as store:
        return len(await store.events(topic="llm.call_completed"))


async def of_unopened_sql(path: Path) -> int:
    found = await TraceStore.open_readonly(path).sql("SELECT count(*) FROM calls WHERE status = 'completed'")
    return int(str(found.rows[0][0]))


async def of_writing_store(path: Path) -> int:
    async with await existing_store(path) as store:
        return [row.status for row in await store.calls()].count("completed")


async def of_live_view(path: Path) -> int:
    async with Subject(None, path).reading() as store:
        return [row.status for row in await store.calls()].count("completed")


async def of_traces(path: Path) -> int:
    return [json.loads(line)["status"] for line in await lines(path, "traces", "--json")].count("completed")


async def of_logs(path: Path) -> int:
    return len([line for line in await lines(path, "logs", "--json") if '"assistant"' in line])


async def of_export(path: Path) -> int:
    target = path.parent / "calls.jsonl"
    await lines(path, "export", str(target), "--format", "jsonl")
    return target.read_text().count('"completed"')


async def of_backup(path: Path) -> int:
    target = path.parent / "copy.db"
    await TraceStore.open_readonly(path).backup(target)
    return await of_calls(target)


SURFACES: tuple[Callable[[Path], Awaitable[int]], ...] = (
    *(of_calls, of_costs, of_sessions, of_events, of_unopened_sql, of_writing_store, of_live_view),
    *(of_traces, of_logs, of_export, of_backup),
)


@pytest.mark.parametrize(
    "surface",
    first_is_quick(SURFACES, "more readers of the same journal", quick=5),
    ids=lambda surface: surface.__name__,
)
async def test_readers_show_the_last_answer_of_the_dead(
    trace: Path, surface: Callable[[Path], Awaitable[int]]
) -> None:
    assert await surface(trace) == 2
    assert waiting_files(trace) == []
    assert await of_calls(trace) == 2


@pytest.mark.parametrize("ending", first_is_quick(["exit", "terminate"], "another end of the process"))
async def test_the_journals_of_two_dead_processes_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "trace.db"
    left_behind(path, "again")
    left_behind(path, ending)
    assert await of_calls(path) == 4


async def test_the_journal_of_a_living_writer_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.db"
    with started(PROGRAM, path, "lives") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "answered\n"
        files = {file: file.read_bytes() for file in waiting_files(path)}
        async with TraceStore.open_readonly(path) as reader:
            assert [row.status for row in await reader.calls()].count("completed") == 1
            assert {file: file.read_bytes() for file in waiting_files(path)} == files
            process.kill()
            process.wait()
            assert [row.status for row in await reader.calls()].count("completed") == 2


async def test_a_journal_is_read_up_to_its_incomplete_last_line(trace: Path) -> None:
    (journal,) = (file for file in waiting_files(trace) if file.stat().st_size)
    with journal.open("ab") as file:
        file.write(journal.read_bytes().splitlines()[-1][:40])
    assert await of_calls(trace) == 2


async def test_a_spill_file_and_a_journal_of_one_run_are_both_read(tmp_path: Path) -> None:
    path, make = tmp_path / "trace.db", Maker("run_b")
    async with TraceStore(path):
        pass
    spill = SpillFile(spill_path(path, "run_b"), 1_000_000)
    spill.append([make.started("req_1"), make.completed("req_1")])
    waiting = Waiting()
    waiting.add([make.started("req_2"), make.completed("req_2")])
    journal = Journal(journal_paths(spill.path), 1_000_000)
    journal.copy(waiting)
    spill.close()
    journal.close()
    assert len(leftovers(path)) == 2
    assert await of_calls(path) == 2


@pytest.fixture
def media(tmp_path: Path) -> Iterator[Medium]:
    with medium(tmp_path / "media") as made:
        yield made


@pytest.fixture
def read_only(trace: Path, media: Medium) -> Path:
    """A copy of the trace and its journals on media that can't be written."""
    for file in trace.parent.glob("trace.db*"):
        shutil.copy(file, media.folder)
    (media.folder / "home").mkdir()
    media.make_writable(False)
    return media.folder / "trace.db"


@pytest.mark.parametrize(
    "surface",
    first_is_quick([*SURFACES[:5], of_live_view, of_traces], "more readers of the same journal", quick=2),
    ids=lambda surface: surface.__name__,
)
async def test_late_events_on_read_only_media_are_read(
    read_only: Path, surface: Callable[[Path], Awaitable[int]]
) -> None:
    """The reader shows both answered calls and changes nothing on the media."""
    before = sorted(os.listdir(read_only.parent))
    assert await surface(read_only) == 2
    assert sorted(os.listdir(read_only.parent)) == before


async def test_late_events_that_cannot_be_read_are_counted(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store reports the number of these events and the names of their files."""

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    async with TraceStore.open_readonly(read_only) as reader:
        assert [row.status for row in await reader.calls()].count("completed") == 1
        assert reader.waiting.events > 0
        assert [file.name for file in reader.waiting.files] == [file.name for file in leftovers(read_only)]


@pytest.mark.parametrize("how", ["deleted", "forgotten"])
async def test_deleted_content_is_deleted_in_the_journals_of_the_dead(trace: Path, how: str) -> None:
    """Afterwards, no file next to the trace has the prompts, and the session is not restored."""
    async with await existing_store(trace) if how == "deleted" else TraceStore(trace) as store:
        if how == "deleted":
            assert await store.delete_session("ses_x")
        else:
            await store.forget_content(1 << 60)
    assert not any(b"Second" in file.read_bytes() for file in trace.parent.glob("trace.db*"))
    async with TraceStore.open_readonly(trace) as reader:
        assert await reader.saved_session("ses_x") is None


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as dsn:
        yield dsn


@pytest.mark.parametrize("how", first_is_quick(["writing", "sql", "readonly"], "the open of `sql`", quick=2))
async def test_readers_of_a_shared_trace_store_the_journal_of_the_dead(
    tmp_path: Path, shared: str, how: str
) -> None:
    path = tmp_path / "shared"
    left_behind(path, "exit", shared)
    store = PostgresStore(shared, path=path, readonly=how != "writing")
    if how == "sql":
        found = await store.sql("SELECT count(*) FROM calls WHERE status = 'completed'")
        assert found.rows == ((2,),)
    else:
        async with store:
            assert [row.status for row in await store.calls()] == ["completed"] * 2
    assert waiting_files(path) == []


async def test_a_shipper_ships_the_events_of_a_dead_process(trace: Path, tmp_path: Path, shared: str) -> None:
    async with PostgresStore(shared, path=tmp_path / "shared") as target:
        shipper = TraceShipper(trace, shared)
        await shipper.ship()
        await shipper.close()
        assert [row.status for row in await target.calls()] == ["completed"] * 2
