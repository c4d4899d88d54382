"""After a session is deleted, no file contains its user's messages or identity."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from anyio import to_thread

from callboard.adapters import InvalidRequestError, ToolDefinition
from callboard.bus import (
    AdapterError,
    CallboardError,
    Envelope,
    Event,
    Lossless,
    Subscription,
    SupervisorEscalated,
    UnknownStream,
)
from callboard.bus.streams.events import MessageComplete, TextDelta, TurnComplete, TurnEvent
from callboard.engine import Engine, Session, Tool, ToolContext
from callboard.engine.cli.command_line import main
from callboard.tracestore import CallFilter, PostgresStore, Store, TraceStore
from callboard.tracestore.codec import encode_lines
from tests.support.depth import first_is_quick

from ..support.engines import registry, running
from ..support.postgres_server import why_not
from ..support.present import present
from ..support.programs import ended
from ..support.scripted import Say
from ..support.virtual_time import FakeClock, runs_on
from .toy_engines import check_ends

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")
MARK = "Zanzibar"
"""Each text that must be deleted contains this word and the name of its place."""

PLACES = (
    *("name", "title", "tag", "tagname", "system", "prompt", "reply", "argument", "toolname", "progress",
        "result"),
    *("toolerror", "error", "plainerror", "host"),
)  # fmt: skip


def mark(place: str) -> str:
    assert place in PLACES
    return f"{MARK}_{place}_"


class HostNote(Event, frozen=True, kw_only=True, tag="host.note"):
    """An event of the host."""

    text: str


async def look_up(arguments: dict[str, str], context: ToolContext) -> str:
    context.progress(mark("progress"))
    if arguments.get("fails"):
        raise ValueError(mark("toolerror"))
    return mark("result")


TOOL = Tool(ToolDefinition(mark("toolname"), "Looks something up."), look_up)  # type: ignore[arg-type]


def replies() -> list[Say]:
    """A reply with tool calls, a text reply, a failed call, a reply to another person, and a failed plain call."""
    calls = [(mark("toolname"), {"who": mark("argument")}), (mark("toolname"), {"fails": "yes"})]
    refused = [InvalidRequestError(f"this prompt is refused: {mark(place)}") for place in ("error", "plainerror")]
    return [
        Say("Let me see.", calls=calls),
        Say(mark("reply")),
        Say(fails=refused[0]),
        Say("Hello, another."),
        Say(fails=refused[1]),
    ]


async def a_person_s_session(engine: Engine) -> str:
    """Create a session that has the mark in every place. Returns its id."""
    session = engine.session(
        "s:m",
        name=mark("name"),
        tags={"person": mark("tag"), mark("tagname"): "yes"},
        system_prompt=mark("system"),
        tools=[TOOL],
    )
    await session.send(mark("prompt"))
    session.rename(mark("title"))
    with pytest.raises(InvalidRequestError):
        await session.send(mark("prompt"))
    engine.bus.publish(HostNote(text=mark("host")), session_id=session.id)
    return session.id


async def everything(store: Store) -> str:
    """Return all rows of all tables of a trace in PostgreSQL, as text."""
    found = await store.sql(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        " AND table_type = 'BASE TABLE'"
    )
    texts = []
    for (table,) in found.rows:
        rows = await store.sql(f'SELECT CAST(t AS text) FROM "{table}" AS t', limit=100_000)
        texts += [str(row) for row in rows.rows]
    bodies = await store.sql("SELECT convert_from(body, 'UTF8') FROM content", limit=100_000)
    return "\n".join([*texts, *(str(row) for row in bodies.rows)])


def in_files(folder: Path) -> set[str]:
    """Return the places whose mark is in the name or the data of any file below a folder."""
    found = set()
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found |= places_in(str(path.relative_to(folder)) + data.decode("latin-1"))
    return found


def places_in(text: str) -> set[str]:
    return set(re.findall(f"{MARK}_([a-z]+)_", text))


async def test_a_trace_file_has_nothing_of_a_deleted_session(tmp_path: Path) -> None:
    """Neither the log and the journals of the running engine nor the closed file have a mark."""
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        other = engine.session("s:m", name="Another", tags={"person": "another"})
        await other.send("Hi")
        streams = [each.stream_id for each in engine.streams.streams()]
        await engine.flush()
        assert in_files(tmp_path) >= {"name", "tag", "tagname", "system", "prompt", "error", "argument", "host"}
        assert await engine.delete_session(session_id)
        assert in_files(tmp_path) == set()
        kept = [stream_id for stream_id in streams if stream_id in engine.streams]
        assert len(kept) == 1
        with pytest.raises(UnknownStream):
            engine.attach(streams[0])
    assert in_files(tmp_path) == set()
    async with TraceStore(path) as store:
        rows = (await store.calls(CallFilter(session_id=session_id)))[::-1]
        assert [row.status for row in rows] == ["completed", "completed", "failed"]
        assert [row.error_class for row in rows] == [None, None, "invalid_request"]
        assert [row.usage is not None and row.usage.output_tokens for row in rows[:2]] == [5, 5]
        (session,) = await store.sessions(None)
        assert (session.session_id, session.name, session.tags) == (other.id, "Another", {"person": "another"})
        events = await store.events(session_id=session_id, limit=None)
        assert {"session.created", "llm.call_failed", "tool.finished", "host.note"} <= {e.topic for e in events}
        assert all(e.tags is None for e in events)
        assert await store.check() == []


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_trace_in_postgresql_has_nothing_of_a_deleted_session(postgres_dsn: str, tmp_path: Path) -> None:
    place = PostgresStore(postgres_dsn, path=tmp_path / "trace")
    async with Engine(models=registry(*replies()), store=place, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        await engine.session("s:m", name="Another").send("Hi")
        await engine.flush()
        assert engine.store is not None
        assert places_in(await everything(engine.store)) >= {"name", "tag", "prompt", "error", "argument", "host"}
        assert await engine.delete_session(session_id)
        left = await everything(engine.store)
        assert places_in(left) == set()
        assert "Another" in left
        assert len(await engine.store.calls(CallFilter(session_id=session_id))) == 3
    assert in_files(tmp_path) == set()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("is_shipped_before", [True, False])
async def test_a_shipped_copy_has_nothing_of_a_deleted_session(
    is_shipped_before: bool, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    # On a busy machine, the engine could end before all rows are shipped.
    monkeypatch.setattr("callboard.engine.runtime.lifecycle.LAST_SHIPPING_SECONDS", 40.0)
    options: dict[str, Any] = {"ship": "before_reply"} if is_shipped_before else {}
    models = registry(*replies())
    async with Engine(
        models=models, store=tmp_path / "trace.db", ship_to=postgres_dsn, capture_content=True, **options
    ) as engine:
        session_id = await a_person_s_session(engine)
        await engine.session("s:m", name="Another").send("Hi")
        assert await engine.delete_session(session_id)
    async with PostgresStore(postgres_dsn, path=tmp_path / "shared") as store:
        left = await everything(store)
        assert places_in(left) == set()
        assert "Another" in left
        assert len(await store.calls(CallFilter(session_id=session_id))) == 3
    assert in_files(tmp_path) == set()


@pytest.mark.parametrize("kind", ["file", "server"])
async def test_forgetting_removes_names_and_errors(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The content of plain calls is removed, too. Tags and the host's own events stay, because budgets and reports
    use them.
    """
    store: Store | Path = tmp_path / "trace.db"
    if kind == "server":
        if (reason := why_not()) is not None:
            pytest.skip(reason)
        store = PostgresStore(request.getfixturevalue("postgres_dsn"), path=tmp_path / "trace")
    async with Engine(models=registry(*replies()), store=store, capture_content=True) as engine:
        await a_person_s_session(engine)
        await engine.generate("s:m", "Hi", tags={"person": mark("tag")})
        with pytest.raises(InvalidRequestError):
            await engine.generate("s:m", mark("prompt"))
        await engine.flush()
        assert engine.store is not None
        await engine.store.forget_content(2**62)
        if kind == "server":
            assert places_in(await everything(engine.store)) == {"tag", "tagname", "host"}
    if kind == "file":
        assert in_files(tmp_path) == {"tag", "tagname", "host"}


async def test_deleting_many_sessions_clears_the_space_between_other_rows(tmp_path: Path) -> None:
    """A row that grows moves others to another page. Deletion also clears their old places."""
    chance = random.Random(2)

    async def flush() -> None:  # so that some calls are stored at their start, and their rows grow at their end
        if chance.random() < 0.1:
            await engine.flush()

    script = [Say(mark("reply") if number % 2 else "Another.", pause=flush) for number in range(300)]
    async with Engine(models=registry(*script), store=tmp_path / "trace.db", capture_content=True) as engine:
        sessions = [engine.session("s:m", name="Another") for _ in range(4)]
        persons = [engine.session("s:m", name=mark("name"), tags={"a": mark("tag")}) for _ in range(4)]
        for number in range(100):
            await sessions[number % 4].send("Another " * 30)
            await flush()
            await persons[number % 4].send(mark("prompt") * 30)
            await flush()
        await engine.flush()
        for session in persons:
            assert await engine.delete_session(session.id)
        assert in_files(tmp_path) == set()


async def test_the_journal_of_a_dead_process_does_not_restore_a_session(tmp_path: Path) -> None:
    """Before the deletion, the journal of the dead process is written to the trace. A later start does not restore
    the session.
    """
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        await engine.flush()
        events = await engine.store.events(session_id=session_id, limit=None)  # type: ignore[union-attr]
    left = path.with_name("trace.db.spill-run_lost.jsonl")
    left.write_bytes(encode_lines([msgspec.structs.replace(each, run_id="run_lost") for each in events]))
    async with TraceStore(path) as store:
        assert await store.delete_session(session_id)
    assert in_files(tmp_path) == set()
    async with Engine(models=registry(), store=path, capture_content=True):
        pass
    assert in_files(tmp_path) == set()


async def test_the_command_deletes_the_lines_of_the_chat_s_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
    (tmp_path / "chat-history").write_text(f"\n# 2026-01-01\n+Hello\n+there\n\n# 2026-01-02\n+{mark('prompt')}\n")
    assert await to_thread.run_sync(main, ["sessions", session_id, "--delete"]) == 0
    assert capsys.readouterr().out.startswith(f"Deleted {session_id}")
    assert in_files(tmp_path) == set()
    assert "+Hello\n+there\n" in (tmp_path / "chat-history").read_text()


# An actor that the engine needs crashes five times in a row: the engine ends in order and reports the reason.
VITAL = ("trace writer", "availability", "session manager")


async def crash_until_the_end(engine: Engine, actor: str) -> None:
    """Crash an actor each time that it runs, until its supervisor gives up and the engine ends."""
    hosted = engine._host.life
    assert hosted is not None
    ref = present(hosted.supervisor).child(actor)
    with anyio.fail_after(10):
        while hosted.state == "running":
            if ref.running:
                ref.tell("no actor understands this")
            await anyio.lowlevel.checkpoint()


async def hold() -> None:
    await asyncio.sleep(60)


class Talk:
    """A streamed and a non-streamed call that never end on their own, and an observer of the streamed one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = [engine.session("s:m"), engine.session("s:m")]
        self.seen: list[TurnEvent] = []
        self.ends: list[BaseException | None] = []

    async def streamed(self, session: Session) -> None:
        async with session.stream("Hi") as turn:
            async for event in turn:
                self.seen.append(event)

    async def until_under_way(self, events: Subscription) -> list[Envelope]:
        came: list[Envelope] = []
        while sum(envelope.topic == "llm.call_started" for envelope in came) < 2 or not self.seen:
            await anyio.sleep(0.001)
            came += events.take()
        return came

    async def run(self, events: Subscription, actor: str) -> list[Envelope]:
        """Run both calls until the engine ends. Returns all published events."""
        tasks = [
            asyncio.create_task(self.streamed(self.sessions[0])),
            asyncio.create_task(self.sessions[1].send("Hi")),
        ]
        came = await self.until_under_way(events)
        await crash_until_the_end(self.engine, actor)
        with anyio.fail_after(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        self.ends = [end for end in ends if isinstance(end, BaseException)]
        return came + [envelope async for envelope in events]  # the subscription ends with the bus


@pytest.mark.parametrize("actor", VITAL)
async def test_an_engine_ends_in_order_if_a_vital_actor_keeps_crashing(actor: str, tmp_path: Path) -> None:
    """Every call has its end on the bus, in its stream and in the store. Callers get the reason as an error."""
    path, before = tmp_path / "trace.db", asyncio.all_tasks()
    says = [Say("some text", "never", pause=OnlyFirst()) for _ in range(2)]
    engine = Engine(models=registry(*says), store=path, clock=FakeClock(randomness=0.0))
    events = engine.bus.subscribe(">", policy=Lossless(), name="test")
    await engine.start()
    talk = Talk(engine)
    came = await talk.run(events, actor)

    assert check_ends(came) == 2
    assert len(talk.ends) == 2, "both turns end with an error"
    assert all(isinstance(end, CallboardError) for end in talk.ends)
    assert isinstance(talk.seen[-1], TurnComplete)
    assert [event.text for event in talk.seen if isinstance(event, TextDelta)] == ["some text"]
    assert sum(isinstance(event, MessageComplete) for event in talk.seen) == 1
    topics = Counter(envelope.topic for envelope in came)
    assert (topics["actor.crashed"], topics["actor.restarted"], topics["actor.escalated"]) == (5, 4, 1)

    reason = f"{actor} ended 5 times in a row"
    with pytest.raises(SupervisorEscalated, match=reason):
        await engine.aclose()
    with pytest.raises(CallboardError, match=rf"this engine is closed \({reason}.*Create a new one"):
        await talk.sessions[0].send("again")
    assert asyncio.all_tasks() == before
    async with TraceStore.open_readonly(path) as store:
        ends = {row.status for row in await store.calls(limit=None)}
        stored = [envelope.seq for envelope in await store.events(limit=None)]
    assert ends == {"cancelled" if actor == "session manager" else "failed"}  # the session manager ends its turns
    assert stored == [envelope.seq for envelope in came], "the store has every event"


class OnlyFirst:
    """A pause that lets only the first step of a reply pass."""

    def __init__(self) -> None:
        self.steps = 0

    async def __call__(self) -> None:
        self.steps += 1
        if self.steps > 1:
            await hold()


async def test_an_adapter_that_keeps_crashing_affects_no_other_provider() -> None:
    """The adapter's calls fail and its provider is unavailable as adapter_crashed. Other providers continue. A
    probe restarts the adapter.
    """
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await hold()

    async with running(Say("never", pause=never), Say("back"), other=[Say("fine")]) as (engine, events):
        failing = asyncio.create_task(engine.session("s:m").send("Hi"))
        with anyio.fail_after(30):
            await asked.wait()
            ref = engine._runtime.adapters["s"].ref
            while engine.availability.state("s") != "unavailable":
                if ref.running:
                    ref.tell("no adapter understands this")
                await anyio.sleep(0.01)
        with pytest.raises(AdapterError, match="actor stopped"):
            await failing
        (row,) = engine.availability.snapshot()
        assert (row.provider, row.model, row.reason) == ("s", None, "adapter_crashed")
        assert (await engine.session("other:m").send("Hi")).text == "fine"
        assert not ref.running
        assert (await engine.session("s:m").send("Hi")).text == "back"  # the only model, so the call is the probe
        assert engine.availability.snapshot() == ()
        assert check_ends(events.take()) == 3


PROGRAM = """
import asyncio, logging, sys
from pathlib import Path
from callboard import Engine
from tests.support.engines import registry
from tests.faults.test_deleting_a_person import crash_until_the_end
from tests.support.scripted import Say
from tests.support.virtual_time import FakeClock, runs_on

logging.basicConfig(stream=sys.stdout)

async def main():
    global engine
    engine = Engine(models=registry(Say("Hello")), store=Path(sys.argv[1]), clock=FakeClock(randomness=0.0))
    await engine.session("s:m").send("Hi")
    await crash_until_the_end(engine, sys.argv[2])
    print("over", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("actor", first_is_quick(VITAL, "a process for each actor"))
def test_the_interpreter_ends_after_an_engine_that_gave_up(actor: str, tmp_path: Path) -> None:
    """The engine is not closed and is still referenced. stderr is empty, and every event is stored."""
    process = ended(PROGRAM, tmp_path / "trace.db", actor, timeout=30)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.endswith("over\n")
    assert "supervisor.escalated" in process.stdout
