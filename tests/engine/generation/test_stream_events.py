"""The properties of a stream before its first event, while it arrives, after its end, and after an early exit.

The `cost` of an error is also tested, for every way to make a call.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from decimal import Decimal
from typing import Any, TypeAlias

import pytest

from callboard import SyncStreamResult, stream_sync
from callboard.adapters import (
    AdapterError,
    CancelledError,
    CanonicalResponse,
    Message,
    Role,
    ServerError,
    StopReason,
    StreamEvent,
    TextBlock,
)
from callboard.adapters.replies.whole import whole_events
from callboard.bus import CallboardError, ContentBlock, StreamReset
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
    fold,
)
from callboard.bus.values.content import (
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import TokenUsage
from callboard.engine import Engine, ObjectStream, Requirements, StreamAccumulator, StreamResult, TurnStream
from callboard.engine.conversation.turn import Turn
from callboard.engine.sessions.session import Session
from callboard.tracestore import PriceRow, PriceTable
from cassettes.record import CONVERSATIONS, FOLDER, replaying_adapter

from ...support.engines import registry, running
from ...support.scripted import Say

PRICES = PriceTable.from_rows([PriceRow(model=f"{name}:*", input=9_000_000, output=9_000_000) for name in "st"])
Any_Stream: TypeAlias = StreamResult | TurnStream | ObjectStream[Any]
Open: TypeAlias = Callable[[Engine], Any_Stream]
JSON = ('{"a', 'ge": 3}')


def a_function(engine: Engine) -> Any_Stream:
    return engine.stream("s:m", "Hi")


def a_session(engine: Engine) -> Any_Stream:
    return engine.session("s:m").stream("Hi")


def an_object(engine: Engine) -> Any_Stream:
    return engine.stream_object("s:m", "Hi", schema=dict[str, int])


OPEN: list[Open] = [a_function, a_session, an_object]


@asynccontextmanager
async def priced(*replies: Say) -> AsyncIterator[Engine]:
    async with running(*replies, prices=PRICES) as (engine, _):
        yield engine


async def first_text(stream: Any_Stream) -> None:
    await anext(aiter(stream.text_stream))


@pytest.mark.parametrize("open_", OPEN)
async def test_a_stream_has_its_cost_at_any_time(open_: Open) -> None:
    """The cost is zero at first, then an estimate, and then the reported cost, which `result()` has too."""
    gate = asyncio.Event()
    steps = iter(range(99))

    async def pause() -> None:
        if next(steps) >= 2:
            await gate.wait()

    async with priced(Say(*JSON, pause=pause)) as engine:
        stream = open_(engine)
        assert (stream.usage, stream.cost.usd, stream.model, stream.routing) == (TokenUsage(), 0, None, None)
        assert (stream.warnings, stream.status) == ((), None)
        async with stream:
            await first_text(stream)
            assert stream.usage.output_tokens
            assert stream.cost.usd
            assert (stream.model, stream.status) == ("s:m", None)
            assert stream.routing.model == "s:m"
            gate.set()
            result = await stream.result()
        assert (stream.usage, stream.cost) == (result.total_usage, result.total_cost)
        assert (stream.model, stream.routing, stream.status) == (result.model, result.routing, "completed")
        assert stream.warnings == result.warnings


@pytest.mark.parametrize("open_", OPEN)
@pytest.mark.parametrize("way", ["left", "cancelled", "failed"])
async def test_a_stream_that_did_not_complete_has_its_cost(open_: Open, way: str) -> None:
    """The part that arrived is counted, and `status` is failed or cancelled."""

    async def pause() -> None:
        if way != "failed" and next(steps) >= 2:
            await asyncio.Event().wait()

    steps = iter(range(99))
    fails = ServerError("broken") if way == "failed" else None
    async with priced(Say(*JSON, fails=fails, pause=pause)) as engine:
        stream = open_(engine)
        error: AdapterError | None = None
        async with stream:
            await first_text(stream)
            if way == "cancelled":
                await stream.cancel()
            if way != "left":
                with pytest.raises(AdapterError) as raised:
                    await stream.result()
                error = raised.value
        assert stream.status == ("failed" if way == "failed" else "cancelled")
        assert stream.usage.output_tokens
        assert stream.cost.usd
        assert (stream.model, stream.routing is not None) == ("s:m", True)
        if error is not None:
            assert (error.cost, error.usage) == (stream.cost, stream.usage)
            assert isinstance(error, ServerError if way == "failed" else CancelledError)


@pytest.mark.parametrize("open_", OPEN)
async def test_a_stream_that_never_started_costs_nothing(open_: Open) -> None:
    async with priced() as engine:
        stream = open_(engine)
        await stream.aclose()
        assert (stream.usage, stream.cost.usd, stream.model, stream.status) == (TokenUsage(), 0, None, "cancelled")


def test_a_sync_stream_has_the_same_properties() -> None:
    """The properties can be read in another thread than the call's."""
    engine = Engine(models=registry(Say(*["word "] * 50)), trace=False, prices=PRICES)
    with stream_sync("s:m", "Hi", engine=engine) as stream:
        assert isinstance(stream, SyncStreamResult)
        assert stream.status is None
        next(iter(stream.text_stream))
        assert stream.model == "s:m"
    assert stream.usage.output_tokens
    assert stream.cost.usd
    assert stream.routing is not None
    assert stream.warnings == ()
    assert stream.status in ("completed", "cancelled")  # The reply can arrive completely before the early exit.


# -- Errors.

Ask: TypeAlias = Callable[[Engine], Awaitable[object]]
ASK: dict[str, Ask] = {
    "generate": lambda engine: engine.generate("s:m", "Hi"),
    "stream": lambda engine: engine.stream("s:m", "Hi").result(),
    "session": lambda engine: engine.session("s:m").send("Hi"),
    "session, streamed": lambda engine: engine.session("s:m").stream("Hi").result(),
    "object": lambda engine: engine.generate_object("s:m", "Hi", schema=dict[str, int]),
    "object, streamed": lambda engine: engine.stream_object("s:m", "Hi", schema=dict[str, int]).result(),
}


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
async def test_an_error_has_the_cost_of_its_call(ask: Ask, cancelled: bool) -> None:
    """A refusal costs nothing. A broken or cancelled stream costs the part that arrived."""
    started = asyncio.Event()

    async def pause() -> None:
        started.set()
        if cancelled:
            await asyncio.Event().wait()

    async with priced(Say("Hel", fails=ServerError("broken", provider_status=529), pause=pause)) as engine:
        call = asyncio.ensure_future(ask(engine))
        await started.wait()
        if cancelled:
            (item,) = engine.in_progress().items
            await engine.cancel(item.id)
        with pytest.raises(CancelledError if cancelled else ServerError) as raised:
            await call
    assert raised.value.cost.usd is not None
    assert raised.value.cost.usd >= Decimal(0)


async def test_the_cost_of_a_call_without_a_reply_is_unknown() -> None:
    async with priced(Say(fails=ServerError("lost"))) as engine:
        with pytest.raises(ServerError) as raised:
            await engine.generate("s:m", "Hi")
        assert raised.value.cost.usd is None
        with pytest.raises(AdapterError) as refused:
            await engine.generate("s:m", "Hi", requires=Requirements(min_context_tokens=10**9))
        assert refused.value.cost.usd == 0


# -- The text of each reader.


async def test_an_attached_view_has_the_events_of_the_stream() -> None:
    """The last event has the status of the turn. A failed turn raises nothing to the view."""
    async with priced(Say("Hel", "lo"), Say("Hel", fails=ServerError("broken"))) as engine:
        stream = engine.stream("s:m", "Hi")
        events = [event async for event in stream]
        view = engine.attach(stream.stream_id, view=True)
        attached = [event async for event in view]
        text = "".join(event.text for event in attached if isinstance(event, TextDelta))
        assert (text, [type(event) for event in attached][-1]) == ("Hello", type(events[-1]))
        failing = engine.stream("s:m", "Hi")
        with pytest.raises(ServerError):
            await failing.result()
        kinds = [event.type for event in await engine.attach(failing.stream_id, view=True).take()]
        assert kinds[-1] == "error"


async def test_each_reader_has_a_text_stream() -> None:
    """The reader can belong to a function's stream, a session's stream, or an attached view."""
    async with priced(Say("Hel", "lo"), Say("Hel", "lo")) as engine:
        for stream in (engine.stream("s:m", "Hi"), engine.session("s:m").stream("Hi")):
            reader = stream.reader()
            assert "".join([text async for text in reader.text_stream]) == "Hello"
            assert "".join([text async for text in stream.reader(coalesce=True).text_stream]) == "Hello"
            async with engine.attach(stream.stream_id, view=True) as view:
                assert "".join([text async for text in view.text_stream]) == "Hello"
            with pytest.raises(ValueError, match="a view starts at the first event"):
                engine.attach(stream.stream_id, view=True, from_seq=2)  # type: ignore[call-overload]


# After a turn, its objects are released, for every way to call and every kind of end.
#
# An error keeps the frames that raised it, and their local variables.

Way = Callable[[Engine, bool], Awaitable[object]]


async def streamed(stream: Any, cancelled: bool, read: Callable[[Any], Any] = aiter) -> object:
    """Read a stream to its end. With `cancelled`, cancel the stream first."""
    async with stream:
        reader = read(stream)
        if cancelled:
            await stream.cancel()
        return [each async for each in reader], await stream.result()


def attached(engine: Engine, cancelled: bool) -> Awaitable[object]:
    return streamed(engine.stream("s:m", "Hi"), cancelled, lambda it: engine.attach(it.stream_id, view=True))


WAYS: dict[str, Way] = {
    "generate": lambda engine, off: engine.generate("s:m", "Hi", timeout=0.0 if off else None),
    "send": lambda engine, off: engine.session("s:m").send("Hi", timeout=0.0 if off else None),
    "stream": lambda engine, off: streamed(engine.stream("s:m", "Hi"), off),
    "stream of a session": lambda engine, off: streamed(engine.session("s:m").stream("Hi"), off),
    "reader": lambda engine, off: streamed(engine.stream("s:m", "Hi"), off, lambda it: it.reader().text_stream),
    "attached": attached,
    "object": lambda engine, off: streamed(engine.stream_object("s:m", "Who?", schema=dict), off),
}


@pytest.fixture
def only_new_objects() -> None:
    """Leave out the objects of earlier tests, because a search through them takes a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("ending", ["well", "broken", "cancelled"])
async def test_the_objects_of_a_turn_are_released(ending: str) -> None:
    """The turn, its stream and its session are released while the engine is open, for each way to call."""
    async with running(*([] if ending == "broken" else [Say("{}")] * len(WAYS))) as (engine, _):
        before = [weakref.ref(each) for each in _alive()]
        for way in WAYS.values():
            with nullcontext() if ending == "well" else pytest.raises(AdapterError):
                await way(engine, ending == "cancelled")
        known = {id(each()) for each in before}
        assert [each for each in _alive() if id(each) not in known] == []


def _alive() -> list[object]:
    """The turns, streams and sessions that are still referenced."""
    gc.collect()
    kinds = (Turn, StreamResult, TurnStream, ObjectStream, Session)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


# `StreamAccumulator`: from the events of a stream to a response. Seed 2, section 4.4. It uses recorded replies.


def accumulated(events: Sequence[StreamEvent]) -> StreamAccumulator:
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    return accumulator


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_recorded_streams_add_up_to_their_responses(name: str) -> None:
    _, options, talk = CONVERSATIONS[name]
    adapter, _ = replaying_adapter(FOLDER / f"{name}.json", options)
    replies = await talk(adapter)
    await adapter.close()
    assert replies.events
    for step, events in replies.events.items():
        whole = replies[step]
        mine = accumulated(events).response()
        for field in ("provider", "content", "stop_reason", "raw_stop_reason", "usage"):
            assert getattr(mine, field) == getattr(whole, field), (step, field)
        for end in range(1, len(events)):
            part = accumulated(events[:end]).response()
            assert part.stop_reason is StopReason.CANCELLED
            assert whole.text.startswith(part.text)
        assert part.text == whole.text
        assert [call.input for call in part.tool_uses] == [call.input for call in whole.tool_uses]


CONTENT = (
    ThinkingBlock("Hmm.", "sig"),
    TextBlock("One"),
    TextBlock("Two"),
    ToolUseBlock("tu_1", "add", {"a": 1}, raw_arguments='{"a": 1}'),
    OpaqueBlock("web_search", ProviderRaw("", {"q": "x"})),
)


def whole_reply(*content: ContentBlock) -> list[StreamEvent]:
    end = {"stop_reason": StopReason.END_TURN, "usage": TokenUsage(10, 5)}
    response = CanonicalResponse(request_id="req_1", model="s:m", provider="s", content=content, **end)  # type: ignore[arg-type]
    return whole_events(response, "msg_1")


def reply() -> list[StreamEvent]:
    return whole_reply(*CONTENT)


def test_redacted_thinking_of_a_whole_reply_is_an_unchanged_block() -> None:
    """A reply that was not streamed has the same events as a streamed one."""
    events = whole_reply(RedactedThinkingBlock("c2VjcmV0"))
    assert events[1] == ProviderBlock("redacted_thinking", "c2VjcmV0", 0, "msg_1")


def test_consecutive_blocks_of_one_kind_stay_separate() -> None:
    """Two texts in a row are two blocks. A signature, a call and an unknown block are kept."""
    content = accumulated(reply()[:-1]).content
    assert Message(Role.ASSISTANT, content).text == "OneTwo"
    assert [type(block) for block in content] == [type(block) for block in CONTENT]
    assert (content[0], content[4]) == (CONTENT[0], CONTENT[4])


def test_a_truncated_stream_has_closing_events() -> None:
    """An open call is marked as incomplete."""
    events = reply()
    place = next(place for place, event in enumerate(events) if isinstance(event, ToolUseStart))
    ends = accumulated(events[: place + 2]).closing_events(StopReason.CANCELLED, TokenUsage())
    assert [event.type for event in ends] == ["tool.use_end", "message.complete"]
    assert isinstance(last := ends[-1], MessageComplete)
    assert [block.incomplete for block in last.final_content if isinstance(block, ToolUseBlock)] == [True]
    assert accumulated(events).closing_events(StopReason.CANCELLED, TokenUsage()) == []
    assert StreamAccumulator().closing_events(StopReason.CANCELLED, TokenUsage()) == []


def test_the_last_of_several_messages_counts() -> None:
    """A reset replaces the previous events. Before the first event there is no response."""
    second = (
        MessageStart("msg_2", "m", "s"),
        ThinkingDelta("Hm", None, 0, "msg_2"),
        TextDelta("More", 1, "msg_2"),
    )
    both: list[StreamEvent] = [*reply(), *second]
    assert accumulated(both).response().text == "More"
    late = StreamAccumulator()
    with pytest.raises(CallboardError, match="no message has started"):
        late.response()
    late.process(MessageStart("msg_0"))
    late.process(StreamReset(fold(both), len(both)))  # type: ignore[arg-type]
    assert late.response() == accumulated(both).response()
