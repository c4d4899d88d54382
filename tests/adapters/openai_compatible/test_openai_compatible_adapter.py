"""The adapter over a scripted network: keys, error replies, limits, replies of the unexpected kind."""

from __future__ import annotations

import msgspec
import pytest

from adapters.contract import AdapterConfig, CanonicalResponse, RateLimitInfo
from adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from adapters.refusals.rate_limits import read_rate_limit
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
)
from bus.streams.events import StreamEvent
from bus.values.json import JsonObject
from bus.values.messages import ToolDefinition
from bus.values.usage import StopReason

from ...support.fake_http import FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from .wire_chunks import DONE, STOP, USAGE, ask, body, chunk, reply, tool

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


def made(*replies: FakeReply, **config: object) -> OpenAICompatibleAdapter:
    fields: dict[str, object] = {"base_url": "http://127.0.0.1:9", **config}
    return OpenAICompatibleAdapter(
        AdapterConfig(**fields),  # type: ignore[arg-type]
        transport=FakeTransport(*replies),
        clock=FakeClock(),
    )


def whole(value: JsonObject, **headers: str) -> FakeReply:
    return FakeReply(msgspec.json.encode(value), headers={**JSON, **headers})


async def both(reply: FakeReply, **config: object) -> tuple[CanonicalResponse, list[StreamEvent]]:
    """The same bytes for `complete()` and for `stream()`."""
    copy = FakeReply(*reply.steps, status=reply.status, headers=reply.headers)
    response = await made(reply, **config).complete(ask())
    return response, [event async for event in made(copy, **config).stream(ask())]


async def test_the_key_goes_in_its_header() -> None:
    """Bearer, Azure's own header, or none if there is no key."""
    for config, name, expected in (
        ({"api_key": "k"}, "authorization", "Bearer k"),
        ({"api_key": "k", "base_url": "https://x.openai.azure.com"}, "api-key", "k"),
        ({}, "authorization", None),
    ):
        adapter = made(whole(reply(content="Hi")), **config)
        await adapter.complete(ask())
        assert isinstance(adapter.client.transport, FakeTransport)
        assert adapter.client.transport.requests[0].headers.get(name) == expected


async def test_a_response_says_where_it_comes_from() -> None:
    """The model served, ids, limits and usage stand in the response."""
    headers = {"x-request-id": "req_9", "x-ratelimit-remaining-tokens": "70", "x-ratelimit-reset-tokens": "6m0s"}
    response = await made(whole(reply(content="Hi"), **headers)).complete(ask())
    assert (response.model, response.text) == ("openai_compatible:test-2026", "Hi")
    assert (response.response_id, response.provider_request_id) == ("chatcmpl-1", "req_9")
    assert response.rate_limit == RateLimitInfo(tokens_remaining=70, reset_at="6m0s")
    assert response.usage.total_input_tokens == 100


def test_limits_that_are_none() -> None:
    """Some gateways write -1, or nothing."""
    assert read_rate_limit({}) is None
    limits = read_rate_limit({"x-ratelimit-limit-requests": "-1", "x-ratelimit-remaining": "5"})
    assert limits == RateLimitInfo(requests_remaining=5)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
async def test_a_whole_reply_to_a_streamed_request(kind: str) -> None:
    """Servers that can't stream answer in one piece; the events are the same."""
    _, events = await both(FakeReply(msgspec.json.encode(reply(content="Hi")), headers={"content-type": kind}))
    assert check_stream(events).stop_reason is StopReason.END_TURN


async def test_a_streamed_reply_to_a_plain_request() -> None:
    """Servers that always stream are understood as well."""
    response, events = await both(
        FakeReply(b": hi\n\n" + body([chunk(content="Hi"), STOP | {"usage": USAGE}, DONE]))
    )
    assert response.text == "Hi"
    assert response.content == check_stream(events).final_content


ERRORS: list[tuple[int, object, type[AdapterError]]] = [
    (400, {"error": {"message": "bad", "type": "invalid_request_error", "code": None}}, InvalidRequestError),
    (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, ContextOverflowError),
    (
        400,
        {"error": {"code": 400, "message": "too large", "type": "exceed_context_size_error", "n_ctx": 512}},
        ContextOverflowError,
    ),
    (400, {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequestError),
    (400, {"error": {"message": "x", "code": "tool_use_failed", "failed_generation": "y"}}, InvalidRequestError),
    (400, {"error": {"message": "filtered", "code": "content_filter"}}, ContentFilterError),
    (
        400,
        {"error": {"message": "string too long. maximum length 40", "code": "string_above_max_length"}},
        InvalidRequestError,
    ),
    (
        400,
        {"error": {"message": "maximum context length is 8 tokens", "type": "BadRequestError", "code": 400}},
        ContextOverflowError,
    ),
    (400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: x"}, AuthError),
    (403, {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["x"]}}}, ContentFilterError),
    (401, {"error": {"message": "no", "code": "invalid_api_key"}}, AuthError),
    (402, {"error": {"message": "Insufficient Balance"}}, QuotaExceededError),
    (403, {"error": {"message": "no"}}, AccessDeniedError),
    (404, {"error": {"message": "no such model", "code": "model_not_found"}}, NotFoundError),
    (413, b"<html>413</html>", InvalidRequestError),
    (422, {"detail": [{"msg": "field required"}]}, InvalidRequestError),
    (422, {"object": "error", "message": {"detail": []}, "type": "invalid", "code": None}, InvalidRequestError),
    (429, {"error": {"message": "slow", "code": "rate_limit_exceeded", "type": "tokens"}}, RateLimitError),
    (429, {"error": {"message": "x", "code": "insufficient_quota"}}, QuotaExceededError),
    (
        429,
        {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "y"}}},
        RateLimitError,
    ),
    (429, [{"error": {"code": 429, "message": "x", "status": "RESOURCE_EXHAUSTED"}}], RateLimitError),
    (429, {"error": {"code": "1113", "message": "balance"}}, QuotaExceededError),
    (400, {"error": {"code": "1261", "message": "prompt too long"}}, ContextOverflowError),
    (400, {"code": "Client specified an invalid argument", "error": "no such parameter"}, InvalidRequestError),
    (498, {"error": {"message": "capacity"}}, OverloadedError),
    (500, {"error": {"message": "x", "type": "server_error"}}, ServerError),
    (502, b"<html><body>Bad gateway</body></html>", ServerError),
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, ServerError),
    (503, {"error": {"message": "x", "code": "server_is_overloaded"}}, OverloadedError),
    (529, b"", OverloadedError),
]


@pytest.mark.parametrize(("status", "said", "kind"), ERRORS)
async def test_error_replies(status: int, said: object, kind: type[AdapterError]) -> None:
    """Type and code first, then the status, the message last."""
    data = said if isinstance(said, bytes) else msgspec.json.encode(said)
    adapter = made(FakeReply(data, status=status, headers=JSON), max_retries=0)
    with pytest.raises(AdapterError) as caught:
        await adapter.complete(ask())
    assert type(caught.value) is kind
    assert caught.value.provider_status == status
    assert caught.value.request_id == "req_1"


async def test_a_silent_400_of_cerebras_is_an_overflow() -> None:
    """It says nothing when the prompt is too long; elsewhere silence means nothing."""
    for quirks, kind in (("cerebras", ContextOverflowError), ("default", InvalidRequestError)):
        adapter = made(FakeReply(b"", status=400), options={"quirks": quirks}, max_retries=0)
        with pytest.raises(AdapterError) as caught:
            await adapter.complete(ask())
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    "data", [b"", b"method=POST pathname=/x", b"{}", b'{"contentType": "x"}', b"null", b"[" * 100_000, b'{"a":']
)
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/event-stream"])
async def test_a_200_that_is_no_reply_raises(data: bytes, kind: str) -> None:
    """Whatever the content type, called either way, it is a failure and an AdapterError."""
    for call in ("complete", "stream"):
        adapter = made(FakeReply(data, headers={"content-type": kind}), max_retries=0)
        with pytest.raises(StreamError):
            if call == "complete":
                await adapter.complete(ask())
            else:
                _ = [event async for event in adapter.stream(ask())]


async def test_old_errors_at_200_are_raised_as_what_they_are() -> None:
    """The shape without an `error` key, as older servers send it."""
    said: JsonObject = {"object": "error", "message": "busy", "type": "overloaded_error", "code": None}
    with pytest.raises(OverloadedError):
        await made(whole(said), max_retries=0).complete(ask())


async def test_added_nulls_are_gone_before_anyone_sees_them() -> None:
    """A strict schema made an optional parameter nullable; its null is not an argument."""
    optional = ToolDefinition("look", "", {"type": "object", "properties": {"at": {"type": "integer"}}})
    adapter = made(
        whole(reply("tool_calls", tool_calls=[tool(arguments='{"at":null}')])), options={"quirks": "openai"}
    )
    response = await adapter.complete(ask(tools=(optional,)))
    assert [block.input for block in response.tool_uses] == [{}]


async def test_a_failure_in_mid_stream_keeps_what_was_delivered() -> None:
    """The stream ends with what there is, and then raises."""
    data = body([chunk(content="Hel"), {"error": {"message": "busy", "type": "overloaded_error"}, "usage": USAGE}])
    events: list[StreamEvent] = []
    with pytest.raises(OverloadedError) as caught:
        async for event in made(FakeReply(data)).stream(ask()):
            events.append(event)  # noqa: PERF401 (the events before the error count)
    complete = check_stream(events)
    assert complete.stop_reason is StopReason.ERROR
    assert complete.usage.output_tokens == 20
    assert caught.value.content == complete.final_content


@pytest.mark.parametrize(
    ("streams", "tools", "whole_pieces"),
    [("always", 1, False), ("without tools", 0, False), ("without tools", 1, True), ("never", 0, True)],
)
async def test_what_a_server_can_not_stream_comes_in_whole_pieces(
    streams: str, tools: int, whole_pieces: bool
) -> None:
    """The plain call is made, and its reply has the same events as a stream's."""
    streamed = FakeReply(body([chunk(content="Hi"), STOP, DONE]))
    adapter = made(
        whole(reply(content="Hi")) if whole_pieces else streamed, options={"quirks": {"streams": streams}}
    )
    request = ask(tools=(ToolDefinition("look"),) * tools)
    stream = adapter.stream(request)
    events = [event async for event in stream]
    check_stream(events)
    assert [event.type for event in events] == ["message.start", "text.delta", "message.complete"]
    assert stream.response is not None
    assert stream.response.text == "Hi"
    assert isinstance(adapter.client.transport, FakeTransport)
    asked = msgspec.json.decode(adapter.client.transport.requests[0].body)
    assert asked.get("stream", False) is not whole_pieces
    can = adapter.capabilities
    assert can.supports_streaming is (streams != "never")
    assert can.supports_streaming_tool_calls is (streams == "always")
