"""Readers of a trace see the events that dead processes left in journals and spill files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

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


def lines(path: Path, *command: str) -> list[str]:
    """Return the lines of JSON that a command prints about a trace."""
    done = call(*command, "--db", str(path), home=path.parent / "home", exits=0)
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
    return [json.loads(line)["status"] for line in lines(path, "traces", "--json")].count("completed")


async def of_logs(path: Path) -> int:
    return len([line for line in lines(path, "logs", "--json") if '"assistant"' in line])


async def of_cost_command(path: Path) -> int:
    return sum(json.loads(line)["calls"] for line in lines(path, "cost", "--json"))


async def of_sql_command(path: Path) -> int:
    statement = "SELECT count(*) AS n FROM calls WHERE status = 'completed'"
    return int(json.loads(lines(path, "sql", statement, "--json")[0])["n"])


async def of_statistics_command(path: Path) -> int:
    return sum(json.loads(line)["completed"] for line in lines(path, "stats", "--json"))


async def of_sessions_command(path: Path) -> int:
    return sum(json.loads(line)["calls"] for line in lines(path, "sessions", "--json"))


async def of_export(path: Path) -> int:
    target = path.parent / "calls.jsonl"
    call("export", str(target), "--format", "jsonl", "--db", str(path), home=path.parent / "home", exits=0)
    return target.read_text().count('"completed"')


async def of_backup(path: Path) -> int:
    target = path.parent / "copy.db"
    await TraceStore.open_readonly(path).backup(target)
    return await of_calls(target)


SURFACES: tuple[Callable[[Path], Awaitable[int]], ...] = (
    *(of_calls, of_costs, of_sessions, of_events, of_unopened_sql, of_writing_store, of_live_view),
    *(of_traces, of_logs, of_cost_command, of_sql_command, of_statistics_command, of_sessions_command),
    *(of_export, of_backup),
)


@pytest.mark.parametrize(
    "surface",
    first_is_quick(SURFACES, "more readers of the same journal", quick=5),
    ids=lambda surface: surface.__name__,
)
async def test_each_reader_shows_the_last_answer_of_a_dead_process(
    trace: Path, surface: Callable[[Path], Awaitable[int]]
) -> None:
    """The reader shows both answered calls, and a second read shows the same. The journal is gone."""
    assert await surface(trace) == 2
    assert waiting_files(trace) == []
    assert await of_calls(trace) == 2


@pytest.mark.parametrize("ending", first_is_quick(["exit", "terminate"], "another end of the process"))
async def test_the_journals_of_two_dead_processes_are_read(tmp_path: Path, ending: str) -> None:
    """A reader stores the events of both journals."""
    path = tmp_path / "trace.db"
    left_behind(path, "again")
    left_behind(path, ending)
    assert await of_calls(path) == 4


async def test_the_journal_of_a_living_writer_is_not_changed(tmp_path: Path) -> None:
    """A reader does not change the journal. After the writer's death, a reader that is already open shows its
    events.
    """
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
    """The incomplete last line is skipped. The lines before it are read."""
    (journal,) = (file for file in waiting_files(trace) if file.stat().st_size)
    with journal.open("ab") as file:
        file.write(journal.read_bytes().splitlines()[-1][:40])
    assert await of_calls(trace) == 2


async def test_a_spill_file_and_a_journal_of_one_run_are_both_read(tmp_path: Path) -> None:
    """The reader shows the call of the spill file and the call of the journal."""
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


@pytest.mark.parametrize(
    "surface",
    first_is_quick(
        [*SURFACES[:5], of_live_view, of_traces, of_sql_command], "more readers of the same journal", quick=2
    ),
    ids=lambda surface: surface.__name__,
)
async def test_late_events_on_read_only_media_are_merged(
    trace: Path, media: Medium, surface: Callable[[Path], Awaitable[int]]
) -> None:
    """The reader shows both answered calls and changes nothing on the media."""
    for file in trace.parent.glob("trace.db*"):
        shutil.copy(file, media.folder)
    (media.folder / "home").mkdir()
    media.make_writable(False)
    before = sorted(os.listdir(media.folder))
    assert await surface(media.folder / "trace.db") == 2
    assert sorted(os.listdir(media.folder)) == before


async def test_events_that_can_be_neither_stored_nor_merged_are_counted(
    trace: Path, media: Medium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store reports the number of these events and the names of their files."""
    for file in trace.parent.glob("trace.db*"):
        shutil.copy(file, media.folder)
    (media.folder / "home").mkdir()
    media.make_writable(False)
    path = media.folder / "trace.db"

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    async with TraceStore.open_readonly(path) as reader:
        assert [row.status for row in await reader.calls()].count("completed") == 1
        assert reader.waiting.events > 0
        assert [file.name for file in reader.waiting.files] == [file.name for file in leftovers(path)]


async def test_deleting_a_session_deletes_it_from_the_journals_of_the_dead(trace: Path) -> None:
    """After the deletion, no file next to the trace has the prompts, and the session is not restored."""
    async with await existing_store(trace) as store:
        assert await store.delete_session("ses_x")
    assert not any(b"Second" in file.read_bytes() for file in trace.parent.glob("trace.db*"))
    async with TraceStore.open_readonly(trace) as store:
        assert await store.saved_session("ses_x") is None


async def test_forgetting_content_forgets_it_in_the_journals_of_the_dead(trace: Path) -> None:
    """Afterwards, no file next to the trace has the prompts."""
    store = TraceStore(trace)
    await store.open()
    try:
        await store.forget_content(1 << 60)
    finally:
        await store.close()
    assert not any(b"Second" in file.read_bytes() for file in trace.parent.glob("trace.db*"))


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty database."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.database() as dsn:
        yield dsn


@pytest.mark.parametrize("how", ["readonly", "sql", "writing"])
async def test_readers_of_a_shared_trace_store_the_journal_of_a_dead_process(
    tmp_path: Path, shared: str, how: str
) -> None:
    """The reader shows both answered calls, and the journal is gone."""
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
    """The shared store has both answered calls."""
    async with PostgresStore(shared, path=tmp_path / "shared") as target:
        shipper = TraceShipper(trace, shared)
        await shipper.ship()
        await shipper.close()
        assert [row.status for row in await target.calls()] == ["completed"] * 2
