"""Replies to Anthropic's clients, and the content that clients send back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from callboard.adapters import CanonicalResponse
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
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine.gateway.messages_content import IMAGE_LEFT_OUT, canonical_tool_id, client_tool_id
from callboard.engine.gateway.messages_replies import WIRE

from .messages_kit import (
    HELLO,
    INFO,
    USAGE,
    WEATHER,
    as_a_client_gets,
    read,
    response,
    sent_events,
    streamed,
    user,
)

# --- Replies ---

CITATION: Json = {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None}
SEARCH: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}
FOUND: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def opaque(data: JsonObject) -> OpaqueBlock:
    return OpaqueBlock(str(data["type"]), ProviderRaw("anthropic", data))


@pytest.mark.parametrize(("block", "written"), [
    (TextBlock("Hello"), {"type": "text", "text": "Hello"}),
    (TextBlock(""), {"type": "text", "text": ""}),
    (TextBlock("Hello", ProviderRaw("anthropic", {"citations": [CITATION]})),
        {"type": "text", "text": "Hello", "citations": [CITATION]}),
    (TextBlock("Hello", ProviderRaw("openai", {"annotations": []})), {"type": "text", "text": "Hello"}),
    (ThinkingBlock("Hm", "c2ln"), {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}),
    (ThinkingBlock("", "c2ln"), {"type": "thinking", "thinking": "", "signature": "c2ln"}),
    (RedactedThinkingBlock("eHh4"), {"type": "redacted_thinking", "data": "eHh4"}),
    (ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "a", {"b": [1]}),
        {"type": "tool_use", "id": "toolu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "name": "a", "input": {"b": [1]}}),
    (ToolUseBlock("call_1", "a", {}), {"type": "tool_use", "id": "call_1", "name": "a", "input": {}}),
    (opaque(SEARCH), SEARCH),
    (opaque(FOUND), FOUND),
    (ImageBlock(data=b"\x89PNG\r\n\x1a\n", provider_raw=ProviderRaw("gemini", {})),
        {"type": "text", "text": IMAGE_LEFT_OUT}),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_each_block_of_a_reply_has_its_form(block: ContentBlock, written: JsonObject, stream: bool) -> None:
    reply = response(block)
    message = as_a_client_gets(reply, stream=stream)
    assert message["content"] == [written]


@pytest.mark.parametrize("stream", [False, True])
def test_blocks_of_other_vendors_are_not_sent(stream: bool) -> None:
    raw = ProviderRaw("openai", {"type": "web_search_call", "id": "x"})
    reply = response(OpaqueBlock("web_search_call", raw), TextBlock("So"))
    message = as_a_client_gets(reply, stream=stream)
    assert message["content"] == [{"type": "text", "text": "So"}]


def test_a_stream_has_the_events_of_the_vendor_in_their_order() -> None:
    reply = response(
        ThinkingBlock("Hm", "c2ln"), TextBlock("So"), ToolUseBlock("call_1", "a", {"b": 1}), opaque(SEARCH),
        stop_reason=StopReason.TOOL_USE,
    )  # fmt: skip
    events: list[StreamEvent] = [
        MessageStart("msg_1", "claude", "anthropic"), ThinkingDelta("H", None, 0), ThinkingDelta("m", None, 0),
        ThinkingDelta("", "c2ln", 0), TextDelta("S", 1), TextDelta("o", 1), ToolUseStart("call_1", "a", 2),
        ToolUseInputDelta("call_1", '{"b"', 2), ToolUseInputDelta("call_1", ":1}", 2),
        ToolUseEnd("call_1", {"b": 1}, False, 2), ProviderBlock("server_tool_use", SEARCH, 3),
        MessageComplete(reply.content, reply.stop_reason, None, USAGE),
    ]  # fmt: skip
    sent: list[Any] = sent_events(streamed(reply, events))
    kinds = [(event["type"], event.get("index"), (event.get("delta") or {}).get("type")) for event in sent]
    assert kinds == [
        ("message_start", None, None), ("content_block_start", 0, None),
        ("content_block_delta", 0, "thinking_delta"), ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"), ("content_block_stop", 0, None),
        ("content_block_start", 1, None), ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"), ("content_block_stop", 1, None),
        ("content_block_start", 2, None), ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"), ("content_block_stop", 2, None),
        ("content_block_start", 3, None), ("content_block_delta", 3, "input_json_delta"),
        ("content_block_stop", 3, None), ("message_delta", None, None), ("message_stop", None, None),
    ]  # fmt: skip
    assert sent[0]["message"]["usage"]["input_tokens"] == 7


@pytest.mark.parametrize("stream", [False, True])
def test_usage_has_all_counts_of_the_call(stream: bool) -> None:
    usage = TokenUsage(
        input_tokens=10, output_tokens=5, cached_input_tokens=100, cache_creation_input_tokens=30,
        cache_creation_1h_input_tokens=20, reasoning_tokens=2, details={"web_search": 3},
    )  # fmt: skip
    reply = response(TextBlock("a"), usage=usage, provider="openai")
    told: Json = (
        sent_events(streamed(reply))[-2]["usage"] if stream else WIRE.write_reply(read(), INFO, reply)["usage"]
    )
    assert told == {
        "input_tokens": 10, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}, "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2}, "server_tool_use": {"web_search_requests": 3},
        "service_tier": "standard",
    }  # fmt: skip


# --- Values that a client stores for the gateway ---


@pytest.mark.parametrize("tool_use_id", [
    "tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB",
    "call_1",
    "functions.read:0",
    "toolu_01A09q90qw90lq917835lq9",
    "ü",
    "toolu_b64_YQ",
])  # fmt: skip
def test_ids_of_calls_come_back(tool_use_id: str) -> None:
    client_id = client_tool_id(tool_use_id)
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", client_id)
    assert canonical_tool_id(client_id) == tool_use_id


@pytest.mark.parametrize(("block", "provider", "back"), [
    (ThinkingBlock("Hm"), "gemini", ThinkingBlock("Hm")),
    (ThinkingBlock("Hm", "c2ln"), "anthropic", ThinkingBlock("Hm", "c2ln")),
    (ThinkingBlock("Hm", "c2ln"), "claude-eu", ThinkingBlock("Hm", "c2ln", ProviderRaw("claude-eu", {}))),
])  # fmt: skip
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


@pytest.mark.parametrize(("reply", "thinks"), [
    (response(ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {}), provider="openai"), False),
    (response(ThinkingBlock("Hm"), ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {}),
        provider="openai"), False),
    (response(ThinkingBlock("Hm", "c2ln"), ToolUseBlock("tu_01JDPG3ZQ8XK4V5N6M7R8S9TAB", "weather", {})),
        True),
    (response(ToolUseBlock("toolu_01A09q90qw90lq917835lq9", "weather", {})), True),
])  # fmt: skip
def test_no_thinking_budget_is_sent_with_results_of_another_providers_call(
    reply: CanonicalResponse, thinks: bool
) -> None:
    """Anthropic refuses a call without its thinking. For calls of its own replies, Anthropic checks this
    itself.
    """
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
