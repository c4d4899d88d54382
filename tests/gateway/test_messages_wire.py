"""The Messages API for clients: what it reads of requests, what it writes of replies, and both there and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import msgspec
import pytest
from anthropic import Anthropic, APIStatusError
from anthropic.types.beta import BetaMessage

from callboard.adapters import CanonicalResponse
from callboard.adapters.providers.anthropic.request import write_request
from callboard.adapters.replies.whole import whole_events
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.messages_fields import IMAGE_LEFT_OUT, canonical_tool_id, client_tool_id
from callboard.engine.gateway.messages_replies import WIRE
from callboard.engine.gateway.wire import BadRequest, ClientRequest, Failure, ListedModel, ReplyInfo

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE: Json = {"type": "base64", "media_type": "image/png", "data": PNG}
PICTURE: JsonObject = {"type": "image", "source": IMAGE}
SAID: JsonObject = {"type": "text", "text": "Words"}
SEARCH_RESULT: JsonObject = {
    "type": "search_result",
    "source": "https://a.example",
    "title": "A",
    "content": [SAID, SAID],
    "citations": {"enabled": True},
}
PDF = "JVBERi0xLjQK"
INFO = ReplyInfo(id="01J", model="claude-opus-4-6", created=0, input_tokens=7)
USAGE = TokenUsage(input_tokens=10, output_tokens=5)


def body(*messages: Json, **fields: Json) -> JsonObject:
    said: list[Json] = list(messages) or [{"role": "user", "content": "Hi"}]
    return {"model": "claude-opus-4-6", "max_tokens": 100, "messages": said, **fields}


def user(*blocks: Json) -> JsonObject:
    return {"role": "user", "content": list(blocks)}


def read(*messages: Json, headers: Mapping[str, str] = {}, **fields: Any) -> ClientRequest:
    return WIRE.read_request(body(*messages, **fields), headers)


def written_again(asked: ClientRequest) -> JsonObject:
    """What the adapter sends for a request."""
    call = write_request(asked.request, provider="anthropic", options={"auto_cache": False}, stream=asked.stream)
    sent: JsonObject = msgspec.json.decode(call.body)
    return sent


def response(*content: ContentBlock, **fields: Any) -> CanonicalResponse:
    given: dict[str, Any] = {"stop_reason": StopReason.END_TURN, "usage": USAGE, "provider": "anthropic", **fields}
    return CanonicalResponse(request_id="req_1", model="anthropic:claude", content=content, **given)


def streamed(
    reply: CanonicalResponse, events: Sequence[StreamEvent] | None = None, *, asked: ClientRequest | None = None
) -> bytes:
    writer = WIRE.writer(asked or read(), INFO)
    sent = writer.start()
    for event in whole_events(reply, "msg_1") if events is None else events:
        sent += writer.write(event)
    return sent + writer.finish(reply)


def sent_events(data: bytes) -> list[JsonObject]:
    return [msgspec.json.decode(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]


def sdk(data: bytes, *, status: int = 200, content_type: str = "text/event-stream") -> Anthropic:
    """The vendor's SDK, which gets these bytes for a reply."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=data, headers={"content-type": content_type})

    client = httpx2.Client(transport=httpx2.MockTransport(reply))
    return Anthropic(api_key="k", base_url="http://127.0.0.1", http_client=client, max_retries=0)


def as_the_sdk_reads(data: bytes) -> BetaMessage:
    with sdk(data).beta.messages.stream(
        model="m", max_tokens=1, messages=[{"role": "user", "content": "Hi"}]
    ) as stream:
        return stream.get_final_message()


def as_a_client_gets(reply: CanonicalResponse, *, stream: bool) -> Mapping[str, Any]:
    """The message, as its SDK reads the stream, or as the body has it."""
    return as_the_sdk_reads(streamed(reply)).to_dict() if stream else WIRE.write_reply(read(), INFO, reply)


# --- Requests ---


@pytest.mark.parametrize(
    ("path", "why", "sent"),
    [
        ("model", "Field required", {"max_tokens": 1, "messages": []}),
        ("max_tokens", "Field required", {"model": "m", "messages": []}),
        ("max_tokens", "Input should be a valid integer", body(max_tokens="many")),
        ("max_tokens", "Input should be a valid integer", body(max_tokens=True)),
        ("max_tokens", "Input should be greater than or equal to 1", body(max_tokens=0)),
        ("messages", "Field required", {"model": "m", "max_tokens": 1}),
        ("messages", "at least one message is required", {"model": "m", "max_tokens": 1, "messages": []}),
        ("messages.0", "Input should be a valid dictionary", body("Hi")),
        ("messages.0.role", "Input should be 'user' or 'assistant'", body({"role": "tool", "content": "Hi"})),
        ("messages.0.content", "Field required", body({"role": "user"})),
        ("messages.0.content", "Input should be a valid list", body({"role": "user", "content": 5})),
        ("messages.0.content.0.type", "Field required", body(user({"text": "Hi"}))),
        (
            "messages.0.content.0.text.text",
            "Input should be a valid string",
            body(user({"type": "text", "text": 1})),
        ),
        ("messages.0.content.0.image.source", "Field required", body(user({"type": "image"}))),
        (
            "messages.0.content.0.image.source.base64",
            "Invalid base64 data",
            body(user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%"}})),
        ),
        (
            "messages.0.content.0.tool_result.tool_use_id",
            "Field required",
            body(user({"type": "tool_result", "content": "x"})),
        ),
        ("temperature", "Input should be a valid number", body(temperature="hot")),
        ("tools.0.custom.name", "Field required", body(tools=[{"input_schema": {"type": "object"}}])),
        ("tools.0.custom.input_schema", "Field required", body(tools=[{"name": "a"}])),
        (
            "tools",
            "Tool names must be unique.",
            body(tools=[{"name": "a", "input_schema": {"type": "object"}}] * 2),
        ),
        ("thinking.enabled.budget_tokens", "Field required", body(thinking={"type": "enabled"})),
    ],
)
def test_a_wrong_field_is_named_as_the_vendor_does(path: str, why: str, sent: JsonObject) -> None:
    with pytest.raises(BadRequest) as raised:
        WIRE.read_request(sent, {})
    assert raised.value.failure.param == path
    assert raised.value.failure.message == f"{path}: {why}"
    assert WIRE.write_failure(raised.value.failure)[0] == 400


CLOSED: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
HELLO: JsonObject = {"role": "user", "content": "Hi"}
WEB_SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
WEATHER: JsonObject = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True},
        {"system": "Be brief."},
        {
            "system": [
                {"type": "text", "text": "Be brief."},
                {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ]
        },
        {"messages": [user({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}})]},
        {
            "messages": [
                user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}})
            ]
        },
        {"messages": [user({"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}})]},
        {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "file_1"}})]},
        {
            "messages": [
                user(
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                        "title": "A",
                        "context": "B",
                        "citations": {"enabled": True},
                    }
                )
            ]
        },
        {"messages": [user({"type": "document", "source": {"type": "url", "url": "https://a.example/a.pdf"}})]},
        {
            "messages": [
                user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Words"}})
            ]
        },
        {"messages": [user({"type": "document", "source": {"type": "file", "file_id": "file_1"}})]},
        {"messages": [user({"type": "document", "source": {"type": "content", "content": "Words"}})]},
        {"messages": [user({"type": "document", "source": {"type": "content", "content": [SAID]}, "title": "A"})]},
        {"messages": [user({"type": "document", "source": {"type": "content", "content": [PICTURE]}})]},
        {"messages": [user(SEARCH_RESULT)]},
        {
            "tools": [WEATHER],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
                        {"type": "redacted_thinking", "data": "eHh4"},
                        {"type": "text", "text": "Let me see."},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"a": 1}},
                        {"type": "tool_use", "id": "call.2", "name": "weather", "input": {}},
                    ],
                },
                user(
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sun"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "call.2",
                        "content": [{"type": "text", "text": "Rain"}],
                        "is_error": True,
                        "cache_control": {"type": "ephemeral"},
                    },
                    {"type": "text", "text": "And now?"},
                ),
            ],
        },
        {
            "messages": [
                user({"type": "text", "text": "Hi"}),
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "server_tool_use",
                            "id": "srvtoolu_1",
                            "name": "web_search",
                            "input": {"query": "a"},
                        },
                        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                        {
                            "type": "text",
                            "text": "So.",
                            "citations": [
                                {
                                    "type": "web_search_result_location",
                                    "url": "https://a.example",
                                    "title": "A",
                                    "encrypted_index": "x",
                                    "cited_text": "So",
                                }
                            ],
                        },
                    ],
                },
                user({"type": "text", "text": "And?"}),
            ]
        },
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9}]},
        {"tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}, "defer_loading": True}]},
        {"tools": [{**WEATHER, "input_schema": CLOSED, "strict": True}]},
        {"tools": [{**WEATHER, "type": "custom", "input_examples": [{}], "eager_input_streaming": True}]},
        {"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": [WEATHER], "tool_choice": {"type": "any"}},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"tools": [WEB_SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}},
        {"thinking": {"type": "disabled"}, "model": "claude-sonnet-4-5"},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000, "model": "claude-sonnet-4-5"},
        {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "low"}},
        {"output_config": {"task_budget": {"type": "tokens", "total": 1000}}},
        {"stop_sequences": ["END"], "temperature": 0.5, "top_k": 5, "model": "claude-sonnet-4"},
        {"metadata": {"user_id": "u"}, "service_tier": "standard_only", "container": "container_1"},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "speed": "fast"},
        {"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]},
        {"cache_control": {"type": "ephemeral"}},
    ],
)
def test_the_adapter_sends_what_the_client_sent(fields: JsonObject) -> None:
    sent = {"stream": False, **body(user({"type": "text", "text": "Hi"})), **fields}
    again = written_again(WIRE.read_request(sent, {}))
    text = re.sub(rb'"toolu_[0-9a-f]{50,}"', b'"call.2"', msgspec.json.encode(again))
    assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode(sent))


def test_beta_headers_go_along() -> None:
    headers = {"anthropic-beta": "a-1,b-2", "anthropic-version": "2023-06-01", "x-api-key": "secret"}
    asked = read(headers=headers)
    assert dict(asked.headers) == {"anthropic-beta": "a-1,b-2", "anthropic-version": "2023-06-01"}
    call = write_request(asked.request, provider="anthropic", options={}, stream=False)
    assert call.headers["anthropic-beta"] == "a-1,b-2"


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"top_k": 5}, "top_k"),
        ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}, "cache_control"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tool web_search_20250305"),
        ({"messages": [HELLO, {"role": "assistant", "content": "So"}]}, "last message"),
        ({"messages": [user({"type": "container_upload", "file_id": "f"})]}, "container_upload"),
        ({"messages": [user({"type": "new_kind", "a": 1})]}, "new_kind"),
        ({"messages": [user({"type": "text", "text": "a", "new_field": 1})]}, "text.new_field"),
        (
            {"messages": [user({"type": "text", "text": "a"}), {"role": "system", "content": "b"}]},
            "system message",
        ),
    ],
)
def test_what_other_wires_can_not_carry_is_a_loss(fields: JsonObject, lost: str) -> None:
    losses = WIRE.read_request(body(**fields) | fields, {}).losses
    assert [loss.message.partition(":")[0] for loss in losses] == [lost]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (SEARCH_RESULT, "A\nhttps://a.example\n\nWords\nWords"),
        ({"type": "document", "source": {"type": "content", "content": [SAID, SAID]}}, "Words\nWords"),
    ],
)
def test_other_wires_get_search_results_and_chosen_content_in_words(block: JsonObject, text: str) -> None:
    [shown] = read(user(block)).request.messages[0].content
    assert (shown.text if isinstance(shown, TextBlock) else shown.data.decode()) == text  # type: ignore[union-attr]


def test_a_search_result_with_a_changed_text_is_sent_with_that() -> None:
    asked = read(user(SEARCH_RESULT))
    [shown] = asked.request.messages[0].content
    redacted = Message(Role.USER, (msgspec.structs.replace(shown, text="[redacted]"),))
    request = msgspec.structs.replace(asked.request, messages=(redacted,))
    sent = written_again(msgspec.structs.replace(asked, request=request))
    assert sent["messages"] == [user({"type": "text", "text": "[redacted]"})]


def test_the_number_that_claude_code_sends_first_is_not_for_the_model() -> None:
    billing: Json = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cch=fa690;"}
    asked = read(system=[billing, {"type": "text", "text": "You are Claude Code."}])
    assert asked.request.system_prompt == "You are Claude Code."
    assert len(asked.losses) == 1
    assert asked.body["system"] == [billing, {"type": "text", "text": "You are Claude Code."}]


def test_a_request_without_foreign_words_loses_nothing() -> None:
    asked = read(system="a", temperature=0.5, tools=[WEATHER], metadata={"user_id": "u"}, stop_sequences=["x"])
    assert asked.losses == ()


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("weather", "weather"),
        ("mcp__files__read", "mcp__files__read"),
        ("1st", "t1st_"),
        ("a.b", "a_b_"),
        ("mcp__" + "x" * 90, "mcp__" + "x" * 50 + "_"),
    ],
)
def test_names_of_tools_are_mapped_there_and_back(name: str, canonical: str) -> None:
    call: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    asked = read(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [call]},
        user({"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}),
        tools=[{**WEATHER, "name": name}],
        tool_choice={"type": "tool", "name": name},
    )
    ours = asked.request.tools[0].name
    assert ours.startswith(canonical)
    assert asked.request.tool_choice == ToolChoice("named", ours)
    assert asked.request.messages[1].tool_uses[0].name == ours
    reply = WIRE.write_reply(asked, INFO, response(ToolUseBlock("tu_1", ours, {})))
    assert reply["content"] == [{"type": "tool_use", "id": "tu_1", "name": name, "input": {}}]
    events = sent_events(streamed(response(ToolUseBlock("tu_1", ours, {})), asked=asked))
    assert events[1]["content_block"] == {"type": "tool_use", "id": "tu_1", "name": name, "input": {}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"a": {}}},
        {"type": "object", "required": ["a"], "properties": {}},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
        {"anyOf": [{"type": "object"}]},
    ],
)
def test_no_schema_of_a_tool_fails_the_request(schema: JsonObject) -> None:
    assert read(tools=[{"name": "a", "input_schema": schema}]).request.tools[0].name == "a"


def test_results_and_text_of_one_turn_become_two_messages() -> None:
    asked = read(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}}]},
        user(
            {"type": "text", "text": "First"},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": IMAGE}]},
        ),
    )
    assert [message.role for message in asked.request.messages] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.USER,
    ]
    result = asked.request.messages[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert isinstance(result.content[0], ImageBlock)


@pytest.mark.parametrize(
    ("content", "begins"),
    [
        ("So", True),
        ([{"type": "text", "text": "So"}], True),
        ([{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}], False),
    ],
)
def test_a_last_message_of_the_assistant_in_text_is_the_start_of_the_reply(content: Json, begins: bool) -> None:
    asked = read({"role": "user", "content": "Hi"}, {"role": "assistant", "content": content})
    assert asked.request.has_beginning is begins


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "minimal"),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, "high"),
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ({"output_config": {"effort": "low"}}, "low"),
    ],
)
def test_thinking_is_an_effort_for_other_wires(fields: dict[str, Any], effort: str | None) -> None:
    assert read(**fields).request.reasoning_effort == effort


@pytest.mark.parametrize("place", ["output_format", "output_config"])
def test_a_schema_of_the_reply_is_read_by_both_of_its_names(place: str) -> None:
    form: Json = {"type": "json_schema", "schema": {"type": "object"}}
    fields: dict[str, Any] = {place: form if place == "output_format" else {"format": form}}
    assert read(**fields).request.output_schema == {"type": "object"}


@pytest.mark.parametrize(
    ("user_id", "headers", "session"),
    [
        (
            "user_ab12_account_0a_session_12345678-9abc-4def-8123-456789abcdef",
            {},
            "12345678-9abc-4def-8123-456789abcdef",
        ),
        ('{"device_id":"d","account_uuid":"a","session_id":"s-1"}', {}, "s-1"),
        ("somebody", {}, None),
        ("{no json", {}, None),
        ("somebody", {"x-claude-code-session-id": "s-2"}, "s-2"),
    ],
)
def test_the_session_of_claude_code_is_a_hint(
    user_id: str, headers: Mapping[str, str], session: str | None
) -> None:
    assert read(headers=headers, metadata={"user_id": user_id}).session_hint == session


# --- Values that a client holds for us ---


@pytest.mark.parametrize(
    "tool_use_id",
    [
        "tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB",
        "call_1",
        "functions.read:0",
        "toolu_01A09q90qw90lq917835lq9",
        "ü",
        "toolu_b64_YQ",
    ],
)
def test_ids_of_calls_come_back(tool_use_id: str) -> None:
    client_id = client_tool_id(tool_use_id)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", client_id)
    assert canonical_tool_id(client_id) == tool_use_id


@pytest.mark.parametrize(
    ("block", "provider", "back"),
    [
        (ThinkingBlock("Hm"), "gemini", ThinkingBlock("Hm")),
        (ThinkingBlock("Hm", "c2ln"), "anthropic", ThinkingBlock("Hm", "c2ln")),
        (ThinkingBlock("Hm", "c2ln"), "claude-eu", ThinkingBlock("Hm", "c2ln", ProviderRaw("claude-eu", {}))),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_thinking_comes_back_with_its_signature(
    block: ThinkingBlock, provider: str, back: ThinkingBlock, stream: bool
) -> None:
    reply = response(block, TextBlock("So"), provider=provider)
    message = as_a_client_gets(reply, stream=stream)
    assert message["content"][0]["signature"]
    asked = read({"role": "user", "content": "Hi"}, {"role": "assistant", "content": message["content"]})
    assert asked.request.messages[1].content == (back, TextBlock("So"))


def test_the_words_for_an_image_are_no_words_of_the_model() -> None:
    image = ImageBlock(data=b"\x89PNG\r\n\x1a\n", provider_raw=ProviderRaw("gemini", {}))
    content = WIRE.write_reply(read(), INFO, response(TextBlock("So"), image))["content"]
    asked = read({"role": "user", "content": "Hi"}, {"role": "assistant", "content": content})
    assert asked.request.messages[1].content == (TextBlock("So"),)


def test_thinking_that_the_messages_api_did_not_sign_is_not_in_the_body() -> None:
    content = WIRE.write_reply(read(), INFO, response(ThinkingBlock("Hm"), TextBlock("So")))["content"]
    signed: Json = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
    said: Json = {"role": "user", "content": "Hi"}
    asked = read(said, {"role": "assistant", "content": content}, said, {"role": "assistant", "content": [signed]})
    assert asked.body["messages"] == [
        said,
        {"role": "assistant", "content": [{"type": "text", "text": "So"}]},
        said,
        {"role": "assistant", "content": [signed]},
    ]


@pytest.mark.parametrize(
    ("reply", "thinks"),
    [
        (response(ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {}), provider="openai"), False),
        (
            response(
                ThinkingBlock("Hm"),
                ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {}),
                provider="openai",
            ),
            False,
        ),
        (
            response(ThinkingBlock("Hm", "c2ln"), ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {})),
            True,
        ),
        (response(ToolUseBlock("toolu_01A09q90qw90lq917835lq9", "weather", {})), True),
    ],
)
def test_a_budget_is_not_sent_with_results_for_another_providers_call(
    reply: CanonicalResponse, thinks: bool
) -> None:
    """Anthropic refuses it: a call and its thinking belong together. Of its own replies it judges itself."""
    content: Any = WIRE.write_reply(read(), INFO, reply)["content"]
    asked = read(
        HELLO,
        {"role": "assistant", "content": content},
        user({"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "Sun"}),
        tools=[WEATHER],
        thinking={"type": "enabled", "budget_tokens": 2000},
        context_management={"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]},
    )
    kinds = ["clear_thinking_20251015"] if thinks else []
    for sent in (asked.body, asked.request.provider_options["anthropic"]):
        assert isinstance(sent, dict)
        assert ("thinking" in sent) is thinks
        edits: Any = sent["context_management"]
        assert [edit["type"] for edit in edits["edits"]] == [*kinds, "clear_tool_uses_20250919"]
    assert asked.request.reasoning_effort is not None


# --- Replies ---

CITATION: Json = {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None}
SEARCH: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}
FOUND: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def opaque(data: JsonObject) -> OpaqueBlock:
    return OpaqueBlock(str(data["type"]), ProviderRaw("anthropic", data))


@pytest.mark.parametrize(
    ("block", "written"),
    [
        (TextBlock("Hello"), {"type": "text", "text": "Hello"}),
        (TextBlock(""), {"type": "text", "text": ""}),
        (
            TextBlock("Hello", ProviderRaw("anthropic", {"citations": [CITATION]})),
            {"type": "text", "text": "Hello", "citations": [CITATION]},
        ),
        (TextBlock("Hello", ProviderRaw("openai", {"annotations": []})), {"type": "text", "text": "Hello"}),
        (ThinkingBlock("Hm", "c2ln"), {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}),
        (ThinkingBlock("", "c2ln"), {"type": "thinking", "thinking": "", "signature": "c2ln"}),
        (RedactedThinkingBlock("eHh4"), {"type": "redacted_thinking", "data": "eHh4"}),
        (
            ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "a", {"b": [1]}),
            {"type": "tool_use", "id": "toolu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "name": "a", "input": {"b": [1]}},
        ),
        (ToolUseBlock("call_1", "a", {}), {"type": "tool_use", "id": "call_1", "name": "a", "input": {}}),
        (opaque(SEARCH), SEARCH),
        (opaque(FOUND), FOUND),
        (
            ImageBlock(data=b"\x89PNG\r\n\x1a\n", provider_raw=ProviderRaw("gemini", {})),
            {"type": "text", "text": IMAGE_LEFT_OUT},
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_block_of_a_reply_has_its_form(block: ContentBlock, written: JsonObject, stream: bool) -> None:
    reply = response(block)
    message = as_a_client_gets(reply, stream=stream)
    assert message["content"] == [written]


@pytest.mark.parametrize("kind", ["reasoning", "web_search_call", "executableCode"])
@pytest.mark.parametrize("stream", [False, True])
def test_blocks_of_other_vendors_are_not_sent(kind: str, stream: bool) -> None:
    reply = response(OpaqueBlock(kind, ProviderRaw("openai", {"type": kind, "id": "x"})), TextBlock("So"))
    message = as_a_client_gets(reply, stream=stream)
    assert message["content"] == [{"type": "text", "text": "So"}]


def test_a_stream_has_the_events_of_the_vendor_in_their_order() -> None:
    reply = response(
        ThinkingBlock("Hm", "c2ln"), TextBlock("So"), ToolUseBlock("call_1", "a", {"b": 1}), opaque(SEARCH),
        stop_reason=StopReason.TOOL_USE,
    )  # fmt: skip
    events: list[StreamEvent] = [
        MessageStart("msg_1", "claude", "anthropic"),
        ThinkingDelta("H", None, 0),
        ThinkingDelta("m", None, 0),
        ThinkingDelta("", "c2ln", 0),
        TextDelta("S", 1),
        TextDelta("o", 1),
        ToolUseStart("call_1", "a", 2),
        ToolUseInputDelta("call_1", '{"b"', 2),
        ToolUseInputDelta("call_1", ":1}", 2),
        ToolUseEnd("call_1", {"b": 1}, False, 2),
        ProviderBlock("server_tool_use", SEARCH, 3),
        MessageComplete(reply.content, reply.stop_reason, None, USAGE),
    ]
    sent = sent_events(streamed(reply, events))
    told = [
        (event["type"], event.get("index"), (event.get("delta") or {}).get("type"))  # type: ignore[union-attr]
        for event in sent
    ]
    assert told == [
        ("message_start", None, None),
        ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, None),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, None),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, None),
        ("content_block_delta", 3, "input_json_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert sent[0]["message"]["usage"]["input_tokens"] == 7  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("reason", "raw", "content", "told"),
    [
        (StopReason.END_TURN, "stop", TextBlock("a"), "end_turn"),
        (StopReason.END_TURN, "STOP", ToolUseBlock("call_1", "a", {}), "tool_use"),
        (StopReason.MAX_TOKENS, "length", TextBlock("a"), "max_tokens"),
        (StopReason.MAX_TOKENS, "model_context_window_exceeded", TextBlock("a"), "model_context_window_exceeded"),
        (StopReason.STOP_SEQUENCE, "stop_sequence", TextBlock("a"), "stop_sequence"),
        (StopReason.TOOL_USE, "tool_calls", ToolUseBlock("call_1", "a", {}), "tool_use"),
        (StopReason.PAUSE_TURN, "pause_turn", TextBlock("a"), "pause_turn"),
        (StopReason.REFUSAL, "refusal", TextBlock("a"), "refusal"),
        (StopReason.CONTENT_FILTER, "SAFETY", TextBlock("a"), "refusal"),
        (StopReason.CANCELLED, None, TextBlock("a"), "max_tokens"),
        (StopReason.PROVIDER_SPECIFIC, "compaction", TextBlock("a"), "compaction"),
        (StopReason.PROVIDER_SPECIFIC, "OTHER", TextBlock("a"), "end_turn"),
    ],
)
def test_each_stop_reason_has_the_vendors_word(
    reason: StopReason, raw: str | None, content: ContentBlock, told: str
) -> None:
    details: JsonObject = {"stop_sequence": "END"} if reason is StopReason.STOP_SEQUENCE else {}
    reply = response(content, stop_reason=reason, raw_stop_reason=raw, provider_details=details)
    message = as_the_sdk_reads(streamed(reply))
    assert message.stop_reason == told
    assert message.stop_sequence == details.get("stop_sequence")
    assert WIRE.write_reply(read(), INFO, reply)["stop_reason"] == told


@pytest.mark.parametrize("stream", [False, True])
def test_usage_has_all_counts_of_the_call(stream: bool) -> None:
    usage = TokenUsage(
        input_tokens=10,
        output_tokens=5,
        cached_input_tokens=100,
        cache_creation_input_tokens=30,
        cache_creation_1h_input_tokens=20,
        reasoning_tokens=2,
        details={"web_search": 3},
    )
    reply = response(TextBlock("a"), usage=usage, provider="openai")
    told: Json = (
        sent_events(streamed(reply))[-2]["usage"] if stream else WIRE.write_reply(read(), INFO, reply)["usage"]
    )
    assert told == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 30,
        "cache_read_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "server_tool_use": {"web_search_requests": 3},
        "service_tier": "standard",
    }


def test_a_call_whose_reply_breaks_off_has_no_end() -> None:
    writer = WIRE.writer(read(), INFO)
    sent = writer.start()
    for event in (
        MessageStart("msg_1", "m", "openai"),
        ToolUseStart("call_1", "a", 0),
        ToolUseInputDelta("call_1", '{"path": "/', 0),
        ToolUseEnd("call_1", {"path": "/"}, True, 0),
        MessageComplete((), StopReason.ERROR, None, USAGE),
    ):
        sent += writer.write(event)
    sent += writer.fail(Failure(kind="overloaded", message="Overloaded", request_id="req_1"))
    assert [event["type"] for event in sent_events(sent)] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    with pytest.raises(APIStatusError) as raised:
        as_the_sdk_reads(sent)
    assert raised.value.type == "overloaded_error"


def test_a_ping_is_no_content() -> None:
    writer = WIRE.writer(read(), INFO)
    reply = response(TextBlock("So"))
    sent = writer.start() + writer.ping() + writer.write(TextDelta("So", 0)) + writer.ping() + writer.finish(reply)
    assert as_the_sdk_reads(sent).to_dict()["content"] == [{"type": "text", "text": "So"}]


# --- Failures, models, counts ---


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Failure(kind="invalid_request", message="x"), 400, "invalid_request_error"),
        (Failure(kind="content_filter", message="x"), 400, "invalid_request_error"),
        (Failure(kind="authentication", message="x"), 401, "authentication_error"),
        (Failure(kind="budget", message="x"), 402, "billing_error"),
        (Failure(kind="budget", message="x", retry_after=60), 429, "rate_limit_error"),
        (Failure(kind="permission", message="x"), 403, "permission_error"),
        (Failure(kind="not_found", message="x"), 404, "not_found_error"),
        (Failure(kind="too_large", message="x"), 413, "request_too_large"),
        (Failure(kind="rate_limit", message="x"), 429, "rate_limit_error"),
        (Failure(kind="server", message="x"), 500, "api_error"),
        (Failure(kind="unavailable", message="x"), 503, "api_error"),
        (Failure(kind="timeout", message="x"), 504, "timeout_error"),
        (Failure(kind="overloaded", message="x"), 529, "overloaded_error"),
    ],
)
def test_each_failure_has_the_vendors_status_and_type(failure: Failure, status: int, kind: str) -> None:
    told, sent = WIRE.write_failure(msgspec.structs.replace(failure, request_id="req_1"))
    assert (told, sent) == (
        status,
        {"type": "error", "error": {"type": kind, "message": "x"}, "request_id": "req_1"},
    )
    with pytest.raises(APIStatusError) as raised:
        sdk(msgspec.json.encode(sent), status=told, content_type="application/json").messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "Hi"}]
        )
    assert raised.value.type == kind


def test_an_overflow_has_the_words_that_clients_look_for() -> None:
    _, sent = WIRE.write_failure(Failure(kind="context_overflow", message="300000 tokens are too many"))
    assert sent["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 300000 tokens are too many",
    }


def test_models_are_listed_for_the_sdk() -> None:
    models = [
        ListedModel(id="a", created=86400, context_tokens=200_000, output_tokens=64_000),
        ListedModel(id="b"),
    ]
    page = sdk(msgspec.json.encode(WIRE.write_models(models)), content_type="application/json").models.list()
    assert [(model.id, model.display_name, model.max_tokens) for model in page] == [
        ("a", "a", 64_000),
        ("b", "b", None),
    ]
    assert (page.first_id, page.last_id, page.has_more) == ("a", "b", False)
    assert page.data[0].created_at.isoformat() == "1970-01-02T00:00:00+00:00"
    assert WIRE.write_model(models[1])["id"] == "b"


def test_a_count_is_read_by_the_sdk() -> None:
    client = sdk(msgspec.json.encode(WIRE.write_token_count(12)), content_type="application/json")
    assert client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "Hi"}]).input_tokens == 12
