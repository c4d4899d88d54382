"""The properties of a stream before its first event, while it arrives, after its end, and after an early exit.

And what an error says of the call that it ended: `cost`, whoever asked and however.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
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
async def test_a_stream_says_what_it_costs_before_it_begins_while_it_comes_and_afterwards(open_: Open) -> None:
    """Nothing, then an estimate, then what the provider said; and the end is what `result()` has."""
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
async def test_a_stream_that_did_not_end_well_says_what_it_cost(open_: Open, way: str) -> None:
    """Left, cancelled or failed in the middle: what had come is counted, and `status` says how it ended."""

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
async def test_a_stream_that_never_began_has_cost_nothing(open_: Open) -> None:
    """It was closed before it was asked for anything."""
    async with priced() as engine:
        stream = open_(engine)
        await stream.aclose()
        assert (stream.usage, stream.cost.usd, stream.model, stream.status) == (TokenUsage(), 0, None, "cancelled")


async def test_a_stream_of_several_steps_counts_them_all() -> None:
    """The cost is that of the turn, as in `total_cost`."""
    calls = Say("Let me see.", calls=[("weather", {"city": "Bonn"})])

    def weather(city: str) -> str:
        """Tell it."""
        return city

    async with priced(calls, Say("Rain.")) as engine, engine.stream("s:m", "Hi", tools=[weather]) as stream:
        result = await stream.result()
        assert len(result.steps) == 2
        assert (stream.usage, stream.cost) == (result.total_usage, result.total_cost)


async def test_the_text_of_a_reader_goes_on_after_the_log_was_folded() -> None:
    """Where it stopped, and nothing twice."""
    gate = asyncio.Event()
    steps = iter(range(99))

    async def pause() -> None:
        if next(steps) >= 1:
            await gate.wait()

    async with priced(Say("Hel", "lo", " you", pause=pause)) as engine:
        stream = engine.session("s:m").stream("Hi")
        text = stream.reader().text_stream
        assert await anext(text) == "Hel"
        gate.set()
        await stream.result()
        stream._run.turn.log.fold()
        assert "".join([piece async for piece in text]) == "lo you"


async def test_a_fallback_says_which_model_served() -> None:
    """Routing and model are those of the last call, and the failed one is paid for."""
    replies = {"t": [Say("Hello")]}
    async with running(Say(fails=ServerError("overloaded")), prices=PRICES, **replies) as (engine, _):
        async with engine.stream("s:m", "Hi", fallback=["t:m"]) as stream:
            result = await stream.result()
        assert (stream.model, result.model) == ("t:m", "t:m")
        assert stream.routing == result.routing
        assert result.routing.requested == "s:m"


def test_a_sync_stream_says_the_same() -> None:
    """While it comes and when it was left, from another thread than the call's."""
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
    assert stream.status in ("completed", "cancelled")  # as the reply may have come whole before it was left


# -- Errors

Ask: TypeAlias = Callable[[Engine], Awaitable[object]]
ASK: dict[str, Ask] = {
    "generate": lambda engine: engine.generate("s:m", "Hi"),
    "stream": lambda engine: engine.stream("s:m", "Hi").result(),
    "session": lambda engine: engine.session("s:m").send("Hi"),
    "session, streamed": lambda engine: engine.session("s:m").stream("Hi").result(),
    "object": lambda engine: engine.generate_object("s:m", "Hi", schema=dict[str, int]),
    "object, streamed": lambda engine: engine.stream_object("s:m", "Hi", schema=dict[str, int]).result(),
}


@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
async def test_an_error_says_what_its_call_cost(ask: Ask) -> None:
    """However it was asked: nothing for a refusal, and what had come for a stream that broke off."""
    async with priced(Say("Hel", fails=ServerError("broken", provider_status=529))) as engine:
        with pytest.raises(ServerError) as raised:
            await ask(engine)
    assert raised.value.cost.usd is not None
    assert raised.value.cost.usd >= Decimal(0)


async def test_the_cost_of_a_call_that_was_never_answered_is_not_known() -> None:
    """It is a Cost that says so, and never taken for nothing; a request that nobody got costs nothing."""
    async with priced(Say(fails=ServerError("lost"))) as engine:
        with pytest.raises(ServerError) as raised:
            await engine.generate("s:m", "Hi")
        assert raised.value.cost.usd is None
        with pytest.raises(AdapterError) as refused:
            await engine.generate("s:m", "Hi", requires=Requirements(min_context_tokens=10**9))
        assert refused.value.cost.usd == 0


@pytest.mark.parametrize("ask", ASK.values(), ids=list(ASK))
async def test_a_cancelled_call_says_what_it_cost(ask: Ask) -> None:
    """`engine.cancel` by somebody else, while the provider is at work."""
    begun = asyncio.Event()

    async def pause() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with priced(Say("Hel", "lo", pause=pause)) as engine:

        async def asked() -> object:
            return await ask(engine)

        task = asyncio.create_task(asked())
        await begun.wait()
        (item,) = engine.in_progress().items
        await engine.cancel(item.id)
        with pytest.raises(CancelledError) as raised:
            await task
    assert raised.value.cost.usd is not None


# -- The text of each reader


async def test_an_attached_view_gives_what_stream_gives() -> None:
    """Event for event; its last event says how the turn ended, and an error isn't raised to it."""
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
    """Of a function's stream, of a session's, of one that was attached to; a view has it from the beginning."""
    async with priced(Say("Hel", "lo"), Say("Hel", "lo")) as engine:
        for stream in (engine.stream("s:m", "Hi"), engine.session("s:m").stream("Hi")):
            reader = stream.reader()
            assert "".join([text async for text in reader.text_stream]) == "Hello"
            assert "".join([text async for text in stream.reader(coalesce=True).text_stream]) == "Hello"
            async with engine.attach(stream.stream_id, view=True) as view:
                assert "".join([text async for text in view.text_stream]) == "Hello"
            with pytest.raises(ValueError, match="a view starts at the first event"):
                engine.attach(stream.stream_id, view=True, from_seq=2)  # type: ignore[call-overload]


# What is left of a turn that is over: nothing, however it was asked for and whatever it ended in.
#
# An error knows the frames that it went through, and with them what their functions had at hand: whoever keeps an
# error keeps all of that.

Way = Callable[[Engine, bool], Awaitable[object]]


async def streamed(stream: Any, cancelled: bool, read: Callable[[Any], Any] = aiter) -> object:
    """What is read of a stream, which is cancelled when its reader is there."""
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
    """Leave out the objects of earlier tests: to look through them takes a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("ending", ["well", "broken", "cancelled"])
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_left_of_a_turn(way: str, ending: str) -> None:
    """Neither the turn nor its stream nor its session, while the engine lives on."""
    async with running(*([] if ending == "broken" else [Say("{}")])) as (engine, _):
        before = [weakref.ref(each) for each in _alive()]
        try:
            await WAYS[way](engine, ending == "cancelled")
            ended = "well"
        except AdapterError:
            ended = "not well"
        assert (ended == "well") is (ending == "well")
        known = {id(each()) for each in before}
        assert [each for each in _alive() if id(each) not in known] == []


def _alive() -> list[object]:
    """What turns are made of, as far as anybody has it."""
    gc.collect()
    kinds = (Turn, StreamResult, TurnStream, ObjectStream, Session)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


# `StreamAccumulator`: from any stream's events to a response. Seed 2, section 4.4; over recorded replies.


def accumulated(events: Sequence[StreamEvent]) -> StreamAccumulator:
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    return accumulator


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_recorded_streams_add_up_to_their_responses(name: str) -> None:
    """With every event, and from the deltas alone; before the end, to what had come."""
    _, options, talk = CONVERSATIONS[name]
    adapter, _ = replaying_adapter(FOLDER / f"{name}.json", options)
    replies = await talk(adapter)
    await adapter.close()
    assert replies.events
    for step, events in replies.events.items():
        whole = replies[step]
        assert isinstance(whole, CanonicalResponse)
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


def test_redacted_thinking_of_a_whole_reply_reaches_readers_as_it_came() -> None:
    """A reply that was not streamed shows its readers the same block as a streamed one."""
    events = whole_reply(RedactedThinkingBlock("c2VjcmV0"))
    assert events[1] == ProviderBlock("redacted_thinking", "c2VjcmV0", 0, "msg_1")


def test_blocks_of_one_kind_stay_apart() -> None:
    """Two texts in a row are two blocks; a signature, a call and an unknown block are kept."""
    content = accumulated(reply()[:-1]).content
    assert Message(Role.ASSISTANT, content).text == "OneTwo"
    assert [type(block) for block in content] == [type(block) for block in CONTENT]
    assert content[0] == CONTENT[0]
    assert content[4] == CONTENT[4]


def test_what_is_cut_off_says_how_to_end_it() -> None:
    """An open call is marked and never complete; a message that has not begun, or has ended, needs nothing."""
    events = reply()
    place = next(place for place, event in enumerate(events) if isinstance(event, ToolUseStart))
    cut = accumulated(events[: place + 2])
    ends = cut.closing_events(StopReason.CANCELLED, TokenUsage())
    assert [event.type for event in ends] == ["tool.use_end", "message.complete"]
    assert isinstance(last := ends[-1], MessageComplete)
    assert [block.incomplete for block in last.final_content if isinstance(block, ToolUseBlock)] == [True]
    assert accumulated(events).closing_events(StopReason.CANCELLED, TokenUsage()) == []
    assert StreamAccumulator().closing_events(StopReason.CANCELLED, TokenUsage()) == []


def test_the_last_of_several_messages_counts() -> None:
    """And a reset begins with what it says; before the first event there is no response."""
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
