"""The reading of requests from Anthropic's clients."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from callboard.adapters.providers.anthropic.request import write_request
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.engine.gateway.failures import BadRequest
from callboard.engine.gateway.messages_replies import WIRE

from .messages_kit import (
    HELLO,
    IMAGE,
    PDF,
    PICTURE,
    PNG,
    SAID,
    SEARCH_RESULT,
    WEATHER,
    body,
    read,
    user,
    written_again,
)

# --- Requests ---


@pytest.mark.parametrize(("path", "why", "sent"), [
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
    ("messages.0.content.0.text.text", "Input should be a valid string",
        body(user({"type": "text", "text": 1}))),
    ("messages.0.content.0.image.source", "Field required", body(user({"type": "image"}))),
    ("messages.0.content.0.image.source.base64", "Invalid base64 data",
        body(user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%"}}))),
    ("messages.0.content.0.tool_result.tool_use_id", "Field required",
        body(user({"type": "tool_result", "content": "x"}))),
    ("temperature", "Input should be a valid number", body(temperature="hot")),
    ("tools.0.custom.name", "Field required", body(tools=[{"input_schema": {"type": "object"}}])),
    ("tools.0.custom.input_schema", "Field required", body(tools=[{"name": "a"}])),
    ("tools", "Tool names must be unique.", body(tools=[{"name": "a",
        "input_schema": {"type": "object"}}] * 2)),
    ("thinking.enabled.budget_tokens", "Field required", body(thinking={"type": "enabled"})),
])  # fmt: skip
def test_a_wrong_field_is_named_as_the_vendor_does(path: str, why: str, sent: JsonObject) -> None:
    with pytest.raises(BadRequest) as raised:
        WIRE.read_request(sent, {})
    assert raised.value.failure.param == path
    assert raised.value.failure.message == f"{path}: {why}"
    assert WIRE.write_failure(raised.value.failure)[0] == 400


CLOSED: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}
WEB_SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}


CITED: Json = {
    "type": "web_search_result_location", "url": "https://a.example", "title": "A", "encrypted_index": "x",
    "cited_text": "So",
}  # fmt: skip
CALLING: JsonObject = {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "Hm", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "eHh4"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"a": 1}},
    {"type": "tool_use", "id": "call.2", "name": "weather", "input": {}},
]}  # fmt: skip
RESULTS: list[Json] = [
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sun"},
    {"type": "tool_result", "tool_use_id": "call.2", "content": [{"type": "text", "text": "Rain"}],
     "is_error": True, "cache_control": {"type": "ephemeral"}},
]  # fmt: skip
SEARCHING: JsonObject = {"role": "assistant", "content": [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "text", "text": "So.", "citations": [CITED]},
]}  # fmt: skip


def sourced(kind: str, source: Json, **more: Json) -> JsonObject:
    return {"messages": [user({"type": kind, "source": source, **more})]}


@pytest.mark.parametrize("fields", [
    {},
    {"stream": True},
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.",
        "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
    {"messages": [user({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}})]},
    sourced("image", {"type": "base64", "media_type": "image/png", "data": PNG}),
    sourced("image", {"type": "url", "url": "https://a.example/a.png"}),
    sourced("image", {"type": "file", "file_id": "file_1"}),
    sourced("document", {"type": "base64", "media_type": "application/pdf", "data": PDF},
        title="A", context="B", citations={"enabled": True}),
    sourced("document", {"type": "url", "url": "https://a.example/a.pdf"}),
    sourced("document", {"type": "text", "media_type": "text/plain", "data": "Words"}),
    sourced("document", {"type": "file", "file_id": "file_1"}),
    sourced("document", {"type": "content", "content": "Words"}),
    sourced("document", {"type": "content", "content": [SAID]}, title="A"),
    sourced("document", {"type": "content", "content": [PICTURE]}),
    {"messages": [user(SEARCH_RESULT)]},
    {"messages": [user(SAID), CALLING, user(*RESULTS, SAID)], "tools": [WEATHER]},
    {"messages": [user(SAID), SEARCHING, user(SAID)]},
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
])  # fmt: skip
def test_the_adapter_sends_what_the_client_sent(fields: JsonObject) -> None:
    sent = {"stream": False, **body(user({"type": "text", "text": "Hi"})), **fields}
    again = written_again(WIRE.read_request(sent, {}))
    text = re.sub(rb'"toolu_[0-9a-f]{50,}"', b'"call.2"', msgspec.json.encode(again))
    assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode(sent))


def test_beta_headers_reach_the_provider() -> None:
    request = read(headers={"anthropic-beta": "a-1,b-2"}).request
    call = write_request(request, provider="anthropic", options={}, stream=False)
    assert call.headers["anthropic-beta"] == "a-1,b-2"


@pytest.mark.parametrize(("fields", "lost"), [
    ({"top_k": 5}, "top_k"),
    ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}, "cache_control"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tool web_search_20250305"),
    ({"messages": [HELLO, {"role": "assistant", "content": "So"}]}, "last message"),
    ({"messages": [user({"type": "container_upload", "file_id": "f"})]}, "container_upload"),
    ({"messages": [user({"type": "new_kind", "a": 1})]}, "new_kind"),
    ({"messages": [user({"type": "text", "text": "a", "new_field": 1})]}, "text.new_field"),
    ({"messages": [user({"type": "text", "text": "a"}), {"role": "system", "content": "b"}]},
        "system message"),
])  # fmt: skip
def test_what_other_wires_can_not_carry_is_a_loss(fields: JsonObject, lost: str) -> None:
    losses = WIRE.read_request(body(**fields) | fields, {}).losses
    assert [loss.message.partition(":")[0] for loss in losses] == [lost]


@pytest.mark.parametrize(("block", "text"), [
    (SEARCH_RESULT, "A\nhttps://a.example\n\nWords\nWords"),
    ({"type": "document", "source": {"type": "content", "content": [SAID, SAID]}}, "Words\nWords"),
])  # fmt: skip
def test_other_wires_get_search_results_and_chosen_content_in_words(block: JsonObject, text: str) -> None:
    [shown] = read(user(block)).request.messages[0].content
    if isinstance(shown, TextBlock):
        assert shown.text == text
    else:
        assert isinstance(shown, DocumentBlock)
        assert shown.data == text.encode()


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
        Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER,
    ]  # fmt: skip
    result = asked.request.messages[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert isinstance(result.content[0], ImageBlock)


@pytest.mark.parametrize(("content", "begins"), [
    ("So", True),
    ([{"type": "text", "text": "So"}], True),
    ([{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}], False),
])  # fmt: skip
def test_a_last_message_of_the_assistant_in_text_is_the_start_of_the_reply(content: Json, begins: bool) -> None:
    asked = read({"role": "user", "content": "Hi"}, {"role": "assistant", "content": content})
    assert asked.request.has_beginning is begins


@pytest.mark.parametrize(("fields", "effort"), [
    ({}, None),
    ({"thinking": {"type": "disabled"}}, "none"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "minimal"),
    ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, "high"),
    ({"thinking": {"type": "adaptive"}}, "high"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
    ({"output_config": {"effort": "low"}}, "low"),
])  # fmt: skip
def test_thinking_is_an_effort_for_other_wires(fields: dict[str, Any], effort: str | None) -> None:
    assert read(**fields).request.reasoning_effort == effort


@pytest.mark.parametrize("place", ["output_format", "output_config"])
def test_a_schema_of_the_reply_is_read_by_both_of_its_names(place: str) -> None:
    form: Json = {"type": "json_schema", "schema": {"type": "object"}}
    fields: dict[str, Any] = {place: form if place == "output_format" else {"format": form}}
    assert read(**fields).request.output_schema == {"type": "object"}
