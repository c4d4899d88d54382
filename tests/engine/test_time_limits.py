"""The ends of a call or a stream by time limits, slots, closing, and the loss of an owner."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import RequestTimeoutError, StopReason, StreamEvent, TextBlock, ToolDefinition
from callboard.bus import (
    CallboardError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    Lossless,
    MessageComplete,
    Subscription,
    TurnComplete,
    UnknownStream,
)
from callboard.bus.errors import CancelledError
from callboard.bus.values.usage import UsageSource
from callboard.engine import Engine, Limits, Timeouts, Tool, tool
from callboard.engine.calls.call import CANCEL_GRACE_SECONDS
from callboard.engine.runtime.adapters import CallSlots

from ..support.engines import entry, registry, serving, talking
from ..support.present import present
from ..support.scripted import Say, ScriptedAdapter, scripted_type
from ..support.virtual_time import run_virtual
from .slow_engines import WAYS, Slow, an_engine

# Time limits of turns, calls and tools, and calls that ignore a cancellation.

SLOW = anyio.sleep_forever


def terminals(events: Subscription) -> list[LlmCallCompleted | LlmCallFailed]:
    """The events that ended a call."""
    ends = [e.data for e in events.take() if isinstance(e.data, LlmCallCompleted | LlmCallFailed)]
    return [end for end in ends if isinstance(end, LlmCallCompleted) or not end.will_retry]


async def wait(seconds: float) -> None:
    await anyio.sleep(seconds)


async def test_a_turn_out_of_time_keeps_its_partial_reply_and_fails() -> None:
    async with talking(Say("Well, ", "ever", pause=lambda: wait(2))) as (session, events):
        with pytest.raises(RequestTimeoutError, match="turn took longer than 3 s") as caught:
            async with session.stream("Hello", timeout=3) as turn:
                await turn.message()
        assert anyio.current_time() == pytest.approx(3)
        assert caught.value.content == (TextBlock("Well, "),)
        assert [message.text for message in session.messages] == ["Hello", "Well, "]
        assert present(session.messages[-1].metadata).stop_reason is StopReason.CANCELLED
        log = caught.value.turn.log  # type: ignore[attr-defined]  # documented on Session.send
        assert isinstance(log.since(0)[-1], TurnComplete)
        assert log.since(0)[-1].status == "failed"
        (terminal,) = terminals(events)
        assert (
            terminal.error_class == "cancelled"
        )  # The host set the limit, so the failure does not count against the provider.


async def test_the_engines_time_limit_of_turns_can_be_replaced_in_a_send() -> None:
    models = registry(Say("late", pause=lambda: wait(3)), Say("late", pause=lambda: wait(3)))
    async with Engine(models=models, trace=False, timeouts=Timeouts(turn=4)) as engine:
        session = engine.session("s:m")
        with pytest.raises(RequestTimeoutError):
            await session.send("Hello")
        assert (await session.send("Hello", timeout=20)).text == "late"


async def test_the_time_of_a_turn_includes_its_tools_and_its_waiting() -> None:
    cut: list[str] = []

    async def forever(arguments: object) -> str:
        try:
            await SLOW()
        finally:
            cut.append("cut")

    tool = Tool(ToolDefinition("dig", "Dig."), forever, timeout=1000)
    async with talking(Say(calls=[("dig", {})]), tools=[tool]) as (session, _):
        turns = (session.send("Dig", timeout=seconds) for seconds in (5, 2))
        ends = await asyncio.gather(*turns, return_exceptions=True)
        assert [type(end) for end in ends] == [RequestTimeoutError] * 2
        assert cut == ["cut"]
        assert anyio.current_time() == pytest.approx(5)


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_a_turn_that_ends_before_its_start_makes_no_call(how: str) -> None:
    async with talking(Say("later")) as (session, events):
        turn = session.stream("Hello", timeout=0 if how == "out of time" else None)
        if how == "out of time":
            with pytest.raises(RequestTimeoutError, match="turn took longer than 0 s"):
                await turn.message()
        else:
            async with turn:
                assert await turn.cancel()
                with pytest.raises(CancelledError):
                    await turn.message()
        topics = {envelope.topic for envelope in events.take()}
        assert not topics & {"session.turn_started", "llm.call_started"}
        assert "session.turn_completed" in topics
        assert (await session.send("Hello")).text == "later"


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_a_call_that_ends_while_it_waits_for_a_slot_does_not_change_the_slots(how: str) -> None:
    models = registry(Say("one", pause=lambda: wait(10)), *[Say("more", pause=lambda: wait(10))] * 2)
    async with Engine(models=models, trace=False, limits=Limits(calls_per_provider=1)) as engine:

        def slots() -> tuple[int, int]:
            (provider,) = engine.statistics().providers
            return provider.in_flight, provider.waiting

        first, waiting = engine.session("s:m"), engine.session("s:m")
        async with first.stream("Hello") as served, waiting.stream("Hello", timeout=3) as late:
            await anyio.sleep(1)
            assert slots() == (1, 1)
            if how == "cancelled":
                await late.cancel()
            with pytest.raises(RequestTimeoutError if how == "out of time" else CancelledError):
                await late.message()
            assert slots() == (1, 0)
            assert (await served.message()).text == "one"
        assert slots() == (0, 0)
        async with first.stream("Again") as served, waiting.stream("Again") as late:
            await anyio.sleep(1)
            assert slots() == (1, 1)
            await served.message()
            await late.message()


async def test_a_tool_has_the_engines_time_limit_or_its_own() -> None:
    async def forever(arguments: object) -> str:
        await SLOW()
        return ""

    tools = [
        Tool(ToolDefinition("dig", "Dig."), forever),
        Tool(ToolDefinition("fill", "Fill."), forever, timeout=3),
    ]
    models = registry(Say(calls=[("dig", {}), ("fill", {})]), Say("Tired."))
    async with Engine(models=models, trace=False, timeouts=Timeouts(tool=7)) as engine:
        session = engine.session("s:m", tools=tools)
        await session.send("Work")
        results = session.messages[2].content
        texts = [result.text for result in results]  # type: ignore[union-attr]
        assert texts == ["The tool took longer than 7 s.", "The tool took longer than 3 s."]


class Stubborn(ScriptedAdapter):
    """Shields its calls from cancellation and continues to send events."""

    async def cancel(self, request_id: str) -> bool:
        return True

    def stream(self, request, *, on_attempt=None):  # type: ignore[no-untyped-def]
        return _Shielded(super().stream(request, on_attempt=on_attempt))


class _Shielded:
    def __init__(self, inner: object) -> None:
        self.inner = inner

    response = None

    def __aiter__(self) -> _Shielded:
        return self

    async def __anext__(self) -> StreamEvent:
        with anyio.CancelScope(shield=True):
            return await self.inner.__anext__()  # type: ignore[attr-defined,no-any-return]

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> _Shielded:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


async def test_a_call_with_an_adapter_that_ignores_cancellation_ends_after_a_grace_time() -> None:
    kind = scripted_type(Say("one", "two", "three", "four", pause=lambda: wait(4)), base=Stubborn)
    models = serving(s=entry("s", kind, max_concurrency=1))
    engine = Engine(models=models, trace=False, limits=Limits(calls_per_provider=1))
    events = engine.bus.subscribe("llm.*")
    async with engine:
        session = engine.session("s:m")
        async with session.stream("Hello") as turn:
            await anyio.sleep(5)
            began = anyio.current_time()
            await turn.cancel()
            with pytest.raises(CancelledError):
                await turn.message()
            assert anyio.current_time() - began == pytest.approx(CANCEL_GRACE_SECONDS)
            reader = engine.attach(turn.stream_id)
            await anyio.sleep(20)  # The adapter sends more events, without a reader.
        seen = [event async for event in reader]
        complete = [event for event in seen if isinstance(event, MessageComplete)]
        assert [event.stop_reason for event in complete] == [StopReason.CANCELLED]
        assert isinstance(seen[-1], TurnComplete)
        assert len(terminals(events)) == 1
        assert present(session.messages[-1].metadata.usage).source is UsageSource.PARTIAL


# Slots: calls never exceed them, no slot is lost, and the earliest turn goes first.


async def test_the_earliest_turn_goes_first() -> None:
    """A later request of an earlier turn comes before requests of later turns."""
    slots, order = CallSlots(1), []
    await slots.acquire()

    async def call(turn: int, name: str) -> None:
        await slots.acquire(turn)
        order.append(name)
        slots.release()

    async with anyio.create_task_group() as group:
        for turn, name in ((3, "3a"), (3, "3b"), (1, "1a"), (2, "2a"), (1, "1b")):
            group.start_soon(call, turn, name)
            await anyio.lowlevel.checkpoint()
        slots.release()
    assert order == ["1a", "1b", "2a", "3a", "3b"]


@given(seed=st.integers(0, 2**32), total=st.integers(1, 4), calls=st.integers(1, 25))
def test_no_slot_is_lost_for_any_cancellation(seed: int, total: int, calls: int) -> None:
    """Waits, durations and cancellations are random."""
    rng = random.Random(seed)

    async def scenario() -> None:
        slots, running, most = CallSlots(total), 0, 0

        async def call() -> None:
            nonlocal running, most
            await anyio.sleep(rng.randrange(4))
            with anyio.move_on_after(rng.choice([0, 1, 2, 3, 50])):
                await slots.acquire(rng.randrange(5))
                running += 1
                most = max(most, running)
                try:
                    await anyio.sleep(rng.randrange(3))
                finally:
                    running -= 1
                    slots.release()

        async with anyio.create_task_group() as group:
            for _ in range(calls):
                group.start_soon(call)
        assert most <= total
        assert (slots.used, slots.waiting) == (0, 0)
        with anyio.fail_after(1):
            for _ in range(total):
                await slots.acquire()

    run_virtual(scenario)


# An engine that is closed during calls: callers get one kind of error, and each call has one end.

CLOSED = "the engine was closed"


@tool
async def wait_long() -> None:
    """Takes an hour."""
    await anyio.sleep(3600)


def check_ends(envelopes: list[Envelope]) -> list[LlmCallCompleted | LlmCallFailed]:
    """Check that each call has one end, and return the ends."""
    starts = [envelope.request_id for envelope in envelopes if isinstance(envelope.data, LlmCallStarted)]
    ends = [each for each in envelopes if isinstance(each.data, LlmCallCompleted | LlmCallFailed)]
    assert sorted(starts) == sorted(each.request_id for each in ends)  # type: ignore[type-var]
    return [each.data for each in ends]  # type: ignore[misc]


@pytest.mark.parametrize("way", WAYS)
async def test_closing_the_engine_ends_every_kind_of_call(way: str) -> None:
    engine = an_engine()
    events = engine.bus.subscribe("llm.*", policy=Lossless())
    async with engine:
        call = asyncio.ensure_future(WAYS[way](engine))
        await anyio.sleep(2)
        assert present(await engine.aclose()).clean
        with pytest.raises(CancelledError, match=CLOSED):
            await call
    ends = check_ends(events.take())
    assert way.startswith("video") or ends
    for end in ends:
        assert end.model == "s:m"
        assert isinstance(end, LlmCallCompleted) == way.startswith("video"), "the job of a video was created"
        if isinstance(end, LlmCallFailed):
            assert end.error_class == "cancelled"


async def test_the_partial_reply_is_kept_with_its_usage() -> None:
    """Closing the engine ends a reply like a cancellation."""
    engine = an_engine()
    events = engine.bus.subscribe(">", policy=Lossless())
    await engine.start()
    session = engine.session("s:m")
    async with session.stream("Hi") as turn:
        reader = engine.attach(turn.stream_id)
        await anyio.sleep(1)
        await engine.aclose()
        with pytest.raises(CancelledError, match=CLOSED) as caught:
            await turn.message()
    seen = [event async for event in reader]
    (complete,) = [event for event in seen if isinstance(event, MessageComplete)]
    assert complete.stop_reason is StopReason.CANCELLED
    assert seen[-1] == TurnComplete("cancelled", "CancelledError: the engine was closed while this call ran")
    assert session.messages[-1].text == '{"a": '
    assert caught.value.content == session.messages[-1].content
    assert present(caught.value.usage).source is UsageSource.PARTIAL
    assert caught.value.turn.messages == session.messages  # type: ignore[attr-defined]
    (end,) = check_ends([each for each in events.take() if each.topic.startswith("llm.")])
    assert present(end.usage).source is UsageSource.PARTIAL


async def test_closing_the_engine_ends_waiting_turns() -> None:
    engine = an_engine(Say(calls=[("wait_long", {})]), base=ScriptedAdapter)
    await engine.start()
    session = engine.session("s:m", tools=[wait_long])
    turns = [asyncio.ensure_future(session.send("Hi")) for _ in range(3)]
    await anyio.sleep(1)
    await engine.aclose()
    for turn in turns:
        with pytest.raises(CancelledError, match=CLOSED):
            await turn


class Deaf(Slow):
    """Ignores cancellation."""

    async def cancel(self, request_id: str) -> bool:
        return False


async def test_a_call_that_ignores_cancellation_delays_the_close_for_a_limited_time() -> None:
    """The delay is at most half of the shutdown time. Then its adapter is stopped, with the same error."""
    engine = an_engine(base=Deaf, timeouts=Timeouts(shutdown=6.0))
    await engine.start()
    call = asyncio.ensure_future(engine.generate("s:m", "Hi"))
    await anyio.sleep(1)
    began = anyio.current_time()
    closing = asyncio.ensure_future(engine.aclose())
    await anyio.sleep(1)
    with pytest.raises(CallboardError, match="this engine is closed"):
        await engine.generate("s:m", "Hi")
    with pytest.raises(CancelledError, match=CLOSED):
        await call
    await closing
    assert anyio.current_time() - began < 4.0


async def test_an_engine_that_is_closed_while_it_starts_is_closed() -> None:
    engine = an_engine()
    call = asyncio.ensure_future(engine.generate("s:m", "Hi"))
    await anyio.lowlevel.checkpoint()
    assert present(engine._host.life).state == "starting"
    await engine.aclose()
    with pytest.raises(CallboardError, match="this engine is closed"):
        await call
    assert engine.closed


# Only its owner can attach to a stream with an owner.

OWNED = {"owner": "ada"}


async def of_a_session(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.session("s:m", tags=tags).stream("Hi") as turn:
        await turn.message()
    return turn.stream_id


async def of_a_whole_reply(engine: Engine, tags: Mapping[str, str]) -> str:
    await engine.session("s:m", tags=tags).send("Hi")
    return engine.streams.streams()[-1].stream_id


async def of_a_fork(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.session("s:m", tags=tags).fork().stream("Hi") as turn:
        await turn.message()
    return turn.stream_id


async def of_a_call(engine: Engine, tags: Mapping[str, str]) -> str:
    async with engine.stream("s:m", "Hi", tags=tags) as result:
        assert [event async for event in result]
    return result.stream_id


Makes = Callable[[Engine, Mapping[str, str]], object]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(models=registry(*[Say("Hello.")] * 9), trace=False) as engine:
        yield engine


@pytest.mark.parametrize("make", [of_a_session, of_a_whole_reply, of_a_fork, of_a_call])
async def test_only_its_owner_can_read_a_stream(engine: Engine, make: Makes) -> None:
    """Another owner, and a caller without an owner, get the error of an unknown stream."""
    owned, free = await make(engine, OWNED), await make(engine, {})  # type: ignore[misc]
    with anyio.fail_after(5):
        for stream_id, options in ((owned, {"owner": "ada"}), (owned, {"any_owner": True}), (free, {})):
            events = [event async for event in engine.attach(stream_id, **options)]
            assert events[-1] == TurnComplete("completed")
            view = engine.attach(stream_id, view=True, **options)
            assert "".join([text async for text in view.text_stream]) == "Hello."
    for stream_id, other in ((owned, None), (owned, "bob"), (owned, ""), (free, "ada"), (free, "")):
        for as_view in (False, True):
            with pytest.raises(UnknownStream) as refused:
                engine.attach(stream_id, owner=other, view=as_view)  # type: ignore[call-overload]
            unknown = "trn_01ARZ3NDEKTSV4RRFFQ69G5FAV"
            with pytest.raises(UnknownStream) as missing:
                engine.attach(unknown, owner=other, view=as_view)  # type: ignore[call-overload]
            assert str(refused.value) == str(missing.value).replace(unknown, stream_id)


async def test_only_its_owner_can_cancel_a_turn(engine: Engine) -> None:
    for owner, cancels in (("bob", False), ("ada", True), (None, True)):
        async with engine.session("s:m", tags=OWNED).stream("Hi") as turn:
            assert await engine.cancel(turn.stream_id, owner=owner) is cancels
            with pytest.raises(CancelledError) if cancels else contextlib.nullcontext():
                await turn.message()
    with pytest.raises(UnknownStream):
        engine.streams.attach(turn.stream_id)
    assert engine.streams.attach(turn.stream_id, owner="ada").stream_id == turn.stream_id
