"""The behaviour of an HTTP adapter around its protocol, beyond the conformance kit: retry hints, total time
limits, unusual ends.

The protocol is that of `tests.support.fake_http`, the network is scripted, and time is virtual. The kit checks
attempts, cancelling, closing and truncated streams on every wire (`tests/conformance/test_kits.py`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import anyio
import anyio.lowlevel
import pytest

from callboard.adapters.config import AdapterConfig, RetryPolicy
from callboard.adapters.contract import AttemptFailed, AttemptFirstEvent, AttemptReport, AttemptStarted
from callboard.adapters.http.stream import HttpStream
from callboard.bus.errors import (
    AdapterError,
    ErrorClass,
    InvalidRequestError,
    NetworkError,
    OverloadedError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StreamError,
)
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.content import TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.fake_http import (
    CALL,
    EVERYTHING,
    HALF,
    HANG,
    HELLO,
    MORE,
    SIGNED,
    TEXT,
    THOUGHT,
    USAGE,
    FakeReply,
    FakeTransport,
    ToyAdapter,
    failing,
    request,
    sse,
    whole,
)
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, on_both

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
OVERLOADED = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'


def adapter(*replies: FakeReply | Exception, **config: object) -> tuple[ToyAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    settings = AdapterConfig(**{"api_key": KEY, **config})  # type: ignore[arg-type]
    return ToyAdapter(settings, transport=transport, clock=FakeClock(randomness=0.0)), transport


async def read(stream: HttpStream) -> tuple[list[StreamEvent], AdapterError | None]:
    """Read all events of a stream. Returns them with the error that the stream raised."""
    events: list[StreamEvent] = []
    try:
        async for event in stream:
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        return events, error
    return events, None


def written(reports: Iterable[AttemptReport]) -> list[object]:
    """Reports in a short form."""
    short: list[object] = []
    for report in reports:
        match report:
            case AttemptStarted():
                short.append((report.attempt, report.reason))
            case AttemptFirstEvent():
                short.append((report.attempt, "first event"))
            case AttemptFailed():
                short.append((report.attempt, type(report.error).__name__, report.delay_seconds))
    return short


# -- replies


async def test_a_request_has_its_method_address_and_headers() -> None:
    """The request has method, address, key and the expected kind of reply. The caller's headers replace the
    adapter's.
    """
    toy, transport = adapter(whole(*HELLO), FakeReply(sse(*HELLO)), extra_headers={"accept": "x", "x-mine": "1"})
    await toy.complete(request())
    sent = transport.requests[0]
    assert (sent.method, sent.url) == ("POST", "https://toy.test/v1/talk")
    assert sent.headers["x-api-key"] == KEY
    assert (sent.headers["accept"], sent.headers["x-mine"]) == ("x", "1")


async def test_a_request_that_cannot_be_written_is_refused_before_it_is_sent() -> None:
    """The error is an AdapterError."""
    toy, transport = adapter()
    with pytest.raises(InvalidRequestError, match="can't be written"):
        await toy.complete(request(messages=(Message.user("\ud83d"),)))
    assert transport.requests == []


# -- attempts


async def test_a_hint_longer_than_the_time_limit_is_not_waited_for() -> None:
    """The error is raised immediately, not as a timeout later."""
    toy, transport = adapter(failing(429, b"", retry_after="30"), timeout_seconds=20)
    with pytest.raises(RateLimitError) as raised:
        await toy.complete(request())
    assert raised.value.retry_after_seconds == 30
    assert anyio.current_time() < 20
    assert len(transport.requests) == 1


async def test_an_attempt_that_fails_before_its_first_event_is_retried() -> None:
    """A connection error, an error with status 200 and a body that breaks off are retried without a visible
    event.
    """
    toy, transport = adapter(
        NetworkError("refused"),
        FakeReply(sse({"is": "error", "error": {"type": "overloaded_error"}})),
        FakeReply(sse(USAGE), StreamError("reset")),
        FakeReply(sse(USAGE)),
        FakeReply(sse(*HELLO)),
        max_retries=4,
    )
    reports: list[AttemptReport] = []
    events, error = await read(toy.stream(request(), on_attempt=reports.append))
    assert error is None
    assert check_stream(events).usage == TokenUsage(12, 7)
    failed = [type(report.error) for report in reports if isinstance(report, AttemptFailed)]
    assert failed == [NetworkError, OverloadedError, StreamError, StreamError]
    assert transport.all_closed


@pytest.mark.parametrize("ending", [
    pytest.param(sse({"is": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        id="error event"),
    pytest.param(StreamError("reset"), id="broken connection"),
    pytest.param(b"", id="early end"),
    pytest.param(b"data: {nonsense\n\n", id="nonsense"),
    pytest.param(b'data: {"is": ' + b"[" * 50_000 + b"\n\n", id="nested nonsense"),
])  # fmt: skip
async def test_after_a_delivered_event_there_is_no_retry(ending: bytes | Exception) -> None:
    """The received content is kept, the message ends with the error, and then the stream raises the error."""
    toy, transport = adapter(FakeReply(sse(THOUGHT, SIGNED, TEXT, USAGE, CALL, HALF), ending))
    reports: list[AttemptReport] = []
    stream = toy.stream(request(), on_attempt=reports.append)
    events, error = await read(stream)
    assert await read(stream) == ([], None), "the next read gets the end, not the error again"
    last = check_stream(events)
    assert last.stop_reason is StopReason.ERROR
    assert [type(block) for block in last.final_content] == [ThinkingBlock, TextBlock, ToolUseBlock]
    assert isinstance(error, AdapterError)
    assert error.error_class in (ErrorClass.RATE_LIMIT, ErrorClass.NETWORK)
    assert error.content == last.final_content
    assert error.usage == TokenUsage(12, 7, source=UsageSource.PARTIAL)
    assert error.request_id == "req_1"
    assert written(reports) == [(1, "first"), (1, "first event")]
    assert transport.all_closed


async def test_a_request_id_can_run_only_once_at_a_time() -> None:
    """With a second call of the same id, `cancel` would be ambiguous. After the first call has ended, the id is
    free.
    """
    toy, transport = adapter(FakeReply(sse(TEXT), HANG), whole(*HELLO))
    async with toy.stream(request()) as stream:
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="already running"):
            await toy.complete(request())
        events, error = await read(toy.stream(request()))
        assert events == []
        assert isinstance(error, InvalidRequestError)
    await toy.complete(request())
    assert len(transport.requests) == 2


# -- time


async def test_a_request_without_a_timely_reply_is_retried() -> None:
    """The first event has a time limit, which starts with the request."""
    toy, transport = adapter(
        FakeReply(wait=HANG), FakeReply(sse(*HELLO)), first_event_timeout=5, retry=RetryPolicy(jitter=False)
    )
    events, error = await read(toy.stream(request()))
    assert error is None
    check_stream(events)
    assert anyio.current_time() == pytest.approx(6.0)
    assert len(transport.requests) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_whole_call_has_one_limit_for_all_attempts(streamed: bool) -> None:
    """The limit is not retried, for any limit of the attempts."""
    toy, transport = adapter(failing(500), FakeReply(sse(TEXT), *[3.0, sse(MORE)] * 100), timeout_seconds=20)
    if streamed:
        events, error = await read(toy.stream(request()))
        assert check_stream(events).stop_reason is StopReason.ERROR
    else:
        with pytest.raises(RequestTimeoutError) as raised:
            await toy.complete(request())
        error = raised.value
    assert isinstance(error, RequestTimeoutError)
    assert not error.retryable
    assert "longer than 20 s" in str(error)
    assert anyio.current_time() == pytest.approx(20.0)
    assert transport.all_closed


async def test_a_slow_reader_causes_no_timeout() -> None:
    """Time limits run while the adapter waits, not while its reader works."""
    toy, _ = adapter(
        FakeReply(sse(TEXT), sse(MORE), sse(USAGE, {"is": "done", "stop": "end_turn"})), stream_read_timeout=5
    )
    events = []
    async for event in toy.stream(request()):
        events.append(event)
        await anyio.sleep(50)
    assert check_stream(events).stop_reason is StopReason.END_TURN


# -- cancelling

CHUNKS = [sse(event) for event in EVERYTHING]


@on_both
async def test_cancelling_the_backoff_of_a_stream_ends_it() -> None:
    """The cancelled message is empty, because no event was delivered."""
    toy, _ = adapter(failing(429, b"", retry_after="50"))
    events: list[StreamEvent] = []

    async def reader() -> None:
        found, error = await read(toy.stream(request()))
        assert error is None
        events.extend(found)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await anyio.sleep(1)
        assert await toy.cancel("req_1") is True
    assert [event.type for event in events] == ["message.start", "message.complete"]
    assert check_stream(events).stop_reason is StopReason.CANCELLED


async def test_closing_a_stream_that_another_task_reads_ends_its_read() -> None:
    toy, transport = adapter(FakeReply(sse(TEXT), HANG))
    stream = toy.stream(request())
    async with anyio.create_task_group() as tasks:

        async def reader() -> None:
            with anyio.fail_after(5):
                events, error = await read(stream)
            assert error is None
            assert check_stream(events).stop_reason is StopReason.CANCELLED

        tasks.start_soon(reader)
        await anyio.sleep(1)
        await stream.aclose()
    assert transport.all_closed


@on_both
async def test_cancelling_at_any_checkpoint_leaves_nothing_open() -> None:
    """The test repeats the same call and cancels it one checkpoint later each time."""
    for steps in range(60):
        replies = failing(529, OVERLOADED), FakeReply(*CHUNKS)
        toy, transport = adapter(*replies, retry=RetryPolicy(base_delay=0.0))
        finished = False
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def hurry(scope: anyio.CancelScope = scope, steps: int = steps) -> None:
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                tasks.start_soon(hurry)
                events, error = await read(toy.stream(request()))
                finished = True
                assert error is None
                check_stream(events)
        assert transport.all_closed
        assert await toy.cancel("req_1") is False
    assert finished, "sixty checkpoints are more than the call has"


async def test_an_abandoned_stream_does_not_leak() -> None:
    """The adapter only keeps weak references to its calls."""
    toy, _ = adapter(FakeReply(sse(TEXT), HANG))
    stream = toy.stream(request())
    await anext(stream)
    del stream
    gc.collect()
    assert await toy.cancel("req_1") is False


# -- secrets


async def test_an_error_has_the_request_and_the_provider() -> None:
    """Every error has the request's id and the provider's name."""
    for failure in (failing(500), NetworkError("x"), FakeReply(wait=HANG), failing(302)):
        toy, _ = adapter(failure, max_retries=0, first_event_timeout=1, timeout_seconds=2)
        with pytest.raises(AdapterError) as raised:
            await toy.complete(request())
        assert (raised.value.request_id, raised.value.provider) == ("req_1", "toy")
        assert isinstance(raised.value, ServerError | NetworkError | InvalidRequestError)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_policy_s_observer_is_notified_of_each_retry(stream: bool) -> None:
    """The observer gets the error, the attempt's number and the delay. An error of the observer does not affect
    the call.
    """
    told: list[tuple[int, float]] = []

    def on_retry(error: AdapterError, attempt: int, delay: float) -> None:
        told.append((attempt, delay))
        raise ValueError("of the host")

    busy = FakeReply(b"", status=503)
    policy = RetryPolicy(base_delay=0.5, jitter=False, on_retry=on_retry)
    good = FakeReply(sse(*HELLO)) if stream else whole(*HELLO)
    toy, _ = adapter(busy, busy, good, max_retries=2, retry=policy)
    if stream:
        assert (await read(toy.stream(request())))[1] is None
    else:
        await toy.complete(request())
    assert told == [(1, 0.5), (2, 1.0)]
