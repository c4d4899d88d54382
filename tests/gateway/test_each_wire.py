"""One promise on each wire: failures, ends of replies, signs of life, lists, tools, and ids of conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from callboard.adapters import CanonicalRequest, CanonicalResponse
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.errors import build_error, read_error_value
from callboard.adapters.providers.gemini.data import CODES
from callboard.adapters.replies.whole import whole_events
from callboard.bus import errors
from callboard.bus.streams.events import (
    MessageStart,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.values.messages import ToolChoice
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway import chat_replies, gemini_replies, messages_replies, responses_replies
from callboard.engine.gateway.failures import BadRequest, Failure, FailureKind
from callboard.engine.gateway.wire import ClientRequest, ListedModel, ReplyInfo
from tests.support.canonical_requests import canonical_requests
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.json_values import JSON_VALUES
from tests.support.virtual_time import FakeClock
from tests.support.wires import WIRES as PROVIDERS
from tests.support.wires.reading import Reading, read_pieces, read_reply

from .chat_kit import Reply, chunks_of, replies
from .messages_kit import sdk as anthropic_of
from .responses_cases import sdk_of as openai_of

WIRES = {
    "chat": chat_replies.WIRE, "messages": messages_replies.WIRE, "responses": responses_replies.WIRE,
    "gemini": gemini_replies.WIRE,
}  # fmt: skip
ADAPTERS = dict(zip(("messages", "responses", "chat", "gemini"), PROVIDERS, strict=False))
HELLO: Json = [{"role": "user", "content": "Hi"}]
SMALL: Mapping[str, JsonObject] = {
    "chat": {"model": "m", "messages": HELLO},
    "messages": {"model": "m", "max_tokens": 9, "messages": HELLO},
    "responses": {"model": "m", "input": "Hi"},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}
INFO = ReplyInfo(id="01J", model="m", created=1, input_tokens=7)
JSON = "application/json"
each_wire = pytest.mark.parametrize("wire", WIRES)


def read(wire: str, headers: Mapping[str, str] = {}, **fields: Json) -> ClientRequest:
    return WIRES[wire].read_request({**SMALL[wire], **fields}, headers, model="m" if wire == "gemini" else None)


def response(*content: ContentBlock, stop: StopReason = StopReason.END_TURN, **fields: Any) -> CanonicalResponse:
    return CanonicalResponse(
        request_id="r", model="x:y", provider="x", content=content, stop_reason=stop, usage=TokenUsage(10, 5),
        **fields,
    )  # fmt: skip


def written(wire: str, reply: CanonicalResponse, asked: ClientRequest | None = None) -> Any:
    return WIRES[wire].write_reply(asked or read(wire), INFO, reply)


def streamed(
    wire: str, reply: CanonicalResponse, events: Sequence[StreamEvent] = (), *, asked: ClientRequest | None = None
) -> bytes:
    """A stream with signs of life between all of its events."""
    writer = WIRES[wire].writer(asked or read(wire), INFO)
    pieces = [writer.start()]
    for event in events or whole_events(reply, "msg_1"):
        pieces += [writer.ping(), writer.write(event)]
    return b"".join([*pieces, writer.ping(), writer.finish(reply)])


def read_by_the_adapter(wire: str, data: bytes) -> Reading:
    return read_pieces(ADAPTERS[wire], [data])


# --- The vendors' SDKs ---


def google_of(data: bytes, status: int = 200) -> genai.Client:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=data, headers={"content-type": JSON}))
    return genai.Client(api_key="none", http_options=types.HttpOptions(client_args={"transport": transport}))


def ask_sdk(wire: str, data: bytes, status: int) -> object:
    """Send a request with the vendor's SDK to a server that sends these bytes."""
    hello: list[Any] = [{"role": "user", "content": "Hi"}]
    match wire:
        case "chat":
            return openai_of(data, status=status).chat.completions.create(model="m", messages=[])
        case "responses":
            return openai_of(data, status=status).responses.create(model="m", input="Hi")
        case "messages":
            sdk = anthropic_of(data, status=status, content_type=JSON)
            return sdk.messages.create(model="m", max_tokens=1, messages=hello)
        case _:
            google = google_of(data, status)
            return google.models.generate_content(model="m", contents="Hi")


# --- Failures ---

WRONG, FULL = "invalid_request_error", "RESOURCE_EXHAUSTED"
FAILURES: list[Any] = [
    ("invalid_request", 400, WRONG, None, 400, WRONG, "INVALID_ARGUMENT", errors.InvalidRequestError),
    ("context_overflow", 400, WRONG, "context_length_exceeded", 400, WRONG, "INVALID_ARGUMENT",
     errors.ContextOverflowError),
    ("content_filter", 400, WRONG, "content_filter", 400, WRONG, "INVALID_ARGUMENT", errors.ContentFilterError),
    ("authentication", 401, WRONG, "invalid_api_key", 401, "authentication_error", "UNAUTHENTICATED",
     errors.AuthError),
    ("budget", 429, "insufficient_quota", "insufficient_quota", 402, "billing_error", FULL,
     errors.QuotaExceededError),
    ("permission", 403, WRONG, "insufficient_permissions", 403, "permission_error", "PERMISSION_DENIED",
     errors.AccessDeniedError),
    ("not_found", 404, WRONG, "model_not_found", 404, "not_found_error", "NOT_FOUND", errors.NotFoundError),
    ("too_large", 413, WRONG, "request_too_large", 413, "request_too_large", "INVALID_ARGUMENT",
     errors.InvalidRequestError),
    ("rate_limit", 429, "requests", "rate_limit_exceeded", 429, "rate_limit_error", FULL, errors.RateLimitError),
    ("server", 500, "server_error", None, 500, "api_error", "INTERNAL", errors.ServerError),
    ("unavailable", 503, "server_error", "service_unavailable", 503, "api_error", "UNAVAILABLE",
     errors.OverloadedError),
    ("timeout", 504, "server_error", "timeout", 504, "timeout_error", "DEADLINE_EXCEEDED",
     errors.RequestTimeoutError),
    ("overloaded", 503, "server_error", "server_is_overloaded", 529, "overloaded_error", "UNAVAILABLE",
     errors.OverloadedError),
]  # fmt: skip
"""For each kind: the words of OpenAI, Anthropic and Google, and the adapter's error."""


@pytest.mark.parametrize(("kind", "status", "type_", "code", "other", "name", "word", "error"), FAILURES)
def test_a_failure_is_an_error_of_the_sdk_with_the_vendors_words(
    kind: FailureKind, status: int, type_: str, code: str | None, other: int, name: str, word: str, error: type
) -> None:
    for wire, write in ((wire, WIRES[wire].write_failure) for wire in WIRES):
        told, body = write(Failure(kind=kind, message="Why.", param="p", request_id="req_1"))
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError, genai_errors.APIError)) as raised:
            ask_sdk(wire, msgspec.json.encode(body), told)
        found: Any = raised.value
        assert "Why." in str(found)
        if wire == "messages":
            assert (found.status_code, found.type, body["request_id"]) == (other, name, "req_1")
        elif wire == "gemini":
            assert (found.code, found.status) == (status, word)
            assert type(build_error(read_error_value(body), provider="gemini", codes=CODES, status=told)) is error
            assert {"field": "p", "description": "Why."} in found.details["error"]["details"][
                1 if kind in ("content_filter", "authentication") else 0
            ]["fieldViolations"]
        else:
            assert (found.status_code, found.type, found.code, found.param) == (status, type_, code, "p")


def test_a_limit_has_the_delay_before_a_retry() -> None:
    limit = Failure(kind="rate_limit", message="Too many.", retry_after=1.5)
    _, body = WIRES["gemini"].write_failure(limit)
    read_back = build_error(read_error_value(body), provider="gemini", codes=CODES, status=429)
    assert read_back.retry_after_seconds == 1.5
    assert "Please try again in 1.5s." in str(WIRES["responses"].write_failure(limit))
    over = Failure(kind="budget", message="x", retry_after=60)
    assert WIRES["messages"].write_failure(over)[0] == 429  # the SDK retries no 402


def test_an_overflow_has_the_words_that_clients_look_for() -> None:
    told = [str(WIRES[wire].write_failure(Failure(kind="context_overflow", message="9 tokens"))) for wire in WIRES]
    assert "prompt is too long: 9 tokens" in told[1]
    assert "exceeds the maximum number of tokens" in told[3]


@pytest.mark.parametrize("code", ["invalid_request_error", "INVALID_ARGUMENT", "invalid_type"])
def test_another_vendors_type_of_an_error_is_no_code(code: str) -> None:
    body: Any = WIRES["chat"].write_failure(Failure(kind="invalid_request", message="Why", code=code))[1]
    assert body["error"]["code"] == (code if code == "invalid_type" else None)


NO_CODE = ("messages", "content_filter")


@each_wire
@pytest.mark.parametrize(("kind", "error"), [
    ("overloaded", errors.OverloadedError), ("rate_limit", errors.RateLimitError),
    ("context_overflow", errors.ContextOverflowError), ("content_filter", errors.ContentFilterError),
])  # fmt: skip
def test_a_failure_in_mid_stream_ends_it(wire: str, kind: FailureKind, error: type[Exception]) -> None:
    """The client gets the text and the error, and no mark of a complete reply."""
    writer = WIRES[wire].writer(read(wire), INFO)
    events = whole_events(response(TextBlock("Half")), "msg_1")[:2]
    body = b"".join([writer.start(), *map(writer.write, events), writer.fail(Failure(kind=kind, message="No."))])
    for mark in (b"[DONE]", b"content_block_stop", b"response.completed", b"finishReason"):
        assert mark not in body
    found = read_by_the_adapter(wire, body)
    assert found.said == ["Half"]
    if wire == "responses":  # the error is also in the failed response
        events = [msgspec.json.decode(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["message"]) == ("failed", "No.")
        assert failed["error"]["code"] == events[-2]["error"]["code"]
    # Anthropic has no code for a content filter
    assert isinstance(found.error, errors.InvalidRequestError if (wire, kind) == NO_CODE else error)


def test_geminis_array_and_an_open_call_end_with_the_failure() -> None:
    array = msgspec.structs.replace(read("gemini"), options={"alt": "json"})
    call = [
        MessageStart("msg_1", "m", "x"), ToolUseStart("call_1", "a", 0),
        ToolUseInputDelta("call_1", '{"path": "/', 0), ToolUseEnd("call_1", {"path": "/"}, True, 0),
    ]  # fmt: skip
    for wire, asked in (("gemini", array), ("messages", read("messages"))):
        writer = WIRES[wire].writer(asked, INFO)
        body = writer.start() + b"".join(map(writer.write, call))
        body += writer.fail(Failure(kind="overloaded", message="Overloaded."))
        if wire == "gemini":
            assert [*map(set, msgspec.json.decode(body))][-1] == {"error"}
        else:
            assert b"content_block_start" in body
            assert b"content_block_stop" not in body


# --- Ends of replies ---

ENDS: list[Any] = [
    (StopReason.END_TURN, "stop", "stop", "end_turn", "completed", None, "STOP"),
    (StopReason.END_TURN, "STOP", "stop", "end_turn", "completed", None, "STOP"),
    (StopReason.TOOL_USE, "tool_calls", "tool_calls", "tool_use", "completed", None, "STOP"),
    (StopReason.STOP_SEQUENCE, "stop_sequence", "stop", "stop_sequence", "completed", None, "STOP"),
    (StopReason.MAX_TOKENS, "length", "length", "max_tokens", "incomplete", "max_output_tokens", "MAX_TOKENS"),
    (StopReason.MAX_TOKENS, "model_context_window_exceeded", "length", "model_context_window_exceeded",
     "incomplete", "max_output_tokens", "MAX_TOKENS"),
    (StopReason.PAUSE_TURN, "pause_turn", "length", "pause_turn", "incomplete", "pause_turn", "OTHER"),
    (StopReason.REFUSAL, "refusal", "stop", "refusal", "completed", None, "SAFETY"),
    (StopReason.CONTENT_FILTER, "SAFETY", "content_filter", "refusal", "incomplete", "content_filter", "SAFETY"),
    (StopReason.CONTENT_FILTER, "PROHIBITED_CONTENT", "content_filter", "refusal", "incomplete", "content_filter",
     "PROHIBITED_CONTENT"),
    (StopReason.CANCELLED, None, "length", "max_tokens", "cancelled", None, "OTHER"),
    (StopReason.ERROR, None, "error", "max_tokens", "failed", None, "OTHER"),
    (StopReason.PROVIDER_SPECIFIC, "MALFORMED", "stop", "end_turn", "completed", None, "OTHER"),
    (StopReason.PROVIDER_SPECIFIC, "compaction", "stop", "compaction", "completed", None, "OTHER"),
]  # fmt: skip


@pytest.mark.parametrize(("stop", "raw", "chat", "messages", "status", "why", "gemini"), ENDS)
def test_every_end_of_a_reply_has_the_vendors_word(
    stop: StopReason, raw: str | None, chat: str, messages: str, status: str, why: str | None, gemini: str
) -> None:
    content = ToolUseBlock("call_1", "a", {}) if stop is StopReason.TOOL_USE else TextBlock("x")
    details: JsonObject = {"stop_sequence": "END"} if stop is StopReason.STOP_SEQUENCE else {}
    reply = response(content, stop=stop, raw_stop_reason=raw, provider_details=details)
    choice = written("chat", reply)["choices"][0]
    assert choice["finish_reason"] == chat
    assert choice.get("native_finish_reason") == (None if raw in ("stop", "length", "tool_calls") else raw)
    assert choice.get("stop_reason") == details.get("stop_sequence")  # vLLM's place for it
    message: Any = written("messages", reply)
    assert (message["stop_reason"], message["stop_sequence"]) == (messages, details.get("stop_sequence"))
    whole, data = written("responses", reply), streamed("responses", reply)
    last = msgspec.json.decode(data.rstrip().rpartition(b"data: ")[2])
    assert last["type"] == f"response.{status}"
    for body in (whole, last["response"]):
        assert (body["status"], body["incomplete_details"]) == (status, why and {"reason": why})
        assert (body["error"] is None) == (status != "failed")
        assert body["output"][0]["status"] == ("incomplete" if status == "incomplete" else "completed")
    candidate = written("gemini", reply)["candidates"][0]
    assert candidate["finishReason"] == gemini
    assert ("finishMessage" in candidate) is (gemini in ("SAFETY", "OTHER") and raw not in (None, gemini))


def test_a_call_in_a_reply_that_just_ended_is_a_call() -> None:
    reply = response(ToolUseBlock("call_1", "a", {}))
    assert written("messages", reply)["stop_reason"] == "tool_use"


# --- Streams and lists ---


def facts(reply: CanonicalResponse) -> tuple[object, ...]:
    usage, calls = reply.usage, [(call.name, call.input) for call in reply.tool_uses]
    counts = usage.total_input_tokens, usage.output_tokens, usage.cached_input_tokens
    return reply.text, reply.thinking, calls, reply.stop_reason, counts


@each_wire
@settings(max_examples=150)
@given(reply=replies(), data=st.data())
def test_any_reply_is_the_same_whole_and_streamed_at_every_cut(
    wire: str, reply: Reply, data: st.DataObject
) -> None:
    """The forms of Chat Completions are also of the vendor's types."""
    asked = msgspec.structs.replace(read(wire), options={"include_usage": True, "include_thoughts": True})
    body, stream = msgspec.json.encode(written(wire, reply.response, asked)), streamed(wire, *reply, asked=asked)
    cut = data.draw(st.integers(0, len(stream)))
    whole = read_reply(ADAPTERS[wire], FakeReply(body, headers={"content-type": JSON}), streamed=False)
    for found in (whole, read_pieces(ADAPTERS[wire], [stream[:cut], stream[cut:]])):
        assert facts(found.reply) == facts(reply.response)
        written_to_cache = reply.response.usage.cache_creation_input_tokens
        assert wire == "gemini" or found.usage.cache_creation_input_tokens == written_to_cache
    if wire == "chat":
        ChatCompletion.model_validate_json(body, strict=True)
        for chunk in chunks_of(stream):
            ChatCompletionChunk.model_validate_json(msgspec.json.encode(chunk), strict=True)


@each_wire
def test_signs_of_life_and_half_a_surrogate_pair_do_not_break_a_stream(wire: str) -> None:
    reply = response(TextBlock("a\ufffdb"))
    start, _, end = whole_events(reply, "msg_1")
    data = streamed(wire, reply, [start, TextDelta("a\ud83d", 0, "msg_1"), TextDelta("b", 0, "msg_1"), end])
    assert read_by_the_adapter(wire, data).reply.text == "a\ufffdb"


@each_wire
def test_a_call_without_arguments_in_its_stream_has_none(wire: str) -> None:
    reply = response(ToolUseBlock("call_1", "a", {}), stop=StopReason.TOOL_USE)
    start, *_, end = whole_events(reply, "msg_1")
    call = [ToolUseStart("call_1", "a", 0, "msg_1"), ToolUseEnd("call_1", {}, False, 0, "msg_1")]
    found = read_by_the_adapter(wire, streamed(wire, reply, [start, *call, end])).reply
    assert [(use.name, use.input, use.incomplete) for use in found.tool_uses] == [("a", {}, False)]


@each_wire
def test_models_and_counts_are_read_by_the_sdk(wire: str) -> None:
    models = [
        ListedModel(id="a", created=86400, owned_by="openai", context_tokens=1000, output_tokens=100),
        ListedModel(id="b"),
    ]
    listed, counted = (
        msgspec.json.encode(body) for body in (WIRES[wire].write_models(models), WIRES[wire].write_token_count(12))
    )
    match wire:
        case "chat" | "responses":
            page: Any = openai_of(listed).models.list().data
            assert [(model.id, model.owned_by) for model in page] == [("a", "openai"), ("b", "callboard")]
            assert wire != "chat" or WIRES[wire].write_model(models[0])["context_length"] == 1000
            count = openai_of(counted).responses.input_tokens.count(model="m", input="Hi")
            assert count.input_tokens == 12
        case "messages":
            page = anthropic_of(listed, content_type=JSON).models.list()
            assert [(model.id, model.max_tokens) for model in page] == [("a", 100), ("b", None)]
            assert (page.first_id, page.last_id, page.has_more) == ("a", "b", False)
            assert page.data[0].created_at.isoformat() == "1970-01-02T00:00:00+00:00"
            count_tokens = anthropic_of(counted, content_type=JSON).messages.count_tokens
            assert count_tokens(model="m", messages=[{"role": "user", "content": "Hi"}]).input_tokens == 12
        case _:
            google = google_of(listed)
            page = list(google.models.list(config={"query_base": False}))
            assert [(each.name, each.input_token_limit, each.output_token_limit) for each in page] == [
                ("models/a", 1000, 100), ("models/b", None, None),
            ]  # fmt: skip
            assert "generateContent" in page[0].supported_actions
            google = google_of(counted)
            assert google.models.count_tokens(model="m", contents="Hi").total_tokens == 12


# --- Tools ---

OBJECT: JsonObject = {"type": "object", "properties": {}}


def tool(wire: str, name: str, schema: Json = OBJECT) -> JsonObject:
    match wire:
        case "chat":
            return {"type": "function", "function": {"name": name, "parameters": schema}}
        case "responses":
            return {"type": "function", "name": name, "parameters": schema}
        case "messages":
            return {"name": name, "input_schema": schema}
        case _:
            return {"functionDeclarations": [{"name": name, "parametersJsonSchema": schema}]}


def called(wire: str, name: str, call_id: str = "call_1") -> list[Json]:
    """A call of the model and its result, as items of the history."""
    match wire:
        case "chat":
            call: JsonObject = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
            asked: JsonObject = {"role": "assistant", "content": None, "tool_calls": [call]}
            return [asked, {"role": "tool", "tool_call_id": call_id, "content": "done"}]
        case "responses":
            return [
                {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"},
                {"type": "function_call_output", "call_id": call_id, "output": "done"},
            ]
        case "messages":
            use: Json = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
            result: Json = {"type": "tool_result", "tool_use_id": call_id, "content": "done"}
            return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        case _:
            named: JsonObject = {"id": call_id, "name": name}
            answer: JsonObject = {"functionResponse": {**named, "response": {"output": "done"}}}
            return [{"role": "model", "parts": [{"functionCall": named}]}, {"role": "user", "parts": [answer]}]


HISTORY = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}


def with_history(wire: str, *items: Json, **fields: Json) -> ClientRequest:
    first = SMALL[wire][HISTORY[wire]] if wire != "responses" else HELLO
    assert isinstance(first, list)
    return read(wire, **{HISTORY[wire]: [*first, *items], **fields})


NAMES = [
    *("weather", "mcp__files__read", "mcp.server/tool", "mcp_server_tool", "1st", "_private", "a" * 80, "a" * 81),
    *("werkzeug-ü", "read file", "$x", "Ä", "mcp:files.read"),
]


@each_wire
def test_a_tool_of_any_name_is_called_by_that_name(wire: str) -> None:
    """Other providers get names of their own for all tools. The client gets its names back, whole and streamed."""
    given: list[Json] = [tool(wire, name) for name in NAMES]
    items = [item for at, name in enumerate(NAMES) for item in called(wire, name, f"call_{at}")]
    asked = with_history(wire, *items, tools=given)
    ours = [each.name for each in asked.request.tools]
    assert len(set(ours)) == len(NAMES)
    assert ours[:2] == NAMES[:2]
    assert all(len(name) <= 64 and name.replace("_", "a").replace("-", "a").isalnum() for name in ours)
    assert all(name[0].isalpha() for name in ours)
    assert [use.name for message in asked.request.messages for use in message.tool_uses] == ours
    calls = [ToolUseBlock(f"tu_{at}", name, {}) for at, name in enumerate(ours)]
    reply = response(*calls, stop=StopReason.TOOL_USE)
    if wire != "gemini":
        choice: Json = {"type": "tool", "name": NAMES[2]} if wire == "messages" else tool(wire, NAMES[2])
        assert read(wire, tools=given, tool_choice=choice).request.tool_choice == ToolChoice("named", ours[2])
    whole, stream = (msgspec.json.encode(written(wire, reply, asked)), streamed(wire, reply, asked=asked))
    for body in (whole, stream):
        quoted = [body.find(msgspec.json.encode(name)) for name in NAMES]
        assert -1 not in quoted
        assert not [name for name in ours if name not in NAMES and b'"%s"' % name.encode() in body]


SCHEMAS: list[Json] = [
    {}, {"properties": {"a": {}}}, {"type": "object", "required": ["a"], "properties": {}}, {"anyOf": [OBJECT]},
    {"type": ["object", "null"]}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, {"anyOf": []},
    {"type": "object", "required": ["x"]}, {"type": "object", "required": None},
    {"type": "object", "properties": None}, {"type": "object", "required": [[None]]},
]  # fmt: skip


@each_wire
def test_no_schema_of_a_tool_fails_the_request(wire: str) -> None:
    for schema in SCHEMAS:
        try:
            (found,) = read(wire, tools=[tool(wire, "a", schema)]).request.tools
        except BadRequest as error:
            pytest.fail(f"{schema}: {error.failure.message}")
        assert found.input_schema.get("type", "object") == "object"


@pytest.mark.parametrize("wire", ["chat", "responses", "gemini"])
def test_two_calls_of_one_id_have_their_own_results(wire: str) -> None:
    """Some clients use the same id in every turn."""
    messages = with_history(wire, *called(wire, "a"), *called(wire, "a"), tools=[tool(wire, "a")]).request.messages
    ids = [use.id for message in messages for use in message.tool_uses]
    results = [each for message in messages for each in message.content if isinstance(each, ToolResultBlock)]
    assert len(set(ids)) == 2
    assert [each.tool_use_id for each in results] == ids


# --- Ids of conversations, and headers ---


@pytest.mark.parametrize(("wire", "headers", "fields", "hint"), [
    ("chat", {}, {"prompt_cache_key": "k"}, "k"),
    ("chat", {}, {"prompt_cache_key": "k", "session_id": "s"}, "s"),
    ("chat", {}, {"metadata": {"session_id": "s"}}, "s"),
    ("chat", {"x-session-id": "s"}, {}, "s"),
    ("chat", {}, {}, None),
    ("responses", {"session_id": "s", "conversation_id": "c"}, {"prompt_cache_key": "k"}, "s"),
    ("responses", {"x-session-id": "x"}, {}, "x"),
    ("responses", {}, {"prompt_cache_key": "k", "metadata": {"session_id": "m"}}, "m"),
    ("responses", {}, {"prompt_cache_key": "k"}, "k"),
    ("responses", {}, {"conversation": {"id": "conv_1"}}, "conv_1"),
    ("responses", {}, {"conversation": "conv_1"}, "conv_1"),
    ("responses", {}, {}, None),
    ("messages", {}, {"metadata": {"user_id": "user_ab_account_0a_session_12345678-9abc-4def-8123-456789abcdef"}},
     "12345678-9abc-4def-8123-456789abcdef"),
    ("messages", {}, {"metadata": {"user_id": '{"device_id":"d","account_uuid":"a","session_id":"s-1"}'}}, "s-1"),
    ("messages", {}, {"metadata": {"user_id": "somebody"}}, None),
    ("messages", {}, {"metadata": {"user_id": "{no json"}}, None),
    ("messages", {"x-claude-code-session-id": "s-2"}, {"metadata": {"user_id": "somebody"}}, "s-2"),
])  # fmt: skip
def test_the_client_names_its_conversation(
    wire: str, headers: dict[str, str], fields: dict[str, Any], hint: str | None
) -> None:
    assert read(wire, headers, **fields).session_hint == hint


@pytest.mark.parametrize(("wire", "kept"), [
    ("chat", {"openai-beta": "x=1"}), ("responses", {"openai-beta": "a", "x-codex-turn-state": "b"}),
    ("messages", {"anthropic-beta": "a-1,b-2", "anthropic-version": "2023-06-01"}),
])  # fmt: skip
def test_only_the_headers_of_the_request_go_on(wire: str, kept: dict[str, str]) -> None:
    private = {"authorization": "Bearer k", "x-api-key": "k", "cookie": "c", "openai-organization": "org"}
    assert dict(read(wire, {**kept, **private}).headers) == kept


# --- Hostile bodies ---

_ODD: st.SearchStrategy[Json] = JSON_VALUES | st.sampled_from(
    ["text", "tool_use", "image", "auto", "user", "function", "data", -1, 10**30, [None], {"type": ["x"]}]
).map(deepcopy)  # because a body with it is changed further


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside a value: its object or list, and the key."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield value, key
        yield from places(item)


@each_wire
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(request=canonical_requests(["p:m"]), data=st.data())
def test_any_value_in_any_place_is_read_or_refused(
    wire: str, request: CanonicalRequest, data: st.DataObject
) -> None:
    adapter = ADAPTERS[wire].make(FakeTransport(), FakeClock())
    assert isinstance(adapter, HttpAdapter)
    try:
        sent = msgspec.json.decode(adapter.write_request(request, stream=False).body)
    except errors.CallboardError:
        return  # the adapter refuses the request
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(sent))
        home, key = found[data.draw(st.integers(0, len(found) - 1))]
        home[key] = data.draw(_ODD)
    with suppress(BadRequest):
        WIRES[wire].read_request(sent, {}, model="m" if wire == "gemini" else None)
