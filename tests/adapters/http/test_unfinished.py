"""What is booked for a call that did not end well: whole or streamed, whatever ended it, whenever."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig, RetryPolicy
from callboard.adapters.contract import AttemptFailed, AttemptReport
from callboard.adapters.usage.estimate import at_most
from callboard.adapters.usage.unfinished import NOTHING_USED, usage_of_failure, usage_until_now
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
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import TokenUsage, UsageSource

from ...support.fake_http import (
    CALL,
    HALF,
    HANG,
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
from ..operations.making import embedding_request, maker

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


@pytest.mark.parametrize(
    ("error", "heard", "expected"),
    [
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
    ],
    ids=str,
)
def test_a_refusal_has_no_usage_and_what_was_never_sent_none_at_all(
    error: AdapterError, heard: bool, expected: str | None
) -> None:
    """Everything else may have been worked on."""
    used = TokenUsage(5, source=ESTIMATED)
    found = usage_of_failure(error, lambda: used, heard=heard)
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
async def test_a_whole_call_that_is_cancelled_has_used_what_was_sent() -> None:
    toy = adapter(FakeReply(wait=HANG))
    error = await failure(toy.complete(request()), lambda: toy.cancel("req_1"))
    assert isinstance(error, CancelledError)
    assert error.usage == TokenUsage(SENT, source=ESTIMATED)


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
@pytest.mark.parametrize(
    "said",
    [
        (LONG,),
        ({**THOUGHT, "say": LONG["say"]},),
        (CALL, {**HALF, "say": '{"path": "' + str(LONG["say"])}),
        (TEXT, CALL, {**HALF, "say": '{"path": "' + str(LONG["say"])}),
    ],
    ids=["text", "reasoning", "arguments", "all"],
)
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
