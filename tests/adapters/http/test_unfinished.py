"""The recorded usage of calls that did not complete, streamed or not, for each kind of end."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig, RetryPolicy
from callboard.adapters.contract import AttemptFailed, AttemptReport
from callboard.adapters.http.stream import HttpStream
from callboard.adapters.replies.usage import NOTHING_USED, usage_of_failure, usage_until_now
from callboard.adapters.requests.estimate import at_most
from callboard.bus.errors import (
    AdapterError,
    AuthError,
    CancelledError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    OverloadedError,
    RequestTimeoutError,
    ServerError,
    StreamError,
)
from callboard.bus.streams.events import MessageComplete, StreamEvent, TextDelta
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.fake_http import (
    CALL,
    DONE,
    HALF,
    HANG,
    MORE,
    TEXT,
    THOUGHT,
    USAGE,
    FakeReply,
    FakeTransport,
    Step,
    ToyAdapter,
    failing,
    request,
    sse,
    whole,
)
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, on_both
from ..operations.making import embedding_request, maker

pytestmark = pytest.mark.anyio

COUNTS = st.integers(0, 10**6)
ESTIMATED, PARTIAL = UsageSource.ESTIMATED, UsageSource.PARTIAL
LONG = {"is": "text", "key": 0, "say": "word " * 400}


def adapter(*replies: FakeReply | Exception, **config: object) -> ToyAdapter:
    settings = AdapterConfig(**{"max_retries": 0, **config})  # type: ignore[arg-type]
    return ToyAdapter(settings, transport=FakeTransport(*replies), clock=FakeClock())


SENT = adapter().estimate_input_tokens(request().messages)


def before_sending() -> NetworkError:
    error = NetworkError("refused")
    error.before_sending = True
    return error


# -- the rule


@given(reported=st.builds(TokenUsage, COUNTS, COUNTS, COUNTS, COUNTS), sent=COUNTS, delivered=COUNTS)
def test_neither_what_was_reported_nor_what_was_delivered_is_lost(
    reported: TokenUsage, sent: int, delivered: int
) -> None:
    """The output is the larger of the two, the input the reported one if there is any; and it is partial."""
    used = usage_until_now(reported, TokenUsage(sent, delivered, source=ESTIMATED))
    assert reported.output_tokens <= used.output_tokens
    assert delivered <= at_most(used.output_tokens)
    assert used.output_tokens in (reported.output_tokens, delivered)
    assert used.total_input_tokens == (reported.total_input_tokens or sent)
    assert used.source is PARTIAL
    assert usage_until_now(used, TokenUsage(sent, delivered, source=ESTIMATED)) == used


def test_without_any_report_all_is_an_estimate() -> None:
    estimate = TokenUsage(5, 7, source=ESTIMATED)
    assert usage_until_now(None, estimate) is estimate


@pytest.mark.parametrize(("error", "received", "expected"), [
    (CancelledError("x"), False, "used"),
    (StreamError("x"), False, "used"),
    (RequestTimeoutError("x"), False, "used"),
    (NetworkError("x"), False, "used"),
    (AdapterError("the adapter crashed"), False, "used"),
    (before_sending(), False, "nothing"),
    (AuthError("x", provider_status=401), False, None),
    (RequestTimeoutError("x", provider_status=504), False, None),
    (ServerError("x", provider_status=500), False, None),
    (OverloadedError("in a stream, before anything else"), False, None),
    (InvalidRequestError("it can't be written"), False, None),
    (OverloadedError("in a stream, after its beginning"), True, "used"),
    (ContextOverflowError("x"), True, "used"),
], ids=str)  # fmt: skip
def test_a_refusal_has_no_usage_and_what_was_never_sent_none_at_all(
    error: AdapterError, received: bool, expected: str | None
) -> None:
    """Everything else may have been worked on."""
    used = TokenUsage(5, source=ESTIMATED)
    found = usage_of_failure(error, lambda: used, received=received)
    assert found == {"used": used, "nothing": NOTHING_USED, None: None}[expected]


# -- whole replies


async def failure(call: Awaitable[object], end: Callable[[], Awaitable[object]] | None = None) -> AdapterError:
    """What a call raises that is ended, by that, a second after it began."""
    caught: list[AdapterError] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                await call
            except AdapterError as error:
                caught.append(error)

        group.start_soon(run)
        if end is not None:
            await anyio.sleep(1)
            await end()
    (error,) = caught
    return error


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (lambda: FakeReply(wait=HANG), TokenUsage(SENT, source=ESTIMATED)),
        (lambda: FakeReply(b"[", HANG), TokenUsage(SENT, source=ESTIMATED)),
        (lambda: NetworkError("reset"), TokenUsage(SENT, source=ESTIMATED)),
        (lambda: FakeReply(b"no JSON", headers={"content-type": "text/html"}), TokenUsage(SENT, source=ESTIMATED)),
        (lambda: whole(TEXT, USAGE, {"is": "done", "stop": "error"}), TokenUsage(12, 7, source=PARTIAL)),
        (before_sending, NOTHING_USED),
        (lambda: failing(429, b"{}"), None),
    ],
    ids=["no head", "half a body", "dropped", "another protocol", "ended by an error", "never sent", "refused"],
)
async def test_a_whole_call_that_fails_has_used_what_was_sent(
    reply: Callable[[], FakeReply | Exception], expected: TokenUsage | None
) -> None:
    """Nothing of its reply came, unless it says so itself."""
    toy = adapter(reply(), timeout_seconds=60.0)
    error = await failure(toy.complete(request()))
    assert (error.usage, error.cost) == (expected, None)


@pytest.mark.anyio
@on_both
async def test_a_call_that_is_cancelled_between_two_attempts_has_used_no_more() -> None:
    """Each failed attempt has its own usage in its report; the next one was never sent."""
    toy = adapter(StreamError("reset"), max_retries=3, retry=RetryPolicy(base_delay=10.0))
    reports: list[AttemptReport] = []
    error = await failure(toy.complete(request(), on_attempt=reports.append), lambda: toy.cancel("req_1"))
    assert error.usage == NOTHING_USED
    (failed,) = [report for report in reports if isinstance(report, AttemptFailed)]
    assert failed.error.usage == TokenUsage(SENT, source=ESTIMATED)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["openai", "cohere"])
async def test_an_embedding_that_is_given_up_has_used_its_texts(kind: str) -> None:
    """By an estimate, as its reply would have said it."""
    adapter, _ = maker(kind, FakeReply(wait=HANG), timeout_seconds=5.0)
    asked = embedding_request(kind)
    error = await failure(adapter.embed(asked))
    estimate = sum(adapter.estimate_text_tokens(text, model=asked.model) for text in asked.inputs)
    assert error.usage == TokenUsage(estimate, source=ESTIMATED)


# -- streams


async def ended(toy: ToyAdapter, *, cancelled: bool) -> tuple[TokenUsage | None, TokenUsage]:
    """The meter a moment before the end of a stream that hangs, and what is booked for it."""
    events: list[StreamEvent] = []
    meter: list[TokenUsage | None] = []

    async def read() -> None:
        with contextlib.suppress(RequestTimeoutError):
            async for event in toy.stream(request()):
                events.append(event)  # noqa: PERF401  (what came before an error counts)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(1)
        meter.append(toy.usage_so_far("req_1"))
        if cancelled:
            await toy.cancel("req_1")
    return meter[0], check_stream(events).usage


@pytest.mark.anyio
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "timed out"])
@pytest.mark.parametrize(
    ("before", "input_tokens", "source"),
    [((), SENT, ESTIMATED), ((USAGE,), 12, PARTIAL)],
    ids=["nothing reported", "reported at its start"],
)
@pytest.mark.parametrize("said", [
    (LONG,),
    ({**THOUGHT, "say": LONG["say"]},),
    (CALL, {**HALF, "say": '{"path": "' + str(LONG["say"])}),
    (TEXT, CALL, {**HALF, "say": '{"path": "' + str(LONG["say"])}),
], ids=["text", "reasoning", "arguments", "all"])  # fmt: skip
async def test_what_a_stream_delivered_is_booked(
    before: tuple[dict[str, object], ...],
    input_tokens: int,
    source: UsageSource,
    said: Sequence[dict[str, object]],
    cancelled: bool,
) -> None:
    """2,000 characters are some 400 tokens, whatever they were and whatever was reported; the meter agrees."""
    toy = adapter(FakeReply(sse(*before, *said), HANG), stream_read_timeout=5.0)
    meter, booked = await ended(toy, cancelled=cancelled)
    assert (booked.input_tokens, booked.source) == (input_tokens, source)
    assert 300 < booked.output_tokens < 700
    assert meter == booked


@pytest.mark.anyio
async def test_the_meter_has_the_reported_input_as_soon_as_it_is_there() -> None:
    """700 tokens of which 600 were cached: before a word has come, and also of a call that costs nothing yet."""
    toy = adapter(FakeReply(sse({**USAGE, "input": 700, "output": 1}), HANG))
    assert toy.usage_so_far("req_1") is None
    meter, booked = await ended(toy, cancelled=True)
    assert meter == booked == TokenUsage(700, 1, source=PARTIAL)


@pytest.mark.anyio
@on_both
async def test_what_is_read_after_a_cancel_counts_as_well() -> None:
    """It was generated and came over the wire, though nobody was told."""
    steps = (sse(TEXT), 2.0, sse(LONG), StreamError("reset"))
    toy = adapter(FakeReply(*steps), drain_for_usage=30.0)
    meter, booked = await ended(toy, cancelled=True)
    assert meter is not None
    assert meter.output_tokens < 5
    assert booked.output_tokens > 300


# -- A cancelled stream that reads on for its usage: in silence, within its time, and whoever reads.


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
    for limit, total, after, message in (
        (3.0, 600.0, 11.0, "no next event within 3 s"),
        (3.0, 5.0, 5.0, "longer"),
    ):
        transport = FakeTransport(FakeReply(sse(TEXT), *slow, HANG))
        config = AdapterConfig(stream_read_timeout=limit, timeout_seconds=total, max_retries=0)
        toy = ToyAdapter(config, transport=transport, clock=FakeClock())
        events: list[StreamEvent] = []
        started = anyio.current_time()
        with pytest.raises(RequestTimeoutError, match=message):
            await toy.stream(request()).pump(events.extend)
        assert anyio.current_time() - started == pytest.approx(after)
        assert check_stream(events).stop_reason is StopReason.ERROR
        assert transport.all_closed
