"""Failures of Chat's clients, and OpenAI's SDK as a client."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import openai
import pydantic
import pytest

from callboard.bus.values.usage import StopReason
from callboard.engine.gateway.chat_replies import WIRE
from callboard.engine.gateway.wire import ClientRequest, Failure, FailureKind, ListedModel

from .chat_kit import (
    INFO,
    SQL,
    USAGE,
    WITH_USAGE,
    Reply,
    asked,
    hello,
    new_assembler,
    reply_from,
    streamed,
    written,
)

PNG = b"\x89PNG\r\n\x1a\n"


# --- Failures ---


@pytest.mark.parametrize(
    ("kind", "status", "error", "type_", "code"),
    [
        ("invalid_request", 400, openai.BadRequestError, "invalid_request_error", None),
        ("context_overflow", 400, openai.BadRequestError, "invalid_request_error", "context_length_exceeded"),
        ("content_filter", 400, openai.BadRequestError, "invalid_request_error", "content_filter"),
        ("authentication", 401, openai.AuthenticationError, "invalid_request_error", "invalid_api_key"),
        ("budget", 429, openai.RateLimitError, "insufficient_quota", "insufficient_quota"),
        ("permission", 403, openai.PermissionDeniedError, "invalid_request_error", "insufficient_permissions"),
        ("not_found", 404, openai.NotFoundError, "invalid_request_error", "model_not_found"),
        ("too_large", 413, openai.APIStatusError, "invalid_request_error", "request_too_large"),
        ("rate_limit", 429, openai.RateLimitError, "requests", "rate_limit_exceeded"),
        ("server", 500, openai.InternalServerError, "server_error", None),
        ("unavailable", 503, openai.InternalServerError, "server_error", "service_unavailable"),
        ("timeout", 504, openai.InternalServerError, "server_error", "timeout"),
        ("overloaded", 503, openai.InternalServerError, "server_error", "server_is_overloaded"),
    ],
)
def test_a_failure_is_the_sdks_own_error(
    kind: FailureKind, status: int, error: type[openai.APIStatusError], type_: str, code: str | None
) -> None:
    answered, body = WIRE.write_failure(Failure(kind=kind, message="Why"))
    assert answered == status
    with pytest.raises(error) as caught:
        client(status, msgspec.json.encode(body)).chat.completions.create(model="m", messages=[])
    assert (caught.value.type, caught.value.code) == (type_, code)
    assert "Why" in caught.value.message


def test_an_invalid_request_names_the_clients_field() -> None:
    failure = Failure(kind="invalid_request", message="Why", param="tools[0]", code="invalid_type")
    assert WIRE.write_failure(failure)[1] == {
        "error": {
            "message": "Why", "type": "invalid_request_error", "param": "tools[0]", "code": "invalid_type",
        }
    }  # fmt: skip


@pytest.mark.parametrize("code", ["invalid_request_error", "INVALID_ARGUMENT", None])
def test_another_vendors_type_of_an_error_is_no_code(code: str | None) -> None:
    body: Any = WIRE.write_failure(Failure(kind="invalid_request", message="Why", code=code))[1]
    assert body["error"]["code"] is None


# --- OpenAI's SDK ---


def client(status: int, body: bytes, content_type: str = "application/json") -> openai.OpenAI:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    return openai.OpenAI(
        api_key="k", base_url="http://gateway.test/v1", max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )  # fmt: skip


def serving(reply: Reply, request: ClientRequest, *, stream: bool) -> openai.OpenAI:
    if stream:
        return client(200, b"".join(streamed(request, reply)), WIRE.stream_type(request))
    return client(200, written(request, reply.response))


def everything() -> Reply:
    assembler = new_assembler("anthropic")
    assembler.thinking("r", "Hm", implicit_end=True)
    assembler.text("t", "Let me look.", implicit_end=True)
    for at, arguments in enumerate(('{"path": "a"}', '{"path": "b"}')):
        assembler.tool_start(at, "read", raw={"id": f"toolu_{at}"})
        for half in (arguments[:5], arguments[5:]):
            assembler.tool_arguments(at, half)
        assembler.end(at)
    return reply_from(assembler, StopReason.TOOL_USE, "tool_use", USAGE)


def test_the_sdk_reads_a_whole_reply() -> None:
    reply = everything()
    completion = serving(reply, asked(), stream=False).chat.completions.create(model="m", messages=[])
    (choice,) = completion.choices
    assert (completion.id, completion.model, completion.created) == ("chatcmpl-1", "gpt-5", 1_700_000_000)
    assert (choice.message.content, choice.finish_reason) == ("Let me look.", "tool_calls")
    assert [call.id for call in choice.message.tool_calls or []] == [use.id for use in reply.response.tool_uses]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 4
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "Hm"


def test_the_sdk_accumulates_a_stream_to_the_whole_reply() -> None:
    reply = everything()
    whole = serving(reply, WITH_USAGE, stream=False).chat.completions.create(model="m", messages=[])
    with serving(reply, WITH_USAGE, stream=True).chat.completions.stream(model="m", messages=[]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    first, second = whole.choices[0], final.choices[0]
    assert (second.message.content, second.finish_reason) == (first.message.content, first.finish_reason)
    assert [call.id for call in second.message.tool_calls or []] == [
        call.id for call in first.message.tool_calls or []
    ]
    assert final.usage == whole.usage


def test_the_sdk_parses_an_object_from_whole_and_streamed_replies() -> None:
    class Answer(pydantic.BaseModel):
        number: int

    reply = hello(StopReason.END_TURN, '{"number"', ": 4}")
    parsed = serving(reply, asked(), stream=False).chat.completions.parse(
        model="m", messages=[], response_format=Answer
    )
    assert parsed.choices[0].message.parsed == Answer(number=4)
    sdk = serving(reply, WITH_USAGE, stream=True)
    with sdk.chat.completions.stream(model="m", messages=[], response_format=Answer) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Answer(number=4)


def test_the_sdk_raises_the_error_in_the_middle_of_a_stream() -> None:
    writer = WIRE.writer(asked(stream=True), INFO)
    body = writer.start() + writer.fail(Failure(kind="server", message="It broke"))
    stream = client(200, body, "text/event-stream").chat.completions.create(model="m", messages=[], stream=True)
    with pytest.raises(openai.APIError, match="It broke"):
        list(stream)


@pytest.mark.parametrize("stream", [True, False])
def test_the_sdk_reads_a_free_form_call(stream: bool) -> None:
    assembler = new_assembler("anthropic")
    assembler.tool_start(0, "sql", raw={"id": "toolu_1"})
    assembler.tool_arguments(0, '{"input": "SELECT 1"}')
    assembler.end(0)
    reply = reply_from(assembler, StopReason.TOOL_USE, None, USAGE)
    request = asked(tools=[SQL], stream=stream)
    sdk = serving(reply, request, stream=stream)
    if not stream:
        (call,) = sdk.chat.completions.create(model="m", messages=[]).choices[0].message.tool_calls or []
        assert call.type == "custom"
        assert (call.custom.name, call.custom.input) == ("sql", "SELECT 1")
        return
    given = [
        call.model_dump()
        for chunk in sdk.chat.completions.create(model="m", messages=[], stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or []
    ]
    assert "".join(call["custom"]["input"] for call in given) == "SELECT 1"
    assert [call["custom"]["name"] for call in given if "name" in call["custom"]] == ["sql"]


def test_the_sdk_lists_models() -> None:
    models = [ListedModel(id="gpt-5", created=1, owned_by="openai", context_tokens=400_000), ListedModel(id="x")]
    page = client(200, msgspec.json.encode(WIRE.write_models(models))).models.list()
    assert [(model.id, model.owned_by, model.object) for model in page.data] == [
        ("gpt-5", "openai", "model"), ("x", "callboard", "model")
    ]  # fmt: skip
    assert WIRE.write_model(models[0])["context_length"] == 400_000
