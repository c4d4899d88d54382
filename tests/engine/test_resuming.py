"""Stored sessions that are resumed: in the same process, in another, and after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AuthError, Message
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import (
    CallboardError,
    ConfigurationError,
    ImageBlock,
    MessageComplete,
    MessageStart,
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionTakenOver,
    StopReason,
    StreamLog,
    StreamReset,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolDefinition,
    TurnComplete,
    TurnEvent,
)
from callboard.engine import Engine, Limits, ModelChoice, Requirements, Session, Tool
from callboard.engine.routing.model_choice import Model, model_of
from callboard.engine.sessions.open import SessionState, configured
from callboard.tracestore import Capture, PriceTable, TraceStore
from callboard.tracestore.writing.content import bodies_of_setup, setup_of
from callboard.tracestore.writing.overflow import SpillFile

from ..support.engines import keeping, registry, requests_of
from ..support.present import present
from ..support.programs import CHECKOUT
from ..support.scripted import Say
from ..support.virtual_time import run_virtual, runs_on
from ..tracestore.trace_making import Maker

anyio_backend = runs_on("asyncio")

PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
WEATHER = ToolDefinition("weather", "Tells it.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.db"


def everything(path: Path) -> str:
    """The bytes of the trace file and of the files next to it, as text."""
    return "".join(each.read_bytes().decode("latin-1") for each in path.parent.iterdir())


async def test_a_session_continues_in_another_engine_without_a_loss(path: Path) -> None:
    """Ids, metadata, media and tool exchanges are restored, and the model gets all of them."""
    calls = Say("Let me see.", calls=[("weather", {"city": "Bonn"})])
    tool = Tool(WEATHER, lambda arguments: f"rain in {arguments['city']}")
    async with keeping(path, calls, Say("Rain."), Say("Yes.")) as engine:
        session = engine.session(
            "s:m", system_prompt="You are brief.", tools=[tool], session_id="ses_1", tags={"team": "a"}
        )
        await session.send([TextBlock("What is this?"), PICTURE])
        await session.send("Sure?")
        before = session.messages
    assert len(before) == 6
    async with keeping(path, Say("Still here.")) as engine:
        resumed = await engine.resume("ses_1", tools=[tool])
        assert (resumed.id, resumed.model, resumed.messages) == ("ses_1", "s:m", before)
        await resumed.send("And now?")
        state = engine._runtime.sessions.states["ses_1"]
        assert (state.system_prompt, state.tools, state.tags) == ("You are brief.", (tool,), {"team": "a"})
        (request,) = requests_of(engine)
        assert (request.system_prompt, [each.name for each in request.tools]) == ("You are brief.", ["weather"])
        after = resumed.messages
        assert request.messages == after[:7]
        await engine.flush()
        store = present(engine.store)
        (row,) = await store.sessions()
        assert (row.turns, row.calls, row.messages, row.resumable) == (3, 4, 8, True)
        assert await store.messages("ses_1") == list(after)
    assert after[:6] == before
    async with keeping(path) as engine:
        assert (await engine.resume("ses_1")).messages == after


async def test_resuming_creates_no_second_session(path: Path) -> None:
    """Only one creation is published. A session that is open can't be resumed."""
    async with keeping(path, Say("One."), Say("Two.")) as engine:
        session = engine.session("s:m", session_id="x")
        await session.send("First")
        with pytest.raises(CallboardError, match="already open"):
            await engine.resume("x")
        assert len(session.messages) == 2
        del session
        resumed = await engine.resume("x")
        await resumed.send("Second")
        await engine.flush()
        events = [envelope.data for envelope in await present(engine.store).events(topic="session.*")]
    assert sum(isinstance(event, SessionCreated) for event in events) == 1
    assert [event for event in events if isinstance(event, SessionConfigured)] == [
        SessionConfigured(history=0, begins=True),
        SessionConfigured(history=2),
    ]


async def test_without_capture_no_setup_is_published_and_nothing_can_be_resumed(path: Path) -> None:
    """The error names the missing option."""
    async with Engine(models=registry(Say("One.")), store=path) as engine:
        await engine.session("s:m", system_prompt="A secret.", session_id="x").send("First")
        await engine.flush()
        assert await present(engine.store).events(topic="session.configured") == []
        with pytest.raises(CallboardError, match="capture_content=True"):
            await engine.resume("x")


async def test_a_new_session_with_a_used_id_starts_empty(path: Path) -> None:
    """The new history replaces the stored one."""
    async with keeping(path, Say("One."), Say("Two."), Say("Three.")) as engine:
        session = engine.session("s:m", session_id="x")
        await session.send("First")
        await session.send("Second")
    async with keeping(path, Say("Again.")) as engine:
        session = engine.session("s:m", session_id="x")
        assert session.messages == ()
        await session.send("Hello?")
    async with keeping(path) as engine:
        assert [message.text for message in (await engine.resume("x")).messages] == ["Hello?", "Again."]


async def test_a_session_is_resumed_with_its_last_model(path: Path) -> None:
    """A host can pass another model. If the model is unknown here, resuming is an error and changes nothing."""
    async with keeping(path, models=registry(Say("One."), other=[Say("Two.")])) as engine:
        session = engine.session("s:m", session_id="x")
        await session.send("First")
        session.model = ["other:m", "s:m"]
        await session.send("Second")
    async with keeping(path, models=registry(other=[])) as engine:
        assert (await engine.resume("x")).model == ("other:m", "s:m")
        with pytest.raises(ConfigurationError, match="unknown"):
            await engine.resume("x", model="unknown")
    async with keeping(path, models=registry(third=[Say("Three.")])) as engine:
        with pytest.raises(ConfigurationError, match="other"):
            await engine.resume("x")
        resumed = await engine.resume("x", model="third:m")
        assert (await resumed.send("Third")).text == "Three."
        assert len(resumed.messages) == 6


async def test_a_redacted_system_prompt_must_be_passed(path: Path) -> None:
    """Resuming is refused without the prompt."""

    def redact(message: Message) -> Message | None:
        return None if message.role == "system" else message

    async with keeping(path, Say("One."), redact=redact) as engine:
        await engine.session("s:m", system_prompt="A secret.", session_id="x").send("First")
    async with keeping(path, redact=redact) as engine:
        with pytest.raises(CallboardError, match="system_prompt="):
            await engine.resume("x")
        resumed = await engine.resume("x", system_prompt="A secret.")
        assert len(resumed.messages) == 2
    assert "A secret." not in everything(path)


async def test_a_session_with_a_withheld_message_is_refused_with_the_reason(path: Path) -> None:
    """A hook that raises withholds the message, and does not stop the turn."""

    def redact(message: Message) -> Message | None:
        if message.text == "Second":
            raise RuntimeError("can't")
        return message

    async with keeping(path, Say("One."), Say("Two."), redact=redact) as engine:
        session = engine.session("s:m", session_id="x")
        await session.send("First")
        await session.send("Second")
    async with keeping(path) as engine:
        with pytest.raises(CallboardError, match=r"message 2 was not stored \(redaction failed: RuntimeError\)"):
            await engine.resume("x")


async def test_resumed_messages_show_the_current_costs(path: Path) -> None:
    """Another process has repriced the calls."""
    first, second = PriceTable.all_from_yaml(CHECKOUT / "examples" / "demo-prices.yaml")[:2]
    models = registry(**{"local-chat": [Say("One.")]})
    async with Engine(models=models, store=path, capture_content=True, prices=first) as engine:
        await engine.session("local-chat:m", session_id="x").send("First")
    async with TraceStore(path) as store:
        await store.reprice(second)
        (call,) = await store.calls()
    async with Engine(models=models, store=path) as engine:
        message = (await engine.resume("x")).messages[-1]
    assert (message.metadata.cost, message.metadata.cost.pricing_version) == (call.cost, second.version)


@pytest.mark.parametrize(
    "model", ["sonnet", ("sonnet", "llama"), ModelChoice(prefer="cheapest", among=("a", "b"))]
)
def test_the_model_choice_of_a_session_is_stored(model: Model) -> None:
    """The choice is a name, several names or a ModelChoice. Requirements and fallbacks are stored too."""
    requires = Requirements(capabilities=("tools",), min_context_tokens=5)
    state = SessionState("s", model, None, (), {}, options={"fallback": ["c"]}, requires=requires)
    digest, bodies = bodies_of_setup(configured(state).setup)
    setup = setup_of(bodies[digest])
    assert model_of(setup.model) == model
    assert msgspec.convert(setup.requires, Requirements) == requires
    assert setup.fallback == ("c",)


def test_a_hook_that_can_never_work_is_refused(path: Path) -> None:
    """A hook needs capture, and must not be a coroutine function."""

    async def later(message: Message) -> Message:
        return message

    with pytest.raises(ConfigurationError, match="capture_content=True"):
        Engine(models=registry(), store=path, redact=lambda message: message)
    with pytest.raises(ConfigurationError, match="sync function"):
        Engine(models=registry(), store=path, capture_content=True, redact=later)  # type: ignore[arg-type]


async def test_the_spill_file_of_a_dead_process_is_part_of_the_history(path: Path) -> None:
    make = Maker()
    messages = [Message.user("First"), Message.assistant("One.")]
    appended = [SessionMessageAppended(position=at, message=message) for at, message in enumerate(messages)]
    events = [configured(SessionState("x", "s:m", None, (), {})), *appended]
    spill = SpillFile(path.with_name("trace.db.spill-run_dead.jsonl"), 10**6)
    spill.append([Capture().apply(make(event, session_id="x")) for event in events])
    spill.close()
    async with keeping(path) as engine:
        assert (await engine.resume("x")).messages == tuple(messages)


async def test_a_session_whose_messages_are_all_missing_is_refused(path: Path) -> None:
    """The session has a call and settings, so an empty history would be a silent loss."""
    async with keeping(path, Say("One.")) as engine:
        await engine.session("s:m", session_id="x").send("First")
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("DELETE FROM session_messages")
        file.execute("UPDATE session_setups SET history = 0")
        file.commit()
    async with keeping(path) as engine:
        with pytest.raises(CallboardError, match="its messages are not stored"):
            await engine.resume("x")


async def test_a_session_without_a_reply_is_resumed_empty(path: Path) -> None:
    """The first turn failed and left no message."""
    async with keeping(path, Say(fails=AuthError("no"))) as engine:
        with pytest.raises(AuthError):
            await engine.session("s:m", session_id="x").send("First")
    async with keeping(path) as engine:
        assert (await engine.resume("x")).messages == ()


# -- Two engines with one session.


async def test_the_previous_engine_gets_an_error_in_its_next_turn(path: Path) -> None:
    """The engine that resumed last continues. The other engine makes no call, and can resume the session again."""
    async with keeping(path, Say("One."), Say("Three.")) as one, keeping(path, Say("Two.")) as two:
        first = one.session("s:m", session_id="x")
        await first.send("First")
        await one.flush()
        second = await two.resume("x")
        await second.send("Second")
        with pytest.raises(SessionTakenOver, match=f"'x' was resumed by another engine .{two.bus.run_id}"):
            await first.send("Mine")
        assert [message.text for message in first.messages] == ["First", "One."]
        await two.flush()
        back = await one.resume("x")
        assert (await back.send("Third")).text == "Three."
        await one.flush()
        with pytest.raises(SessionTakenOver):
            await second.send("Fourth")
        stored = [message.text for message in await present(one.store).messages("x")]
    assert stored == ["First", "One.", "Second", "Two.", "Third", "Three."]


async def test_a_turn_in_progress_during_a_takeover_is_stored_separately(path: Path) -> None:
    """Both replies are stored, each in a session that can be resumed."""
    going, go = anyio.Event(), anyio.Event()

    async def wait() -> None:
        going.set()
        await go.wait()

    async with keeping(path, Say("One."), Say("Mine.", pause=wait)) as one, keeping(path, Say("Yours.")) as two:
        first = one.session("s:m", session_id="x")
        await first.send("First")
        await one.flush()
        turn = asyncio.ensure_future(first.send("Second"))
        await going.wait()
        second = await two.resume("x")
        await second.send("Second, too")
        await two.flush()
        go.set()
        await turn
        await one.flush()
        branch = f"x.{one.bus.run_id}"
        with pytest.raises(SessionTakenOver, match=branch):
            await first.send("Third")
    async with keeping(path) as engine:
        kept, beside = await engine.resume("x"), await engine.resume(branch)
        assert [message.text for message in kept.messages] == ["First", "One.", "Second, too", "Yours."]
        assert [message.text for message in beside.messages] == ["First", "One.", "Second", "Mine."]


async def test_conversations_of_two_concurrent_engines_are_never_mixed(path: Path) -> None:
    """In any order of the commits, the stored history is one of the two conversations."""
    async with keeping(path, Say("One.")) as engine:
        await engine.session("s:m", session_id="x").send("First")
    async with keeping(path, *[Say("a")] * 4) as one, keeping(path, *[Say("b")] * 4) as two:
        sessions = [await one.resume("x"), await two.resume("x")]

        async def talk(session: Session, name: str) -> None:
            for number in range(4):
                with contextlib.suppress(SessionTakenOver):
                    await session.send(f"{name}{number}")

        await asyncio.gather(*map(talk, sessions, "ab"))
    async with TraceStore.open_readonly(path) as store:
        texts = [message.text for message in await store.messages("x")]
    assert texts == ["First", "One.", "b0", "b", "b1", "b", "b2", "b", "b3", "b"]


async def test_an_imported_session_replaces_the_stored_one(path: Path) -> None:
    """The importing engine owns the session, and the former owner gets an error."""
    async with keeping(path, Say("One."), Say("Two.")) as one, keeping(path, Say("Mine.")) as two:
        first = one.session("s:m", session_id="x")
        await first.send("First")
        document = first.export()
        await first.send("Second")
        await one.flush()
        again = await two.import_session(document)
        assert (await again.send("Instead")).text == "Mine."
        await two.flush()
        with pytest.raises(SessionTakenOver):
            await first.send("Third")
        stored = [message.text for message in await present(two.store).messages("x")]
    assert stored == ["First", "One.", "Instead", "Mine."]


# A late reader gets all events, even if the stream's log was folded.

FOLDED_AT_ONCE = Limits(retain_streams_seconds=0)
A_TEXT = ["message.start", "text.delta", "message.complete", "step.finish"]


def folding(*replies: Say) -> Engine:
    """An engine that folds each stream at its end."""
    return Engine(models=registry(*replies), trace=False, limits=FOLDED_AT_ONCE)


async def over(session: Session) -> str:
    """The id of a completed stream with a folded log."""
    async with session.stream("Hi") as turn:
        await turn.message()
        turn.detach()
    return turn.stream_id


async def test_a_folded_turn_is_read_as_events() -> None:
    """The text is one delta, for the turn's own iterator, a late reader and an attached reader."""
    async with folding(Say("Hel", "lo"), Say("Hel", "lo")) as engine:
        async with engine.session("s:m").stream("Hi") as turn:
            await turn.message()
            await anyio.wait_all_tasks_blocked()
            assert [event.type async for event in turn] == [*A_TEXT, "turn.complete"]
        late = [event async for event in engine.attach(turn.stream_id)]
        async with engine.stream("s:m", "Hi") as reply:
            await reply.response()
            viewed = [event.text async for event in reply.reader() if isinstance(event, TextDelta)]
            attached = [e.text async for e in engine.attach(reply.stream_id) if isinstance(e, TextDelta)]
    assert [event.type for event in late] == [*A_TEXT, "turn.complete"]
    assert [event.text for event in late if isinstance(event, TextDelta)] == viewed == attached == ["Hello"]


async def test_a_reader_that_continues_in_a_folded_part_gets_a_reset() -> None:
    """The reset has every event, because the folded part has no separate events."""
    async with folding(Say("Hel", "lo")) as engine:
        stream_id = await over(engine.session("s:m"))
        whole = engine.attach(stream_id)
        seqs = [whole.seq async for _ in whole]
        for seq in seqs[:-1]:
            (reset,) = [event async for event in engine.attach(stream_id, from_seq=seq + 1)]
            assert isinstance(reset, StreamReset)
        assert [event async for event in engine.attach(stream_id, from_seq=seqs[-1] + 1)] == []


@given(
    texts=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8),
    cut=st.integers(0, 12),
    whole=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_reader_from_the_start_gets_every_text_once(texts: list[str], cut: int, whole: bool) -> None:
    complete = MessageComplete((TextBlock("".join(texts)),), StopReason.END_TURN, "end", TokenUsage(), "m")
    deltas = [TextDelta(text, 0, "m") for text in texts]
    events = [MessageStart("m", "model", "p"), *deltas, complete, TurnComplete("completed")]
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events[:cut])
    log.fold()
    log.extend(events[cut:])
    log.close()
    if whole:
        log.fold()

    async def read() -> list[tuple[int, TurnEvent | StreamReset[TurnEvent]]]:
        reader = log.reader(unfold=spelled_out)
        return [(reader.seq, event) async for event in reader]

    found = run_virtual(read)
    seqs = [seq for seq, _ in found]
    assert "".join(event.text for _, event in found if isinstance(event, TextDelta)) == "".join(texts)
    assert [event for _, event in found if not isinstance(event, TextDelta)] == [events[0], *events[-2:]]
    assert (seqs, seqs[-1]) == (sorted(seqs), len(events) - 1)
