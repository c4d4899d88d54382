"""The adapter over a scripted network: addresses, headers, errors, both ways to call it."""

from __future__ import annotations

import msgspec
import pytest

from adapters.contract import AdapterConfig, ProviderAdapter
from adapters.providers.openai.adapter import OpenAIAdapter
from adapters.providers.openai.quirks import COMPATIBLE, OPENAI
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ConfigurationError,
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
from bus.values.content import TextBlock, ThinkingBlock
from bus.values.json import JsonObject
from bus.values.messages import Message
from bus.values.usage import StopReason

from ...support.fake_http import FakeReply, FakeTransport
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from .wire_events import CREATED, added, body, done, ending, message, reasoning, request, response, text_delta

HEADERS = {"content-type": "application/json", "x-request-id": "req_abc"}


def adapter(
    *replies: FakeReply, base_url: str | None = None, options: JsonObject | None = None
) -> tuple[OpenAIAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    config = AdapterConfig(api_key="sk-secret", base_url=base_url, options=options or {}, max_retries=0)
    return OpenAIAdapter(config, transport=transport, clock=FakeClock()), transport


def whole(*output: JsonObject, headers: dict[str, str] | None = None, **fields: object) -> FakeReply:
    reply = {**response(), "output": list(output), **fields}
    return FakeReply(msgspec.json.encode(reply), headers={**HEADERS, **(headers or {})})


def error_reply(status: int, error: object, headers: dict[str, str] | None = None) -> FakeReply:
    return FakeReply(msgspec.json.encode({"error": error}), status=status, headers={**HEADERS, **(headers or {})})


@pytest.mark.anyio
async def test_complete() -> None:
    """One POST with the key in its header; the response knows who answered."""
    limits = {"x-ratelimit-remaining-tokens": "99", "x-ratelimit-reset-requests": "6m0s"}
    openai, transport = adapter(
        whole(reasoning("Why"), message("Hello"), headers=limits), options={"organization": "o", "project": "p"}
    )
    found = await openai.complete(request())
    assert isinstance(openai, ProviderAdapter)
    assert (found.model, found.response_id, found.provider_request_id) == (
        "openai:gpt-test-2026",
        "resp_1",
        "req_abc",
    )
    assert (found.text, found.thinking, found.stop_reason) == ("Hello", "Why", StopReason.END_TURN)
    assert found.rate_limit is not None
    assert (found.rate_limit.tokens_remaining, found.rate_limit.reset_at) == (99, "6m0s")
    (sent,) = transport.requests
    assert (sent.method, sent.url) == ("POST", "https://api.openai.com/v1/responses")
    assert sent.headers["authorization"] == "Bearer sk-secret"
    assert (sent.headers["openai-organization"], sent.headers["openai-project"]) == ("o", "p")


@pytest.mark.anyio
async def test_stream() -> None:
    """The same content as a whole reply, in events."""
    item = message("Hello")
    streamed = body([CREATED, added(0, item), text_delta(0, "Hello"), done(0, item), ending()])
    openai, transport = adapter(FakeReply(streamed))
    async with openai.stream(request()) as stream:
        events = [event async for event in stream]
    assert check_stream(events).final_content == (TextBlock("Hello"),)
    assert msgspec.json.decode(transport.requests[0].body)["stream"] is True
    assert transport.all_closed


@pytest.mark.anyio
async def test_whole_reply_to_a_streamed_request() -> None:
    """Some servers don't stream; the events come all the same."""
    openai, _ = adapter(whole(reasoning("Why"), message("Hello")))
    events = [event async for event in openai.stream(request())]
    thought, text = check_stream(events).final_content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(text, TextBlock)


@pytest.mark.anyio
async def test_history_makes_the_round() -> None:
    """A reply's content goes back as it came: a swapped session can always return."""
    item = message("Hello", phase="final_answer")
    openai, transport = adapter(whole(reasoning("Why"), item), whole(message("Bye")))
    first = await openai.complete(request())
    await openai.complete(request(Message.user("Hi"), Message.assistant(first.content), Message.user("More")))
    sent = msgspec.json.decode(transport.requests[1].body)["input"]
    assert sent[1] == reasoning("Why")
    assert sent[2] == item


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (
            400,
            {"type": "invalid_request_error", "code": None, "param": "input", "message": "Item 'rs_1' …"},
            InvalidRequestError,
        ),
        (400, {"code": "context_length_exceeded", "message": "m"}, ContextOverflowError),
        (400, {"message": "Your input exceeds the context window of this model."}, ContextOverflowError),
        (400, {"code": "string_above_max_length", "message": "string too long"}, InvalidRequestError),
        (400, {"code": "invalid_encrypted_content", "message": "m"}, InvalidRequestError),
        (400, {"code": "content_filter", "message": "m"}, ContentFilterError),
        (400, {"code": "bio_policy", "message": "m"}, ContentFilterError),
        (401, {"code": "invalid_api_key", "message": "Incorrect API key provided: sk-secret"}, AuthError),
        (403, {"code": "unsupported_country_region_territory", "message": "m"}, AccessDeniedError),
        (404, {"code": "model_not_found", "message": "m"}, NotFoundError),
        (429, {"type": "tokens", "code": "rate_limit_exceeded", "message": "m"}, RateLimitError),
        (429, {"type": "insufficient_quota", "code": "insufficient_quota", "message": "m"}, QuotaExceededError),
        (500, {"type": "server_error", "message": "m"}, ServerError),
        (503, {"code": "server_is_overloaded", "message": "m"}, OverloadedError),
        (503, {"code": "slow_down", "message": "m"}, OverloadedError),
    ],
)
async def test_error_replies(status: int, error: JsonObject, expected: type[AdapterError]) -> None:
    """Every error reply becomes its class, streamed or not, and never shows the key."""
    openai, _ = adapter(error_reply(status, error), error_reply(status, error))
    with pytest.raises(AdapterError) as whole_error:
        await openai.complete(request())
    with pytest.raises(AdapterError) as stream_error:
        _ = [event async for event in openai.stream(request())]
    for raised in (whole_error.value, stream_error.value):
        assert type(raised) is expected
        assert raised.provider_status == status
        assert raised.provider_request_id == "req_abc"
        assert "sk-secret" not in f"{raised} {raised.provider_message}"


@pytest.mark.anyio
async def test_failure_after_output() -> None:
    """What had arrived is in the exception, with the usage that was reported at last."""
    item = message("Hello")
    failed = ending("failed", error={"code": "server_error", "message": "Oops"})
    openai, _ = adapter(FakeReply(body([CREATED, added(0, item), text_delta(0, "Hel"), failed])))
    stream, events = openai.stream(request()), []
    with pytest.raises(ServerError) as raised:
        while True:
            events.append(await anext(stream))
    assert check_stream(events).stop_reason is StopReason.ERROR
    assert raised.value.content == (TextBlock("Hel"),)
    assert raised.value.usage is not None
    assert raised.value.usage.output_tokens == 20


@pytest.mark.anyio
@pytest.mark.parametrize("reply", [b"", b"<html>", b"[1]", b"\xff\xfe", b'{"output":' + b"[" * 9999, b'"x"'])
async def test_any_body_is_at_worst_a_stream_error(reply: bytes) -> None:
    """What is no reply of the protocol never escapes as anything else."""
    openai, _ = adapter(FakeReply(reply, headers=HEADERS), FakeReply(reply))
    with pytest.raises(StreamError):
        await openai.complete(request())
    with pytest.raises(StreamError):
        _ = [event async for event in openai.stream(request())]


def test_quirks_by_name_and_by_address() -> None:
    """OpenAI's own hosts are known; others are taken to be merely compatible; a wrong name is an error."""
    assert adapter()[0].wire.quirks == OPENAI
    assert adapter(base_url="https://my.openai.azure.com/openai/v1/")[0].wire.quirks == OPENAI
    assert adapter(base_url="https://openrouter.ai/api/v1")[0].wire.quirks == COMPATIBLE
    assert not adapter(options={"quirks": "llama.cpp"})[0].capabilities.supports_structured_output
    with pytest.raises(ConfigurationError, match=r"llama\.cpp"):
        adapter(options={"quirks": "nonsense"})


def test_capabilities_by_model() -> None:
    """A model that can't reason doesn't claim to, and limits come from the table."""
    openai, _ = adapter()
    assert not openai.get_capabilities("openai:gpt-4o").supports_thinking
    assert openai.get_capabilities("o3").max_context_tokens == 200_000
    assert openai.get_capabilities("unknown") == openai.capabilities
