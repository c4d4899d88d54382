"""What stands around calls: the order, and what it may change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence

import anyio
import msgspec
import pytest

from callboard.adapters import (
    CanonicalRequest,
    MessageComplete,
    ServerError,
    StreamEvent,
    TextBlock,
    TextDelta,
    ToolDefinition,
)
from callboard.bus import ConfigurationError, Cost, CostSource, LlmCallFailed
from callboard.bus.events.calls import LlmCallStarted
from callboard.engine import Engine, Tool
from callboard.engine.middleware import CallOutcome, EventFilter, Middleware, Next
from tests.support.engines import registry, requests_of, said, topics
from tests.support.scripted import Say
from callboard.tracestore import PriceTable

from ..definition_of_done.rows import row
from .layered_engines import answer, around, calls_made

pytestmark = pytest.mark.anyio


def noting(notes: list[str], name: str) -> Callable[[CanonicalRequest, Next], Awaitable[CallOutcome]]:
    async def layer(request: CanonicalRequest, next: Next) -> CallOutcome:
        notes.append(f"{name} in")
        outcome = await next(request)
        notes.append(f"{name} out")
        return outcome

    return layer


@pytest.mark.parametrize("streamed", [False, True])
@row("8.1.6")
async def test_the_first_layer_is_the_outermost(streamed: bool) -> None:
    """Requests pass the layers in the order in which they were given, outcomes in the reverse."""
    notes: list[str] = []
    async with around(noting(notes, "a"), noting(notes, "b"), replies=[Say("Hi")]) as (engine, _):
        if streamed:
            async with engine.session("s:m").stream("x") as turn:
                assert [text async for text in turn.text_stream] == ["Hi"]
        else:
            await engine.session("s:m").send("x")
    assert notes == ["a in", "b in", "b out", "a out"]


async def test_a_layer_sees_each_tool_round_and_what_it_cost() -> None:
    """Every call of a turn passes, with its request fitted to the model and its outcome priced."""
    seen: list[tuple[int, str, Cost]] = []

    def watch(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, None]:
        outcome = yield request
        seen.append((len(request.messages), request.model, outcome.cost))

    async def now(arguments: object) -> str:
        return "noon"

    clock = Tool(ToolDefinition("now"), now)
    async with around(watch, replies=[Say(calls=[("now", {})]), Say("Noon")]) as (engine, _):
        reply = await engine.session("s:m", tools=[clock]).send("When?")
    assert reply.text == "Noon"
    assert [(messages, model) for messages, model, _ in seen] == [(1, "s:m"), (3, "s:m")]
    assert all(cost.source is CostSource.UNPRICED for *_, cost in seen)


async def test_a_changed_request_is_what_is_sent() -> None:
    """The adapter gets what the innermost layer passed on."""

    async def shout(request: CanonicalRequest, next: Next) -> CallOutcome:
        return await next(msgspec.structs.replace(request, system_prompt="LOUD", temperature=0.5))

    async with around(shout, replies=[Say("Hi")]) as (engine, _):
        await engine.session("s:m").send("x")
        sent = requests_of(engine)
    assert [(request.system_prompt, request.temperature) for request in sent] == [("LOUD", 0.5)]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_layer_may_answer_without_a_call(streamed: bool) -> None:
    """Readers and the history get its answer; no call is made, traced or paid."""

    async def oracle(request: CanonicalRequest, next: Next) -> CallOutcome:
        return answer(request, "42")

    async with around(oracle) as (engine, events):
        session = engine.session("s:m")
        if streamed:
            async with session.stream("x") as turn:
                assert [text async for text in turn.text_stream] == ["42"]
                reply = await turn.message()
        else:
            reply = await session.send("x")
        published = events.take()
    assert reply.text == "42"
    assert session.messages[-1] == reply
    assert reply.metadata is not None
    assert reply.metadata.request_id != "req_elsewhere", "another call's cost would be shown as this one's"
    assert topics(published, "llm.") == []


class Masked(Middleware):
    """Replaces digits in all that is delivered."""

    def events(self, request: CanonicalRequest) -> EventFilter:
        def mask(text: str) -> str:
            return "".join("#" if character.isdigit() else character for character in text)

        def one(event: StreamEvent) -> StreamEvent:
            match event:
                case TextDelta():
                    return msgspec.structs.replace(event, text=mask(event.text))
                case MessageComplete():
                    content = tuple(
                        TextBlock(mask(block.text)) if isinstance(block, TextBlock) else block
                        for block in event.final_content
                    )
                    return msgspec.structs.replace(event, final_content=content)
                case _:
                    return event

        return lambda events: [one(event) for event in events]


@pytest.mark.parametrize("streamed", [False, True])
async def test_events_are_changed_on_their_way(streamed: bool) -> None:
    """Readers, the message and the history all have what the filter made of the reply."""
    async with around(Masked(), replies=[Say("call ", "0123")]) as (engine, _):
        session = engine.session("s:m")
        if streamed:
            async with session.stream("x") as turn:
                assert [text async for text in turn.text_stream] == ["call ", "####"]
        else:
            await session.send("x")
        assert session.messages[-1].text == "call ####"


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_a_filter_raises_ends_the_call_and_blames_no_adapter(streamed: bool) -> None:
    """The error reaches the caller, the call has its end with its usage, and the provider stays available."""

    class Broken(Middleware):
        def events(self, request: CanonicalRequest) -> EventFilter:
            def fail(events: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
                raise LookupError("my own mistake")

            return fail

    async with around(Broken(), replies=[Say("Hi"), Say("Hi")]) as (engine, events):
        session = engine.session("s:m")
        with pytest.raises(LookupError, match="my own mistake"):
            await said(session, "x", streamed=streamed)
        published = events.take()
    ends = [e.data for e in published if isinstance(e.data, LlmCallFailed)]
    assert [end.error_class for end in ends] == ["cancelled"]
    assert topics(published, "actor.crashed") == []
    assert topics(published, "provider.") == []


async def test_what_a_layer_raises_reaches_the_caller_and_the_turn_s_end() -> None:
    """An exception of a host's own code is not disguised."""

    async def broken(request: CanonicalRequest, next: Next) -> CallOutcome:
        raise LookupError("my own mistake")

    async with around(broken) as (engine, events):
        with pytest.raises(LookupError):
            await engine.session("s:m").send("x")
        (end,) = [e.data for e in events.take() if e.topic == "session.turn_completed"]
    assert end.status == "failed"
    assert end.error == "LookupError: my own mistake"


async def test_a_generator_layer_meets_the_failure_where_it_yields() -> None:
    """It may yield again: here for a second try of the same call."""

    def twice(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, CallOutcome]:
        try:
            return (yield request)
        except ServerError:
            return (yield request)

    async with around(twice, replies=[Say(fails=ServerError("down")), Say("up")]) as (engine, events):
        assert (await engine.session("s:m").send("x")).text == "up"
        starts = [e for e in events.take() if isinstance(e.data, LlmCallStarted)]
    assert len({start.request_id for start in starts}) == 2, "a call has an id of its own"
    assert starts[1].caused_by == starts[0].request_id


async def test_a_layer_that_is_none_is_refused_at_once() -> None:
    """The text says what middleware is."""
    with pytest.raises(ConfigurationError, match="async def name"):
        Engine(models=registry(), trace=False, prices=PriceTable.default(), middleware=[lambda request: None])  # type: ignore[list-item,arg-type,return-value]


async def test_a_generator_that_ends_without_an_outcome_is_told_so() -> None:
    """Neither yielding nor answering is a mistake, not an empty reply."""

    def silent(request: CanonicalRequest) -> Generator[CanonicalRequest, CallOutcome, None]:
        return
        yield request

    async with around(silent) as (engine, _):
        with pytest.raises(TypeError, match="yield the request"):
            await engine.session("s:m").send("x")


async def test_layers_are_let_go_when_the_engine_stops() -> None:
    """`aclose` is called once everything else is down."""
    closed: list[bool] = []

    class Held(Middleware):
        async def aclose(self) -> None:
            closed.append(True)

    async with around(Held()):
        assert closed == []
    assert closed == [True]


async def test_cancelling_a_turn_ends_a_layer_that_waits() -> None:
    """A turn that is cancelled while middleware waits ends at once; no call is made."""
    waiting = anyio.Event()

    async def stuck(request: CanonicalRequest, next: Next) -> CallOutcome:
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with around(stuck) as (engine, events):
        session = engine.session("s:m")
        async with session.stream("x") as turn:
            await waiting.wait()
            assert await session.cancel()
        assert calls_made(events) == []
        assert turn.stream_id
