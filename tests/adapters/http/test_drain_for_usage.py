"""A cancelled stream that reads on for its usage: in silence, within its time, and whoever reads."""

from __future__ import annotations

import anyio
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.stream import HttpStream
from callboard.bus.errors import NetworkError, RequestTimeoutError
from callboard.bus.streams.events import MessageComplete, StreamEvent, TextDelta
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.fake_http import (
    DONE,
    HANG,
    MORE,
    TEXT,
    USAGE,
    FakeReply,
    FakeTransport,
    Step,
    ToyAdapter,
    request,
    sse,
)
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, on_both

pytestmark = pytest.mark.anyio


def draining(*steps: Step, seconds: float = 5.0) -> tuple[ToyAdapter, FakeTransport]:
    """A reply of these steps, from an adapter that reads on for so long."""
    transport = FakeTransport(FakeReply(sse(TEXT), *steps))
    config = AdapterConfig(drain_for_usage=seconds, max_retries=0)
    return ToyAdapter(config, transport=transport, clock=FakeClock()), transport


async def cancelled_while_read(toy: ToyAdapter, stream: HttpStream, *, after: float) -> list[StreamEvent]:
    """All events of a stream that another task cancels while it is being read."""
    events: list[StreamEvent] = []

    async def cancel() -> None:
        await anyio.sleep(after)
        assert await toy.cancel("req_1")

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        async for event in stream:
            events.append(event)  # noqa: PERF401  (the task group is the point)
    return events


@on_both
async def test_the_final_usage_of_a_cancelled_stream_is_reported() -> None:
    """What comes after the cancel is not delivered, but its usage counts, and is the provider's."""
    toy, transport = draining(1.0, sse(MORE), 1.0, sse(USAGE, DONE))
    events = await cancelled_while_read(toy, toy.stream(request()), after=0.5)
    last = check_stream(events)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hel"]
    assert last.stop_reason is StopReason.CANCELLED
    assert last.usage == TokenUsage(12, 7)
    assert last.usage.source is UsageSource.REPORTED
    assert anyio.current_time() == pytest.approx(2.0)
    assert transport.all_closed


async def test_reading_on_ends_when_its_time_is_up() -> None:
    """A provider that goes on for ever is cut off; the usage it had not reported is an estimate."""
    toy, transport = draining(HANG, seconds=3.0)
    started = anyio.current_time()
    last = check_stream(await cancelled_while_read(toy, toy.stream(request()), after=1.0))
    assert anyio.current_time() - started == pytest.approx(4.0)
    assert last.usage.source is UsageSource.ESTIMATED
    assert transport.all_closed


async def test_a_chattering_provider_cannot_prolong_the_drain() -> None:
    """The limit is one for the whole drain, not one for each piece."""
    toy, _ = draining(*[step for _ in range(50) for step in (1.0, sse(MORE))], seconds=3.0)
    started = anyio.current_time()
    last = check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert anyio.current_time() - started == pytest.approx(3.5)
    assert last.stop_reason is StopReason.CANCELLED


async def test_usage_seen_before_the_stream_breaks_is_partial() -> None:
    """A connection that fails while it is read on ends the call as cancelled, with what had been reported."""
    toy, transport = draining(1.0, sse(USAGE), NetworkError("gone"))
    last = check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert last.stop_reason is StopReason.CANCELLED
    assert last.usage == TokenUsage(12, 7, source=UsageSource.PARTIAL)
    assert transport.all_closed


@on_both
async def test_a_stream_that_nobody_reads_is_read_on_by_its_canceller() -> None:
    """The connection does not stay open until a reader comes back; who comes gets the end with the usage."""
    toy, transport = draining(1.0, sse(MORE, USAGE, DONE))
    stream = toy.stream(request())
    assert [(await anext(stream)).type, (await anext(stream)).type] == ["message.start", "text.delta"]
    assert await toy.cancel("req_1")
    assert transport.all_closed
    rest = [event async for event in stream]
    assert isinstance(rest[0], MessageComplete)
    assert len(rest) == 1
    assert rest[0].usage == TokenUsage(12, 7)
    assert stream.response is not None
    assert stream.response.text == "Hel"


async def test_a_reader_that_comes_during_the_drain_waits_for_it() -> None:
    """Two tasks never read the same connection."""
    toy, _ = draining(1.0, sse(USAGE, DONE))
    stream = toy.stream(request())
    await anext(stream)
    await anext(stream)
    async with anyio.create_task_group() as group:
        group.start_soon(toy.cancel, "req_1")
        await anyio.sleep(0.5)
        last = await anext(stream)
    assert isinstance(last, MessageComplete)
    assert last.usage.source is UsageSource.REPORTED


async def test_closing_never_reads_on() -> None:
    """`aclose()` of the stream and `close()` of the adapter end a call at once, even one that is being drained."""
    for close_adapter in (False, True):
        toy, transport = draining(HANG)
        stream = toy.stream(request())
        await anext(stream)
        started = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(toy.cancel, "req_1")
            await anyio.sleep(0.5)
            await (toy.close() if close_adapter else stream.aclose())
        assert anyio.current_time() - started == pytest.approx(0.5)
        assert transport.all_closed


@on_both
async def test_cancelling_again_changes_nothing() -> None:
    """Neither prolongs a second cancel the drain, nor cuts it short."""
    toy, _ = draining(2.0, sse(USAGE, DONE), seconds=3.0)

    async def again() -> None:
        await anyio.sleep(1.0)
        await toy.cancel("req_1")

    async with anyio.create_task_group() as group:
        group.start_soon(again)
        last = check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert last.usage.source is UsageSource.REPORTED


async def test_by_default_nothing_is_read_on() -> None:
    """A request may say 0 where the configuration says otherwise; then a cancel closes at once."""
    toy, transport = draining(HANG)
    started = anyio.current_time()
    stream = toy.stream(request(drain_for_usage=0.0))
    last = check_stream(await cancelled_while_read(toy, stream, after=0.5))
    assert anyio.current_time() - started == pytest.approx(0.5)
    assert last.stop_reason is StopReason.CANCELLED
    assert transport.all_closed


async def test_before_the_reply_has_begun_there_is_nothing_to_read_on() -> None:
    """A cancel while the request is under way, or between two attempts, ends the call at once."""
    transport = FakeTransport(FakeReply(sse(TEXT), wait=HANG))
    toy = ToyAdapter(AdapterConfig(drain_for_usage=5.0), transport=transport, clock=FakeClock())
    started = anyio.current_time()
    check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert anyio.current_time() - started == pytest.approx(0.5)


async def test_a_pumped_stream_gives_the_same_events() -> None:
    """As many at a time as arrived together; a cancel, a drain and time limits work as when it is iterated."""
    toy, _ = draining(1.0, sse(MORE, USAGE, DONE))
    batches: list[list[str]] = []
    await toy.stream(request()).pump(lambda events: batches.append([event.type for event in events]))
    assert batches == [["message.start", "text.delta"], ["text.delta", "message.complete"]]


@pytest.mark.parametrize("seconds", [0.0, 5.0])
@on_both
async def test_a_pumped_stream_is_cancelled_in_order(seconds: float) -> None:
    """With and without reading on."""
    toy, transport = draining(1.0, sse(MORE), 1.0, sse(USAGE), 1.0, sse(DONE), seconds=seconds)
    events: list[StreamEvent] = []
    async with anyio.create_task_group() as group:
        group.start_soon(toy.stream(request()).pump, events.extend)
        await anyio.sleep(1.5)
        await toy.cancel("req_1")
    last = check_stream(events)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hel", "lo ☃"]
    assert last.stop_reason is StopReason.CANCELLED
    assert last.usage.source is (UsageSource.REPORTED if seconds else UsageSource.ESTIMATED)
    assert anyio.current_time() == pytest.approx(3.0 if seconds else 1.5)
    assert transport.all_closed


async def test_a_pumped_stream_has_its_time_between_events_and_for_the_whole() -> None:
    """The limit counts anew with each piece, and the whole call's does not."""
    slow = [step for _ in range(4) for step in (2.0, sse(MORE))]
    for limit, whole, after, message in (
        (3.0, 600.0, 11.0, "no next event within 3 s"),
        (3.0, 5.0, 5.0, "longer"),
    ):
        transport = FakeTransport(FakeReply(sse(TEXT), *slow, HANG))
        config = AdapterConfig(stream_read_timeout=limit, timeout_seconds=whole, max_retries=0)
        toy = ToyAdapter(config, transport=transport, clock=FakeClock())
        events: list[StreamEvent] = []
        started = anyio.current_time()
        with pytest.raises(RequestTimeoutError, match=message):
            await toy.stream(request()).pump(events.extend)
        assert anyio.current_time() - started == pytest.approx(after)
        assert check_stream(events).stop_reason is StopReason.ERROR
        assert transport.all_closed
