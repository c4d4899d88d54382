"""The gateway's replies to clients of OpenAI's Responses API, read by the vendor's SDK."""

from __future__ import annotations

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from callboard.adapters import CallWarning
from callboard.bus.streams.events import (
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
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
from callboard.bus.values.usage import StopReason

from ..support.canonical_requests import PNG
from .responses_cases import (
    APPLY_PATCH,
    PATCH,
    events_of,
    last_response,
    output_of,
    read,
    read_stream,
    response,
    sdk_of,
    streamed,
    whole,
)


def grown(data: bytes) -> Response:
    """The response that the SDK makes of a stream."""
    with sdk_of(data).responses.stream(model="gpt-5", input="Hi") as stream:
        return stream.get_final_response()


def created(body: JsonObject) -> Response:
    """The response that the SDK makes of a whole reply."""
    return sdk_of(msgspec.json.encode(body)).responses.create(model="gpt-5", input="Hi")


# --- Both forms ---


def test_the_sdk_reads_every_kind_of_content_the_same_whole_and_streamed() -> None:
    asked = read(tools=[APPLY_PATCH, {"type": "local_shell"}])
    reply = response(
        ThinkingBlock("Let me see.", "signature"), TextBlock("Hello"), TextBlock(" world"),
        ToolUseBlock("tu_1", "weather", {"city": "Köln"}), ToolUseBlock("tu_2", "apply_patch", {"input": PATCH}),
        ToolUseBlock("tu_3", "local_shell", {"command": ["ls"]}), stop_reason=StopReason.TOOL_USE,
    )  # fmt: skip
    one, other = created(whole(reply, asked)), grown(streamed(reply, asked=asked))
    assert one.output_text == other.output_text == "Hello world"
    assert [item.type for item in one.output] == [
        "reasoning", "message", "function_call", "custom_tool_call", "local_shell_call",
    ]  # fmt: skip
    assert one.model_dump(exclude_none=True) == other.model_dump(exclude_none=True)
    assert one.usage is not None
    assert one.usage.model_dump(exclude_none=True) == {
        "input_tokens": 17, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 22,
    }  # fmt: skip


def test_the_response_repeats_the_request() -> None:
    fields: dict[str, Json] = {
        "instructions": "Be good.", "metadata": {"a": "b"}, "temperature": 0.5, "tools": [APPLY_PATCH],
        "tool_choice": "required", "reasoning": {"effort": "high"}, "store": False, "max_output_tokens": 9,
    }  # fmt: skip
    body = whole(response(TextBlock("Hi")), read(**fields))  # type: ignore[arg-type]
    assert {name: body[name] for name in fields} == {
        **fields,
        "reasoning": {"effort": "high", "summary": None},
    }
    assert (body["id"], body["model"], body["created_at"]) == ("resp_01J", "gpt-5", 1)
    TypeAdapter(Response).validate_python(body, strict=False)


# --- Streams ---


def test_the_events_of_a_stream_come_in_the_vendors_order_and_form() -> None:
    asked = read(tools=[APPLY_PATCH])
    reply = response(
        ThinkingBlock("Hm", "signature"), TextBlock("Hi"), ToolUseBlock("tu_1", "weather", {}),
        ToolUseBlock("tu_2", "apply_patch", {"input": "x"}), stop_reason=StopReason.TOOL_USE,
    )  # fmt: skip
    events = events_of(streamed(reply, asked=asked))
    assert [str(event["type"]).removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"),
        *("output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]  # fmt: skip
    last: JsonObject = events[-1]["response"]  # type: ignore[assignment]
    ids = [item["id"] for item in output_of(last)]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
        item = event.get("item")
        named = item["id"] if isinstance(item, dict) else event.get("item_id")
        assert named is None or ids[event["output_index"]] == named


def test_sources_are_annotations() -> None:
    cited: JsonObject = {
        "type": "web_search_result_location", "url": "https://a.test", "title": "A", "cited_text": "",
    }  # fmt: skip
    nested: JsonObject = {"type": "url_citation", "url_citation": {"url": "https://b.test", "title": "B"}}
    reply = response(
        TextBlock("One", ProviderRaw("anthropic", {"citations": [cited]})),
        TextBlock("Two", ProviderRaw("openrouter", {"annotations": [nested]})),
    )
    for body in (whole(reply), last_response(streamed(reply))):
        item = output_of(body)[0]
        urls = [note["url"] for part in item["content"] for note in part["annotations"]]  # type: ignore[union-attr,index,call-overload]
        assert urls == ["https://a.test", "https://b.test"]
    kinds = [event["type"] for event in events_of(streamed(reply))]
    assert "response.output_text.annotation.added" in kinds


def test_what_gemini_found_is_annotated() -> None:
    metadata: JsonObject = {
        "groundingChunks": [{"web": {"uri": "https://a.test", "title": "A"}}],
        "groundingSupports": [{"segment": {"startIndex": 4, "text": "warm"}, "groundingChunkIndices": [0]}],
    }
    found = OpaqueBlock("groundingMetadata", ProviderRaw("gemini", {"groundingMetadata": metadata}))
    reply = response(TextBlock("So, warm"), found)
    for body in (whole(reply), last_response(streamed(reply))):
        [item] = output_of(body)
        assert item["content"][0]["annotations"] == [  # type: ignore[index,call-overload]
            {"type": "url_citation", "url": "https://a.test", "title": "A", "start_index": 4, "end_index": 8}
        ]


# --- Content of other providers ---


def test_foreign_reasoning_goes_out_with_a_token_in_place_of_its_secret() -> None:
    reply = response(
        ThinkingBlock("Hm", "signature", ProviderRaw("anthropic", {})),
        RedactedThinkingBlock("hidden", ProviderRaw("anthropic", {"type": "redacted_thinking", "data": "hidden"})),
        TextBlock("Hi"),
    )
    bodies = [whole(reply), last_response(streamed(reply))]
    assert output_of(bodies[0]) == output_of(bodies[1])
    items = output_of(bodies[0])[:2]
    assert [item["summary"] for item in items] == [[{"type": "summary_text", "text": "Hm"}], []]
    for item in items:
        token = item["encrypted_content"]
        assert isinstance(token, str)
        assert token.startswith("callboard:")
        assert len(token) < 60
    [message] = read(*items, {"role": "assistant", "content": "Hi"}).request.messages
    assert [type(block) for block in message.content] == [ThinkingBlock, ThinkingBlock, TextBlock]
    assert all(getattr(block, "signature", None) is None for block in message.content)


def test_reasoning_of_openai_goes_out_whole_and_unchanged() -> None:
    item: JsonObject = {
        "type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "gAAA", "status": None,
    }  # fmt: skip
    [written] = output_of(whole(response(ThinkingBlock("", "gAAA", ProviderRaw("openai", item)))))
    assert written == item


def test_reasoning_without_an_end_goes_out_at_the_end_of_a_reply() -> None:
    part = ThinkingBlock("Why?", None, ProviderRaw("openai", {"type": "reasoning_part"}))
    (item,) = output_of(whole(response(part, stop_reason=StopReason.MAX_TOKENS)))
    assert item["summary"] == [{"type": "summary_text", "text": "Why?"}]


def test_a_picture_of_another_provider_is_a_call_that_made_it() -> None:
    image = ImageBlock(data=PNG, provider_raw=ProviderRaw("gemini", {"inlineData": {}}))
    reply = response(image, TextBlock("A cat."))
    events: list[StreamEvent] = [ProviderBlock("inlineData", {"inlineData": {}}, 0), TextDelta("A cat.", 1)]
    for body in (whole(reply), last_response(streamed(reply, events))):
        [item] = [item for item in output_of(body) if item["type"] == "image_generation_call"]
        assert (item["result"], item["status"]) == ("iVBORw0KGgo=", "completed")


def test_a_block_that_only_its_provider_can_read_is_stored_by_the_gateway() -> None:
    block = OpaqueBlock("server_tool_use", ProviderRaw("anthropic", {"type": "server_tool_use", "id": "s"}))
    reply = response(block, TextBlock("Hi"))
    for body in (whole(reply), last_response(streamed(reply))):
        assert [item["type"] for item in output_of(body)] == ["message"]


# --- How a reply ends ---


@pytest.mark.parametrize(("content", "warnings", "text"), [
    ((), (), "The model refused to answer."),
    ((), (CallWarning("refusal", "It may harm."),), "It may harm."),
    ((TextBlock("I"),), (), "The model refused to answer."),
    ((TextBlock("I can't.", ProviderRaw("chat", {"type": "refusal"})),), (), "I can't."),
])  # fmt: skip
def test_a_refusal_is_a_part_of_a_message(
    content: tuple[ContentBlock, ...], warnings: tuple[CallWarning, ...], text: str
) -> None:
    reply = response(*content, stop_reason=StopReason.REFUSAL, warnings=warnings)
    for body in (created(whole(reply)), grown(streamed(reply))):
        parts = [part for item in body.output if item.type == "message" for part in item.content]
        assert [part.refusal for part in parts if part.type == "refusal"] == [text]
    again, _ = read_stream([streamed(reply)])
    assert again.stop_reason is StopReason.REFUSAL


def test_a_reply_without_content_is_complete() -> None:
    assert grown(streamed(response(), [MessageStart("m", "claude", "anthropic")])).output == []
    assert grown(streamed(response(ThinkingBlock("")), [ThinkingDelta("")])).output == []


# --- Lists ---
