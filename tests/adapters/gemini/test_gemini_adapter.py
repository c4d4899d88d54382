"""The adapter over a scripted network: addresses, headers, errors, both ways to call it."""

from __future__ import annotations

import msgspec
import pytest

from adapters.contract import AdapterConfig, ProviderAdapter
from adapters.providers.gemini.adapter import GeminiAdapter
from adapters.requests.history import NOT_EXECUTED
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
from bus.values.content import TextBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import Message
from bus.values.usage import StopReason

from ...support.fake_http import HANG, FakeReply, FakeTransport, request
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wire_history import history_faults
from .wire_chunks import END, USAGE, body, call, chunk, text

JSON = {"content-type": "application/json; charset=UTF-8"}
GOOGLE = "type.googleapis.com/google.rpc."


def adapter(
    *replies: FakeReply, base_url: str | None = None, retries: int = 0
) -> tuple[GeminiAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    config = AdapterConfig(api_key="secret-key", base_url=base_url, max_retries=retries)
    return GeminiAdapter(config, transport=transport, clock=FakeClock()), transport


def whole(*parts: Json, finish: str = "STOP") -> FakeReply:
    return FakeReply(msgspec.json.encode(chunk(*parts, finish=finish, usage=USAGE)), headers=JSON)


def failing(status: int, canonical: str, message: str = "No.", *details: JsonObject) -> FakeReply:
    error: JsonObject = {"code": status, "message": message, "status": canonical, "details": list(details)}
    return FakeReply(msgspec.json.encode({"error": error}), status=status, headers=JSON)


@pytest.mark.anyio
async def test_complete() -> None:
    """One POST with the key in its header; the response knows who answered."""
    gemini, transport = adapter(whole(text("Hello")))
    found = await gemini.complete(request(model="gemini:gemini-2.5-flash"))
    assert isinstance(gemini, ProviderAdapter)
    assert (found.model, found.response_id, found.text) == ("gemini:gemini-test-001", "reply-1", "Hello")
    assert (found.stop_reason, found.raw_stop_reason) == (StopReason.END_TURN, "STOP")
    (sent,) = transport.requests
    assert sent.url == "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent"
    assert (sent.method, sent.headers["x-goog-api-key"]) == ("POST", "secret-key")


@pytest.mark.anyio
async def test_stream() -> None:
    """The same content as a whole reply, in events."""
    gemini, transport = adapter(FakeReply(body([chunk(text("Hel")), chunk(text("lo")), END])))
    async with gemini.stream(request(model="gemini:gemini-2.5-flash")) as stream:
        events = [event async for event in stream]
    assert check_stream(events).final_content == (TextBlock("Hello"),)
    assert transport.requests[0].url.endswith("/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    assert transport.all_closed


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("base_url", "model", "url"),
    [
        (
            "http://127.0.0.1:1/case/x/v1beta/",
            "gemini:gemini-9",
            "http://127.0.0.1:1/case/x/v1beta/models/gemini-9:generateContent",
        ),
        ("http://h", "gemini:tunedModels/mine", "http://h/v1beta/tunedModels/mine:generateContent"),
        ("http://h", "gemini:a b?c", "http://h/v1beta/models/a%20b%3Fc:generateContent"),
    ],
)
async def test_addresses(base_url: str, model: str, url: str) -> None:
    """A base URL with or without its version; a name never changes the address."""
    gemini, transport = adapter(whole(text("Hi")), base_url=base_url)
    await gemini.complete(request(model=model))
    assert transport.requests[0].url == url


@pytest.mark.anyio
async def test_another_version_and_its_own_authorization() -> None:
    """As Vertex AI has them: a folder before the model's name, and a token in a header of the host's."""
    transport = FakeTransport(whole(text("Hi")))
    config = AdapterConfig(
        base_url="https://h", extra_headers={"authorization": "Bearer t"}, options={"api_version": "v1beta1"}
    )
    gemini = GeminiAdapter(config, transport=transport, clock=FakeClock())
    await gemini.complete(request(model="gemini:projects/p/locations/l/publishers/google/models/gemini-9"))
    (sent,) = transport.requests
    assert sent.url == (
        "https://h/v1beta1/projects/p/locations/l/publishers/google/models/gemini-9:generateContent"
    )
    assert "x-goog-api-key" not in sent.headers


@pytest.mark.anyio
async def test_a_list_in_reply_to_a_streamed_request() -> None:
    """A proxy that loses `alt=sse`; the events come all the same."""
    reply = FakeReply(msgspec.json.encode([chunk(text("A")), chunk(call("a")), END]), headers=JSON)
    gemini, _ = adapter(reply)
    last = check_stream([event async for event in gemini.stream(request())])
    assert last.stop_reason is StopReason.TOOL_USE


@pytest.mark.anyio
async def test_a_reply_of_another_protocol_is_none() -> None:
    """Plain or streamed."""
    for reply in (
        FakeReply(b'{"choices":[{"message":{"content":"Hi"}}]}', headers=JSON),
        FakeReply(b"<html>", headers=JSON),
        FakeReply(b'{"candidates":[{"content":"x"}]}', headers=JSON),
    ):
        gemini, _ = adapter(reply)
        with pytest.raises(StreamError):
            await gemini.complete(request())


def quota(quota_id: str, **fields: Json) -> JsonObject:
    return {"@type": GOOGLE + "QuotaFailure", "violations": [{"quotaId": quota_id, **fields}]}


def info(reason: str) -> JsonObject:
    return {"@type": GOOGLE + "ErrorInfo", "reason": reason, "domain": "googleapis.com"}


USED_UP = "You exceeded your current quota, please check your plan and billing details."
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ((400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), AuthError),
        ((400, "INVALID_ARGUMENT", "Other words.", info("API_KEY_INVALID")), AuthError),
        ((400, "INVALID_ARGUMENT", TOO_LONG), ContextOverflowError),
        ((400, "INVALID_ARGUMENT", "Function call is missing a thought_signature"), InvalidRequestError),
        ((400, "FAILED_PRECONDITION", "User location is not supported."), InvalidRequestError),
        ((401, "UNAUTHENTICATED"), AuthError),
        ((403, "PERMISSION_DENIED"), AccessDeniedError),
        ((403, "PERMISSION_DENIED", "Enable it.", info("SERVICE_DISABLED")), AccessDeniedError),
        ((404, "NOT_FOUND"), NotFoundError),
        ((429, "RESOURCE_EXHAUSTED", USED_UP), RateLimitError),
        ((429, "RESOURCE_EXHAUSTED", USED_UP, quota("GenerateRequestsPerMinutePerProject")), RateLimitError),
        ((429, "RESOURCE_EXHAUSTED", USED_UP, quota("GenerateRequestsPerDayPerProject")), QuotaExceededError),
        ((429, "RESOURCE_EXHAUSTED", USED_UP, quota("PerMinute", quotaValue="0")), QuotaExceededError),
        ((429, "RESOURCE_EXHAUSTED", "limit: 0, model: x", quota("PerMinute")), QuotaExceededError),
        ((429, "RESOURCE_EXHAUSTED", "limit: 05", quota("PerMinute")), RateLimitError),
        ((499, "CANCELLED"), ServerError),
        ((500, "INTERNAL"), ServerError),
        ((503, "UNAVAILABLE", "The model is overloaded. Please try again later."), OverloadedError),
        ((504, "DEADLINE_EXCEEDED"), RequestTimeoutError),
        ((418, "TEAPOT"), InvalidRequestError),
    ],
)
async def test_error_replies(reply: tuple[int, str], kind: type[AdapterError], streamed: bool) -> None:
    """Each becomes its class, streamed or not, and says the canonical status or the reason."""
    gemini, _ = adapter(failing(*reply))
    with pytest.raises(AdapterError) as raised:
        if streamed:
            async for _ in gemini.stream(request()):
                pass
        else:
            await gemini.complete(request())
    error = raised.value
    assert type(error) is kind
    assert (error.provider_status, error.request_id) == (reply[0], "req_1")
    assert error.provider_code
    assert error.provider_code.isupper()
    assert "secret-key" not in str(error)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("message", "details", "seconds"),
    [
        ("No.", [{"@type": GOOGLE + "RetryInfo", "retryDelay": "34.4s"}], 34.4),
        ("No.", [{"@type": GOOGLE + "RetryInfo", "retryDelay": "soon"}], None),
        ("Please retry in 1m2.5s.", [], 62.5),
        ("No.", [None, {"@type": 3}, {}], None),
    ],
)
async def test_the_delay_is_in_the_body(message: str, details: list[Json], seconds: float | None) -> None:
    """There is no header for it."""
    error: JsonObject = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": details}
    gemini, _ = adapter(FakeReply(msgspec.json.encode([{"error": error}]), status=429, headers=JSON))
    with pytest.raises(RateLimitError) as raised:
        await gemini.complete(request())
    assert raised.value.retry_after_seconds == seconds


@pytest.mark.anyio
@pytest.mark.parametrize("text", [b"", b"<html>502</html>", b'"x"', b"[]", b"null", b'{"error":"x"}', b"\xff"])
async def test_error_replies_of_any_shape(text: bytes) -> None:
    """A proxy's page is an error like any other."""
    gemini, _ = adapter(FakeReply(text, status=502))
    with pytest.raises(ServerError):
        await gemini.complete(request())


def test_capabilities_are_the_models_own() -> None:
    """With or without its prefix; one that isn't known has the usual."""
    gemini, _ = adapter()
    assert gemini.get_capabilities("gemini:gemini-2.0-flash").max_output_tokens == 8192
    assert not gemini.get_capabilities("gemini-2.0-flash").supports_thinking
    assert gemini.get_capabilities("models/gemini-2.5-pro").supports_thinking
    gemma = gemini.get_capabilities("gemma-3-27b-it")
    assert (gemma.supports_tools, gemma.supports_audio, gemma.supports_system_prompt) == (False, False, False)
    assert gemini.get_capabilities("unheard-of") == gemini.capabilities
    assert gemini.capabilities.accepted_image_media_types is not None
    assert "image/gif" not in gemini.capabilities.accepted_image_media_types


@pytest.mark.anyio
async def test_health_asks_for_the_list_of_models() -> None:
    """With the key, and for no more than one."""
    gemini, transport = adapter(FakeReply(b"{}", headers=JSON))
    await gemini.health_check()
    (sent,) = transport.requests
    assert (sent.method, sent.headers["x-goog-api-key"]) == ("GET", "secret-key")
    assert sent.url == "https://generativelanguage.googleapis.com/v1beta/models?pageSize=1"


@pytest.mark.anyio
async def test_an_interrupted_call_is_answered_before_it_is_sent() -> None:
    """A call that came in pieces, the last of which never did."""
    begun = chunk({"functionCall": {"name": "a", "id": "c1", "willContinue": True}})
    gemini, transport = adapter(FakeReply(body([begun]), HANG), whole(text("Sorry.")))
    stream = gemini.stream(request())
    events = [await anext(stream), await anext(stream)]
    assert await gemini.cancel("req_1")
    events += [event async for event in stream]
    content = check_stream(events).final_content
    assert isinstance(content[0], ToolUseBlock)
    assert content[0].incomplete
    await gemini.complete(
        request(messages=(Message.user("Hi"), Message.assistant(content), Message.user("Again")))
    )
    sent = msgspec.json.decode(transport.requests[1].body)
    assert history_faults(transport.requests[1].url, sent) == []
    assert sent["contents"][2]["parts"][0]["functionResponse"]["response"] == {"error": NOT_EXECUTED}


@pytest.mark.anyio
async def test_a_conversation_makes_the_round() -> None:
    """A call that came without an id goes back with one, which its result has, too."""
    gemini, transport = adapter(whole(call("a", "c2ln", args={"x": 1})), whole(text("Done.")))
    reply = await gemini.complete(request())
    (used,) = reply.tool_uses
    await gemini.complete(
        request(
            messages=(Message.user("Hi"), Message.assistant(reply.content), Message.tool_result(used.id, "ok"))
        )
    )
    _, said, answered = msgspec.json.decode(transport.requests[1].body)["contents"]
    assert said["parts"] == [
        {"functionCall": {"id": used.id, "name": "a", "args": {"x": 1}}, "thoughtSignature": "c2ln"}
    ]
    assert answered["parts"][0]["functionResponse"] == {"id": used.id, "name": "a", "response": {"output": "ok"}}
