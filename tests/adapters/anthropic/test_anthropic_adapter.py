"""The adapter as a whole, on a network that is a script. Replies are written by hand from wire facts."""

from __future__ import annotations

import msgspec
import pytest

from adapters import registry
from adapters.contract import (
    AdapterConfig,
    AttemptFailed,
    AttemptReport,
    AttemptStarted,
    ProviderAdapter,
    RateLimitInfo,
)
from adapters.providers.anthropic.adapter import AnthropicAdapter
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StreamError,
)
from bus.streams.events import (
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from bus.values.content import TextBlock, ToolUseBlock
from bus.values.json import JsonObject
from bus.values.usage import StopReason, UsageSource

from ...support.fake_http import HANG, FakeReply, FakeTransport, failing, request
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from .wire_events import START_USAGE, body, delta, ending, event, message_start, start, text, tool

pytestmark = pytest.mark.anyio

HELLO = body([message_start(), *text(0, "Hel", "lo"), *ending()])
WHOLE: JsonObject = {
    "type": "message",
    "id": "msg_1",
    "model": "claude-test",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": {**START_USAGE, "output_tokens": 10},
}
JSON = {"content-type": "application/json"}


def adapter(*replies: FakeReply | Exception, max_retries: int = 0) -> tuple[AnthropicAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    config = AdapterConfig(api_key="sk-secret", base_url="https://proxy.test/v1/", max_retries=max_retries)
    return AnthropicAdapter(config, transport=transport, clock=FakeClock()), transport


async def test_a_plain_call() -> None:
    """Address, headers, body; and the response with everything that the reply says about itself."""
    headers = {
        **JSON,
        "request-id": "req_wire",
        "retry-after": "9",  # sent with good replies too
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:01Z",
        "anthropic-ratelimit-tokens-limit": "80000",
        "anthropic-ratelimit-tokens-remaining": "79000",
        "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:02Z",
    }
    anthropic, transport = adapter(FakeReply(msgspec.json.encode(WHOLE), headers=headers))
    response = await anthropic.complete(request(model="anthropic:claude-alias"))
    (sent,) = transport.requests
    assert sent.url == "https://proxy.test/v1/messages"
    assert sent.headers["x-api-key"] == "sk-secret"
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert msgspec.json.decode(sent.body)["stream"] is False
    assert (response.model, response.response_id) == ("anthropic:claude-test", "msg_1")
    assert (response.content, response.stop_reason) == ((TextBlock("Hello"),), StopReason.END_TURN)
    assert response.provider_request_id == "req_wire"
    assert response.rate_limit == RateLimitInfo(
        requests_limit=50,
        requests_remaining=49,
        tokens_limit=80000,
        tokens_remaining=79000,
        reset_at="2026-01-01T00:00:02Z",
    )


async def test_limits_that_make_no_sense_are_no_limits() -> None:
    """Only input tokens, or nonsense, in the headers."""
    anthropic, _ = adapter()
    assert anthropic.wire.rate_limit({"x": "y"}) is None
    found = anthropic.wire.rate_limit(
        {"anthropic-ratelimit-input-tokens-limit": "7", "anthropic-ratelimit-requests-limit": "²"}
    )
    assert found == RateLimitInfo(tokens_limit=7)


async def test_the_contracts_first_example_streams_in_order() -> None:
    """Text, then a call with its input in fragments, then the end with the usage (example 9.1)."""
    anthropic, transport = adapter(
        FakeReply(
            body(
                [
                    message_start(),
                    *text(0, "I'll ", "read it."),
                    *tool(1, "read_file", "toolu_1", '{"path": ', '"README.md"}'),
                    *ending("tool_use"),
                ]
            )
        )
    )
    async with anthropic.stream(request()) as stream:
        events = [item async for item in stream]
    assert [type(item) for item in events] == [
        MessageStart,
        TextDelta,
        TextDelta,
        ToolUseStart,
        ToolUseInputDelta,
        ToolUseInputDelta,
        ToolUseEnd,
        MessageComplete,
    ]
    complete = check_stream(events)
    assert isinstance(events[-2], ToolUseEnd)
    assert events[-2].final_input == {"path": "README.md"}
    assert (complete.usage.input_tokens, complete.usage.output_tokens) == (20, 10)
    assert stream.response is not None
    assert stream.response.content == complete.final_content
    assert transport.all_closed


async def test_overload_is_retried_within_the_call() -> None:
    """Two replies of 529, then a good one: three attempts, and the caller sees no failure (example 9.3)."""
    busy = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    anthropic, _ = adapter(failing(529, busy), failing(529, busy), FakeReply(HELLO), max_retries=2)
    reports: list[AttemptReport] = []
    events = [item async for item in anthropic.stream(request(), on_attempt=reports.append)]
    assert check_stream(events).stop_reason is StopReason.END_TURN
    assert [report.attempt for report in reports if isinstance(report, AttemptStarted)] == [1, 2, 3]
    failed = [report for report in reports if isinstance(report, AttemptFailed)]
    assert [(type(report.error), report.delay_seconds) for report in failed] == [
        (OverloadedError, 1.25),
        (OverloadedError, 2.5),
    ]


async def test_an_error_in_the_middle_keeps_what_was_said() -> None:
    """The deltas stand, the message is closed with what there was, and then the exception comes."""
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    anthropic, _ = adapter(
        FakeReply(body([message_start(), start(0, "text"), delta(0, "text_delta", text="Hel"), error])),
        max_retries=2,
    )
    events: list[StreamEvent] = []
    with pytest.raises(OverloadedError) as caught:
        async for item in anthropic.stream(request()):
            events.append(item)  # noqa: PERF401 (the loop ends in an exception)
    complete = check_stream(events)
    assert (complete.stop_reason, complete.final_content) == (StopReason.ERROR, (TextBlock("Hel"),))
    assert (complete.usage.input_tokens, complete.usage.source) == (20, UsageSource.PARTIAL)
    assert caught.value.content == (TextBlock("Hel"),)
    assert caught.value.request_id == "req_1"


async def test_cancelling_inside_a_call_closes_it_unfinished() -> None:
    """200 deltas stand, the half call ends without input and marked, and the iterator ends (example 9.4)."""
    events = [message_start(), *text(0, *["x"] * 200)]
    events += [
        start(1, "tool_use", id="toolu_1", name="f", input={}),
        delta(1, "input_json_delta", partial_json='{"a": '),
    ]
    anthropic, transport = adapter(FakeReply(body(events), HANG))
    seen: list[StreamEvent] = []
    async for item in anthropic.stream(request()):
        seen.append(item)
        if isinstance(item, ToolUseInputDelta):
            assert await anthropic.cancel("req_1")
    complete = check_stream(seen)
    assert complete.stop_reason is StopReason.CANCELLED
    said, call = complete.final_content
    assert said == TextBlock("x" * 200)
    assert isinstance(call, ToolUseBlock)
    assert (call.input, call.incomplete) == ({}, True)
    assert complete.usage.source is UsageSource.PARTIAL
    assert transport.all_closed


async def test_a_whole_reply_to_a_streamed_request_is_read() -> None:
    """Some servers don't stream."""
    anthropic, _ = adapter(FakeReply(msgspec.json.encode(WHOLE), headers=JSON))
    events = [item async for item in anthropic.stream(request())]
    assert check_stream(events).final_content == (TextBlock("Hello"),)


_ERRORS: list[tuple[int, str, str, type[AdapterError], bool]] = [
    (400, "invalid_request_error", "messages.0: bad", InvalidRequestError, False),
    (
        400,
        "invalid_request_error",
        "prompt is too long: 213462 tokens > 200000 maximum",
        ContextOverflowError,
        False,
    ),
    (
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
        ContextOverflowError,
        False,
    ),
    (400, "invalid_request_error", "max_tokens: 200000 > 64000, which is the maximum", InvalidRequestError, False),
    (400, "invalid_request_error", "Your credit balance is too low to access", QuotaExceededError, False),
    (400, "invalid_request_error", "You have reached your specified API usage limits.", QuotaExceededError, False),
    (401, "authentication_error", "invalid x-api-key", AuthError, False),
    (402, "billing_error", "pay", QuotaExceededError, False),
    (403, "permission_error", "not for you", AccessDeniedError, False),
    (404, "not_found_error", "model: claude-does-not-exist", NotFoundError, False),
    (408, "", "timeout", RequestTimeoutError, True),
    (409, "conflict_error", "again", InvalidRequestError, True),
    (413, "request_too_large", "Request exceeds the maximum size", InvalidRequestError, False),
    (429, "rate_limit_error", "too many", RateLimitError, True),
    (500, "api_error", "Internal server error", ServerError, True),
    (503, "api_error", "down", ServerError, True),
    (504, "timeout_error", "late", ServerError, True),
    (529, "overloaded_error", "Overloaded", OverloadedError, True),
    (500, "overloaded_error", "Overloaded", OverloadedError, True),
]


@pytest.mark.parametrize(("status", "kind", "message", "expected", "retryable"), _ERRORS)
async def test_every_error_has_its_class(
    status: int, kind: str, message: str, expected: type[AdapterError], retryable: bool
) -> None:
    """By type first, then status, and by message only for overflow and credit."""
    said = msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_wire"}
    )
    anthropic, _ = adapter(failing(status, said))
    with pytest.raises(AdapterError) as caught:
        await anthropic.complete(request())
    error = caught.value
    assert type(error) is expected
    assert (error.provider_status, error.provider_message, error.retryable) == (status, message, retryable)
    assert error.provider_request_id == "req_wire"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("enforced_spend_limit_reached", QuotaExceededError),
        ("contract_spend_limit_reached", QuotaExceededError),
        ("ramp_limit_exceeded", RateLimitError),
        ("something_new", RateLimitError),
    ],
)
async def test_a_429_is_told_apart_by_its_detail(code: str, expected: type[AdapterError]) -> None:
    """A spent budget is not worth waiting for."""
    inner = {"type": "rate_limit_error", "message": "no", "details": {"error_code": code}}
    anthropic, _ = adapter(failing(429, msgspec.json.encode({"type": "error", "error": inner}), retry_after="7"))
    with pytest.raises(RateLimitError) as caught:
        await anthropic.complete(request())
    assert type(caught.value) is expected
    assert caught.value.retry_after_seconds == 7


@pytest.mark.parametrize(
    "reply", [b"", b"<html>", b"null", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"content": 1}']
)
async def test_a_reply_that_is_none_is_a_stream_error(reply: bytes) -> None:
    """Whatever stands in the body of a 200."""
    anthropic, _ = adapter(FakeReply(reply, headers=JSON), FakeReply(reply, headers={"content-type": "text/html"}))
    with pytest.raises(StreamError):
        await anthropic.complete(request())
    with pytest.raises(StreamError):
        async for _ in anthropic.stream(request()):
            pass


async def test_the_registry_knows_it() -> None:
    """`type: anthropic` in models.yaml makes one, under the name given there."""
    made = registry.create_adapter("anthropic", AdapterConfig(), name="proxy")
    assert isinstance(made, AnthropicAdapter)
    assert isinstance(made, ProviderAdapter)
    assert (made.name, made.base_url, made.wire.auth_headers()) == ("proxy", "https://api.anthropic.com", {})
    assert made.get_capabilities("claude-of-tomorrow").supports_tools
    await made.close()
