"""The reading of messages, calls and tools from clients of Chat Completions."""

from __future__ import annotations

import pytest

from callboard.adapters.providers.openai_compatible.quirks import QUIRKS
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Role, ToolChoice, ToolDefinition

from .chat_kit import (
    OBJECT,
    PDF,
    PNG,
    PROVIDER,
    READ,
    adapters_body,
    asked,
    losses_of,
    read_message,
    replied,
    said,
)

# --- Content ---


@pytest.mark.parametrize(("part", "block"), [
    ({"type": "text", "text": "Hi"}, TextBlock("Hi")),
    ({"type": "image_url", "image_url": {"url": PNG}}, ImageBlock(PNG)),
    ({"type": "image_url", "image_url": "https://x.test/a.png"}, ImageBlock("https://x.test/a.png")),
    ({"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}, ImageBlock(PNG, detail="low")),
    ({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        AudioBlock("data:audio/mpeg;base64,UklGRg==", media_type="audio/mpeg")),
    ({"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}},
        DocumentBlock(PDF, media_type="application/pdf", name="a.pdf")),
    ({"type": "file", "file": {"file_data": "https://x.test/a.pdf"}}, DocumentBlock("https://x.test/a.pdf")),
    ({"type": "file", "file": {"file_data": "JVBERi0="}}, DocumentBlock(PDF, media_type="application/pdf")),
    ({"type": "file", "file": {"file_data": PNG}}, ImageBlock(PNG, media_type="image/png")),
    ({"type": "document_url", "document_url": "https://x.test/a", "document_name": "A"},
        DocumentBlock("https://x.test/a", name="A")),
    ({"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}},
        TextBlock("Hi", ProviderRaw(PROVIDER, {"cache_control": {"type": "ephemeral"}}))),
    ({"type": "file", "file": {"file_id": "file-1"}}, OpaqueBlock("file",
        ProviderRaw(PROVIDER, {"type": "file", "file": {"file_id": "file-1"}}))),
    ({"type": "video_url", "video_url": {"url": "https://x.test/a.mp4"}},
        OpaqueBlock("video_url", ProviderRaw(PROVIDER, {"type": "video_url",
        "video_url": {"url": "https://x.test/a.mp4"}}))),
])  # fmt: skip
def test_a_part_of_a_message_becomes_a_block(part: JsonObject, block: ContentBlock) -> None:
    assert said(part) == block


CLAUDE = "anthropic-claude-v1"
SIGNED: JsonObject = {
    "type": "reasoning.text", "text": "Hm", "signature": "c2ln", "index": 0, "format": CLAUDE
}  # fmt: skip
HIDDEN: JsonObject = {"type": "reasoning.encrypted", "data": "ZGF0YQ", "index": 1, "format": CLAUDE}


@pytest.mark.parametrize(("fields", "blocks"), [
    ({"refusal": "No."}, [TextBlock("No.")]),
    ({"content": [{"type": "refusal", "refusal": "No."}]}, [TextBlock("No.")]),
    ({"content": "Here", "images": [{"type": "image_url", "image_url": {"url": PNG}}]},
        [TextBlock("Here"), ImageBlock(PNG)]),
    ({"reasoning_content": "Hm"}, [ThinkingBlock("Hm", None, ProviderRaw(PROVIDER, {}))]),
    ({"reasoning": "Hm"}, [ThinkingBlock("Hm", None, ProviderRaw(PROVIDER,
        {"reasoning_field": "reasoning"}))]),
    ({"reasoning_content": "Hm", "thinking_blocks": [{"type": "thinking", "thinking": "Hm",
        "signature": "c2ln"}, {"type": "redacted_thinking", "data": "ZGF0YQ"}]},
        [ThinkingBlock("Hm", "c2ln"), RedactedThinkingBlock("ZGF0YQ")]),
    ({"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "H", "index": 0,
        "format": CLAUDE}, {"type": "reasoning.text", "text": "m", "index": 0, "format": CLAUDE},
        {"type": "reasoning.text", "signature": "c2ln", "index": 0, "format": CLAUDE}]},
        [ThinkingBlock("Hm", "c2ln", ProviderRaw(PROVIDER, {"reasoning_details": [SIGNED]}))]),
    ({"reasoning_content": "Hm", "reasoning_details": [{"type": "reasoning.text", "signature": "c2ln",
        "index": 0, "format": CLAUDE}, HIDDEN]}, [ThinkingBlock("Hm", "c2ln",
        ProviderRaw(PROVIDER, {"reasoning_details": [SIGNED]})), RedactedThinkingBlock("ZGF0YQ",
        ProviderRaw(PROVIDER, {"reasoning_details": [HIDDEN]}))]),
    ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]},
        [ThinkingBlock("", None, ProviderRaw(PROVIDER, {"reasoning_details": [{"type": "reasoning.encrypted",
        "data": "x", "format": "openai-responses-v1"}]}))]),
])  # fmt: skip
def test_a_reply_that_a_client_sends_back_is_read_in_its_most_exact_form(
    fields: JsonObject, blocks: list[ContentBlock]
) -> None:
    assert list(replied(**{"content": None, **fields})) == blocks


def test_anthropics_reasoning_goes_back_to_openrouter_as_it_came() -> None:
    message: JsonObject = {"role": "assistant", "content": "Hi", "reasoning_details": [SIGNED, HIDDEN]}
    request = asked(messages=[{"role": "user", "content": "Hi"}, message]).request
    sent = adapters_body(request, QUIRKS["openrouter"])
    assert sent["messages"][1]["reasoning_details"] == [SIGNED, HIDDEN]


def test_marks_and_later_instructions_stay_messages_of_their_role() -> None:
    mark: JsonObject = {"type": "ephemeral"}
    messages = read_message(
        {"role": "system", "content": [{"type": "text", "text": "Be kind.", "cache_control": mark}]},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "Be short."},
    )
    assert [message.role for message in messages] == [Role.SYSTEM, Role.USER, Role.DEVELOPER]
    assert messages[0].content == (TextBlock("Be kind.", ProviderRaw(PROVIDER, {"cache_control": mark})),)


# --- Calls and results ---


def call(wire_id: str, name: str = "read", arguments: Json = "{}") -> JsonObject:
    return {"id": wire_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_results_in_a_row_are_one_message() -> None:
    messages = read_message(
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
    )
    assert [message.role for message in messages] == [Role.ASSISTANT, Role.TOOL]
    assert messages[1].content == (ToolResultBlock("b", "2"), ToolResultBlock("a", (ImageBlock(PNG),)))


@pytest.mark.parametrize(
    ("arguments", "read"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1})],
)
def test_arguments_are_read_in_every_form_that_clients_send(arguments: Json, read: JsonObject) -> None:
    (block,) = replied(content=None, tool_calls=[call("a", arguments=arguments)])
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.incomplete) == (read, False)


def test_arguments_that_were_cut_off_are_kept_as_text() -> None:
    (block,) = replied(content=None, tool_calls=[call("a", arguments='{"a": ')])
    assert isinstance(block, ToolUseBlock)
    assert (block.raw_arguments, block.incomplete) == ('{"a": ', True)


def test_functions_of_old_clients_are_tools() -> None:
    client = asked(
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}},
            {"role": "function", "name": "read", "content": "done"},
        ],
        functions=[{"name": "read", "parameters": OBJECT}],
        function_call={"name": "read"},
    )
    request = client.request
    assert request.tools == (ToolDefinition("read", "", OBJECT, strict=False),)
    assert request.tool_choice == ToolChoice("named", "read")
    assert request.parallel_tool_calls is False
    (used,) = request.messages[1].tool_uses
    assert request.messages[2].content == (ToolResultBlock(used.id, "done"),)


# --- Tools ---


@pytest.mark.parametrize(("parameters", "schema"), [
    (None, {"type": "object", "properties": {}}),
    ({}, {"type": "object"}),
    ({"type": "object", "properties": None}, {"type": "object", "properties": {}}),
    ({"type": "object", "required": ["x"]}, {"type": "object", "properties": {"x": {}}, "required": ["x"]}),
    ({"type": "string"}, {"type": "object", "properties": {}}),
    ({"type": ["object", "null"]}, {"type": "object"}),
    ({"anyOf": [{"type": "object"}]}, {"anyOf": [{"type": "object"}]}),
    ({"type": "object", "required": None}, {"type": "object", "required": []}),
])  # fmt: skip
def test_a_schema_that_canonical_tools_refuse_is_mended(parameters: Json, schema: JsonObject) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    (definition,) = asked(tools=[tool]).request.tools
    assert definition.input_schema == schema


def test_a_tool_is_strict_only_if_the_client_sets_it() -> None:
    strict: JsonObject = {"type": "function", "function": {"name": "a", "parameters": OBJECT, "strict": True}}
    assert [tool.strict for tool in asked(tools=[strict, READ]).request.tools] == [True, False]


def test_a_free_form_tool_keeps_its_grammar_on_both_of_openais_protocols() -> None:
    grammar: JsonObject = {"syntax": "lark", "definition": "start: /a/"}
    tool: JsonObject = {
        "type": "custom",
        "custom": {"name": "sql", "format": {"type": "grammar", "grammar": grammar}},
    }
    client = asked(tools=[tool], tool_choice={"type": "custom", "custom": {"name": "sql"}})
    (definition,) = client.request.tools
    options = {"type": "custom", "format": {"type": "grammar", **grammar}}
    assert definition.provider_options == {PROVIDER: options, "openai": options}
    assert client.options["free_form_tools"] == ["sql"]
    assert adapters_body(client.request)["tools"] == [tool]


@pytest.mark.parametrize(("choice", "read"), [
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ("any", ToolChoice("required")),
    ({"type": "function", "function": {"name": "read"}}, ToolChoice("named", "read")),
    ({"function": {"name": "read"}}, ToolChoice("named", "read")),
    ({"type": "auto"}, ToolChoice()),
    ({"type": "tool", "name": "read"}, ToolChoice("named", "read")),
])  # fmt: skip
def test_a_tool_choice_is_read_in_every_form_that_clients_send(choice: Json, read: ToolChoice) -> None:
    assert asked(tools=[READ], tool_choice=choice).request.tool_choice == read


@pytest.mark.parametrize(("mode", "read"), [("auto", ToolChoice()), ("required", ToolChoice("required"))])
def test_allowed_tools_are_the_only_ones_that_are_offered(mode: str, read: ToolChoice) -> None:
    other: JsonObject = {"type": "function", "function": {"name": "write"}}
    allowed: JsonObject = {"mode": mode, "tools": [{"type": "function", "function": {"name": "write"}}]}
    request = asked(tools=[READ, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).request
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["write"], read)


def test_a_vendors_own_tool_reaches_that_vendor_and_is_a_loss_elsewhere() -> None:
    search: JsonObject = {"type": "openrouter:web_search", "parameters": {}}
    client = asked(tools=[READ, search])
    tools = adapters_body(client.request)["tools"]
    assert isinstance(tools, list)
    assert search in tools
    assert "openrouter:web_search" in losses_of(tools=[search])
