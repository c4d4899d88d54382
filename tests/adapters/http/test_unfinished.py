"""The recorded usage of incomplete calls, plain and streamed, for each kind of end."""

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
def test_reported_and_delivered_usage_are_both_counted(reported: TokenUsage, sent: int, delivered: int) -> None:
    """The output is the larger of the two values. The input is the reported one, if there is one. The usage is
    partial.
    """
    estimate = TokenUsage(sent, delivered, source=ESTIMATED)
    assert usage_until_now(None, estimate) is estimate
    used = usage_until_now(reported, estimate)
    assert reported.output_tokens <= used.output_tokens
    assert delivered <= at_most(used.output_tokens)
    assert used.output_tokens in (reported.output_tokens, delivered)
    assert used.total_input_tokens == (reported.total_input_tokens or sent)
    assert used.source is PARTIAL
    assert usage_until_now(used, estimate) == used


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
def test_refused_and_unsent_requests_have_no_usage(
    error: AdapterError, received: bool, expected: str | None
) -> None:
    """All other requests may have been processed."""
    used = TokenUsage(5, source=ESTIMATED)
    found = usage_of_failure(error, lambda: used, received=received)
    assert found == {"used": used, "nothing": NOTHING_USED, None: None}[expected]


# -- whole replies


async def failure(call: Awaitable[object], end: Callable[[], Awaitable[object]] | None = None) -> AdapterError:
    """End a call a second after its start. Returns its error."""
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
async def test_a_failed_plain_call_has_used_its_input(
    reply: Callable[[], FakeReply | Exception], expected: TokenUsage | None
) -> None:
    """No part of its reply arrived, unless the error has a usage."""
    toy = adapter(reply(), timeout_seconds=60.0)
    error = await failure(toy.complete(request()))
    assert (error.usage, error.cost) == (expected, None)


@pytest.mark.anyio
@on_both
async def test_a_call_that_is_cancelled_between_attempts_has_no_further_usage() -> None:
    """Each failed attempt has its usage in its own report. The next attempt was never sent."""
    toy = adapter(StreamError("reset"), max_retries=3, retry=RetryPolicy(base_delay=10.0))
    reports: list[AttemptReport] = []
    error = await failure(toy.complete(request(), on_attempt=reports.append), lambda: toy.cancel("req_1"))
    assert error.usage == NOTHING_USED
    (failed,) = [report for report in reports if isinstance(report, AttemptFailed)]
    assert failed.error.usage == TokenUsage(SENT, source=ESTIMATED)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["openai", "cohere"])
async def test_a_cancelled_embedding_has_used_its_texts(kind: str) -> None:
    """The usage is an estimate, with the fields of a reply's usage."""
    adapter, _ = maker(kind, FakeReply(wait=HANG), timeout_seconds=5.0)
    asked = embedding_request(kind)
    error = await failure(adapter.embed(asked))
    estimate = sum(adapter.estimate_text_tokens(text, model=asked.model) for text in asked.inputs)
    assert error.usage == TokenUsage(estimate, source=ESTIMATED)


# -- streams


async def ended(toy: ToyAdapter, *, cancelled: bool) -> tuple[TokenUsage | None, TokenUsage]:
    """The meter just before the end of a hanging stream, and the recorded usage."""
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
async def test_the_delivered_content_of_a_stream_is_counted(
    before: tuple[dict[str, object], ...],
    input_tokens: int,
    source: UsageSource,
    said: Sequence[dict[str, object]],
    cancelled: bool,
) -> None:
    """2,000 characters of any kind are some 400 tokens, for any reported usage. The meter has the same figure."""
    toy = adapter(FakeReply(sse(*before, *said), HANG), stream_read_timeout=5.0)
    meter, booked = await ended(toy, cancelled=cancelled)
    assert (booked.input_tokens, booked.source) == (input_tokens, source)
    assert 300 < booked.output_tokens < 700
    assert meter == booked


@pytest.mark.anyio
async def test_the_meter_has_the_reported_input_immediately() -> None:
    """700 tokens, of which 600 are cached, are counted before the first text, and without any cost."""
    toy = adapter(FakeReply(sse({**USAGE, "input": 700, "output": 1}), HANG))
    assert toy.usage_so_far("req_1") is None
    meter, booked = await ended(toy, cancelled=True)
    assert meter == booked == TokenUsage(700, 1, source=PARTIAL)


@pytest.mark.anyio
@on_both
async def test_text_that_is_read_after_a_cancel_counts() -> None:
    """The text was generated and received, although no reader got it."""
    steps = (sse(TEXT), 2.0, sse(LONG), StreamError("reset"))
    toy = adapter(FakeReply(*steps), drain_for_usage=30.0)
    meter, booked = await ended(toy, cancelled=True)
    assert meter is not None
    assert meter.output_tokens < 5
    assert booked.output_tokens > 300


# -- A cancelled stream that is read further for its usage: without events, within a time limit, for any reader.


def draining(*steps: Step, seconds: float = 5.0) -> tuple[ToyAdapter, FakeTransport]:
    """An adapter that reads on for some time, with a reply of these steps."""
    transport = FakeTransport(FakeReply(sse(TEXT), *steps))
    config = AdapterConfig(drain_for_usage=seconds, max_retries=0)
    return ToyAdapter(config, transport=transport, clock=FakeClock()), transport


async def cancelled_while_read(toy: ToyAdapter, stream: HttpStream, *, after: float) -> list[StreamEvent]:
    """Read a stream that another task cancels. Returns all its events."""
    events: list[StreamEvent] = []

    async def cancel() -> None:
        await anyio.sleep(after)
        assert await toy.cancel("req_1")

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        async for event in stream:
            events.append(event)  # noqa: PERF401  (the task group is the point)
    return events


@pytest.mark.parametrize(("steps", "seconds", "usage", "ends"), [
    ([1.0, sse(MORE), 1.0, sse(USAGE, DONE)], 5.0, TokenUsage(12, 7), 2.0),
    ([HANG], 3.0, None, 3.5),
    ([1.0, sse(MORE)] * 50, 3.0, None, 3.5),
    ([1.0, sse(USAGE), NetworkError("gone")], 5.0, TokenUsage(12, 7, source=PARTIAL), 1.0),
], ids=["the end", "silence", "without an end", "broken"])  # fmt: skip
@on_both
async def test_the_final_usage_of_a_cancelled_stream_is_reported(
    steps: list[Step], seconds: float, usage: TokenUsage | None, ends: float
) -> None:
    """Content after the cancel is not delivered. The limit applies to the whole drain, not to each piece. Usage
    that the provider did not report is estimated.
    """
    toy, transport = draining(*steps, seconds=seconds)
    started = anyio.current_time()
    events = await cancelled_while_read(toy, toy.stream(request()), after=0.5)
    last = check_stream(events)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["Hel"]
    assert last.stop_reason is StopReason.CANCELLED
    assert last.usage == usage or (usage is None and last.usage.source is ESTIMATED)
    assert anyio.current_time() - started == pytest.approx(ends)
    assert transport.all_closed


@on_both
async def test_the_canceller_drains_a_stream_without_a_reader() -> None:
    """The connection does not stay open until a reader comes. A later reader gets the end with the usage."""
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
    assert (stream.response.text, stream.response.stop_reason) == ("Hel", StopReason.CANCELLED)


async def test_a_reader_that_comes_during_the_drain_waits_for_it() -> None:
    """Two tasks never read the same connection concurrently."""
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
    """`aclose()` of the stream and `close()` of the adapter end a call immediately, even during a drain."""
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
    """A second cancel neither extends the drain nor ends it."""
    toy, _ = draining(2.0, sse(USAGE, DONE), seconds=3.0)

    async def again() -> None:
        await anyio.sleep(1.0)
        await toy.cancel("req_1")

    async with anyio.create_task_group() as group:
        group.start_soon(again)
        last = check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert last.usage.source is UsageSource.REPORTED


async def test_by_default_there_is_no_drain() -> None:
    """A request can set 0 for itself. With 0, a cancel closes the stream immediately."""
    toy, transport = draining(HANG)
    started = anyio.current_time()
    stream = toy.stream(request(drain_for_usage=0.0))
    last = check_stream(await cancelled_while_read(toy, stream, after=0.5))
    assert anyio.current_time() - started == pytest.approx(0.5)
    assert last.stop_reason is StopReason.CANCELLED
    assert transport.all_closed


async def test_before_the_reply_has_started_there_is_no_drain() -> None:
    """A cancel before the reply, or between two attempts, ends the call immediately."""
    transport = FakeTransport(FakeReply(sse(TEXT), wait=HANG))
    toy = ToyAdapter(AdapterConfig(drain_for_usage=5.0), transport=transport, clock=FakeClock())
    started = anyio.current_time()
    check_stream(await cancelled_while_read(toy, toy.stream(request()), after=0.5))
    assert anyio.current_time() - started == pytest.approx(0.5)


async def test_a_pumped_stream_gives_the_same_events() -> None:
    """Events that arrive together are delivered together. A cancel, a drain and time limits work as with
    iteration.
    """
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
    """The limit between events restarts with each piece. The limit of the whole call does not."""
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
