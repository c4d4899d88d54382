"""Replies to Gemini's clients: texts, usage, failures and lists of models."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import encode_json
from callboard.bus.streams.events import TextDelta
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
from callboard.bus.values.messages import Role
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource
from callboard.engine.gateway.gemini_contents import real_signature, token_of

from ..support.canonical_requests import MESSAGES, PNG
from ..support.wires.gemini import USAGE, chunk, text
from ..support.wires.reading import read_pieces
from .gemini_clients import (
    CALLED,
    GEMINI,
    HELLO,
    INFO,
    PNG_TEXT,
    SIGNED,
    asks,
    model,
    read,
    read_written,
    reply_body,
    response,
    streamed,
)

REPLIES = MESSAGES.filter(lambda message: message.role is Role.ASSISTANT).map(lambda message: message.content)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(REPLIES, st.sampled_from(list(StopReason)), st.booleans())
def test_any_reply_is_the_same_whole_and_streamed(
    content: tuple[ContentBlock, ...], stop: StopReason, thoughts: bool
) -> None:
    asked = asks(include_thoughts=thoughts)
    reply = response(*content, stop=stop)
    body = msgspec.json.decode(encode_json(reply_body(asked, reply)))
    lines = streamed(asked, reply).split(b"\r\n\r\n")
    chunks = [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines if line]
    assert told(chunks) == told([body])
    last, whole = chunks[-1]["candidates"][0], body["candidates"][0]
    assert last.keys() == whole.keys()
    assert (last["finishReason"], chunks[-1]["usageMetadata"]) == (whole["finishReason"], body["usageMetadata"])


def told(chunks: list[Any]) -> object:
    """The thoughts, the text, and the other parts of chunks in any order, as a client joins them."""
    parts = [part for one in chunks for part in one["candidates"][0]["content"].get("parts", ())]
    texts = [
        "".join(part["text"] for part in parts if "text" in part and bool(part.get("thought")) is thought)
        for thought in (True, False)
    ]
    return texts, sorted(str({**part, "thoughtSignature": None}) for part in parts if "text" not in part)


def parts_of(reply: CanonicalResponse, **options: Json) -> Any:
    candidate = reply_body(asks(**options), reply)["candidates"][0]
    parts: list[Json] = candidate["content"].get("parts", [])
    return parts


def test_a_foreign_signature_becomes_a_token_that_is_dropped_later() -> None:
    """The first call has the token, too, because clients drop thoughts and return signatures of calls."""
    parts = parts_of(response(SIGNED, CALLED, CALLED, stop=StopReason.TOOL_USE))
    assert [part.get("thoughtSignature") for part in parts] == [token_of("EqRkLong"), token_of("EqRkLong"), None]
    assert len(token_of("EqRkLong")) == 24
    assert real_signature(token_of("EqRkLong").replace("+", "-").replace("/", "_")) is None
    messages = read(HELLO, model(*parts)).request.messages
    assert messages[1].content[0] == ThinkingBlock("Hm.")
    assert [block.id for block in messages[1].tool_uses] == ["tu_1", "tu_1_2"]


def test_redacted_thinking_leaves_its_token_on_the_call() -> None:
    parts = parts_of(response(RedactedThinkingBlock("secret"), CALLED))
    assert [part["thoughtSignature"] for part in parts] == [token_of("secret")]


def test_thoughts_are_shown_to_clients_that_ask_for_them() -> None:
    reply = response(SIGNED, TextBlock("Yes."))
    assert parts_of(reply, include_thoughts=False) == [{"text": "Yes."}]
    stream = streamed(asks(include_thoughts=False), reply)
    assert b"Hm." not in stream
    assert b"Yes." in stream


@pytest.mark.parametrize(("block", "part"), [
    (ImageBlock(data=PNG), {"inlineData": {"mimeType": "image/png", "data": PNG_TEXT}}),
    (ImageBlock(url="https://x.test/a.png"), {"fileData": {"fileUri": "https://x.test/a.png"}}),
    (ImageBlock(url=f"data:image/png;base64,{PNG_TEXT}"), {"inlineData": {"mimeType": "image/png",
        "data": PNG_TEXT}}),
])  # fmt: skip
def test_images_of_a_reply_are_parts(block: ImageBlock, part: JsonObject) -> None:
    reply = response(TextBlock("Here."), block)
    assert parts_of(reply) == [{"text": "Here."}, part]
    found = msgspec.structs.replace(block, provider_raw=ProviderRaw("other", {"type": "image", "result": "…"}))
    assert msgspec.json.encode(part) in streamed(asks(), response(TextBlock("Here."), found))


def test_another_providers_own_blocks_have_no_place() -> None:
    block = OpaqueBlock("web_search_call", ProviderRaw("openai", {"type": "web_search_call", "id": "ws_1"}))
    assert parts_of(response(block, TextBlock("Yes."))) == [{"text": "Yes."}]
    assert b"ws_1" not in streamed(asks(), response(block, TextBlock("Yes.")))


WEB: JsonObject = {"url": "https://x.test", "title": "X"}


@pytest.mark.parametrize(("raw", "chunks", "segment"), [
    ({"annotations": [{"type": "url_citation", "start_index": 2, "end_index": 4, **WEB}]},
        [{"web": {"uri": "https://x.test", "title": "X"}}], {"startIndex": 4, "endIndex": 6, "text": "is"}),
    ({"annotations": [{"type": "url_citation", "url_citation": {**WEB, "start_index": 0, "end_index": 1}}]},
        [{"web": {"uri": "https://x.test", "title": "X"}}], {"endIndex": 3, "text": "☃"}),
    ({"citations": [{"type": "web_search_result_location", "cited_text": "…", **WEB}]},
        [{"web": {"uri": "https://x.test", "title": "X"}}], {"endIndex": 6, "text": "☃ is"}),
    ({"citations": [{"type": "char_location", "document_title": "D", "cited_text": "snow"}]},
        [{"retrievedContext": {"title": "D", "text": "snow"}}], {"endIndex": 6, "text": "☃ is"}),
])  # fmt: skip
def test_citations_are_grounding(raw: JsonObject, chunks: list[Json], segment: JsonObject) -> None:
    """Gemini counts the bytes of a segment."""
    reply = response(TextBlock("☃ is", ProviderRaw("other", raw)))
    candidate = reply_body(asks(), reply)["candidates"][0]
    assert candidate["groundingMetadata"] == {
        "groundingChunks": chunks,
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
    }


def test_a_call_that_must_not_run_is_not_sent() -> None:
    broken = ToolUseBlock("tu_1", "f", {}, raw_arguments='{"x": ', incomplete=True)
    for stop, reason in (
        (StopReason.TOOL_USE, "MALFORMED_FUNCTION_CALL"),
        (StopReason.MAX_TOKENS, "MAX_TOKENS"),
    ):
        reply = response(TextBlock("I will."), broken, stop=stop)
        candidate = reply_body(asks(), reply)["candidates"][0]
        assert candidate["finishReason"] == reason
        assert candidate["content"]["parts"] == [{"text": "I will."}]
        assert b"functionCall" not in streamed(asks(), reply)


def test_a_blocked_prompt_has_feedback_and_no_candidate() -> None:
    feedback: JsonObject = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USAGE}
    reply = read_pieces(GEMINI, [GEMINI.stream(feedback)]).reply
    assert "candidates" not in reply_body(asks(), reply)
    for found in read_written(asks(), reply)[1:]:
        assert (found.reply.stop_reason, found.reply.raw_stop_reason) == (
            StopReason.CONTENT_FILTER,
            "PROHIBITED_CONTENT",
        )


def usage_of(usage: TokenUsage) -> Any:
    return reply_body(asks(), response(usage=usage))["usageMetadata"]


def test_usage_has_geminis_names() -> None:
    usage = TokenUsage(
        input_tokens=10, output_tokens=20, cached_input_tokens=30, cache_creation_input_tokens=5,
        reasoning_tokens=8, details={"audio_input": 4, "image_cache_read": 6, "web_search": 1},
    )  # fmt: skip
    told = usage_of(usage)
    assert told == {
        **{"promptTokenCount": 45, "cachedContentTokenCount": 30, "candidatesTokenCount": 12},
        **{"thoughtsTokenCount": 8, "totalTokenCount": 65},
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 35}, {"modality": "AUDIO", "tokenCount": 4},
            {"modality": "IMAGE", "tokenCount": 6}],
        "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 24}, {"modality": "IMAGE", "tokenCount": 6}],
        "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 12}],
    }  # fmt: skip
    found = read_written(asks(), response(usage=usage))[0].usage
    assert (found.total_input_tokens, found.cached_input_tokens) == (45, 30)
    assert (found.output_tokens, found.reasoning_tokens) == (20, 8)
    assert found.details == {"audio_input": 4, "image_cache_read": 6}


def test_geminis_own_usage_is_passed_on() -> None:
    own: JsonObject = {**USAGE, "toolUsePromptTokenCount": 3, "trafficType": "ON_DEMAND", "totalTokenCount": 33}
    reply = read_pieces(GEMINI, [GEMINI.stream(chunk(text("x"), finish="STOP", usage=own))]).reply
    assert usage_of(reply.usage) == own
    adjusted = msgspec.structs.replace(reply.usage, output_tokens=99, source=UsageSource.ESTIMATED)
    assert usage_of(adjusted) != own


def test_usage_grows_with_the_stream() -> None:
    """The first chunk already has the estimate of the prompt."""
    chunks = [
        msgspec.json.decode(line.removeprefix(b"data: "))
        for line in streamed(asks(), response(TextBlock("Hi"), TextBlock("!"))).split(b"\r\n\r\n")
        if line
    ]
    assert [chunk["usageMetadata"]["totalTokenCount"] for chunk in chunks] == [7, 7, 15]
    assert {(chunk["responseId"], chunk["modelVersion"]) for chunk in chunks} == {(INFO.id, INFO.model)}
    assert chunks[-1]["candidates"][0]["content"]["parts"] == [{"text": ""}]


# -- Replies that are not objects


@pytest.mark.parametrize(("schema", "media_type", "said", "value"), [
    ({"type": "ARRAY"}, "application/json", '{"value": [{"a": "}"}, {}]}', '[{"a": "}"}, {}]'),
    ({"type": "ARRAY"}, "application/json", ' {\n "value" : [] }\n', "[]"),
    ({"type": "INTEGER"}, "application/json", '{"value":12}', "12"),
    ({"type": "STRING", "enum": ["a", "b"]}, "application/json", '{"value":"a"}', '"a"'),
    ({"type": "STRING", "enum": ["a", "b"]}, "text/x.enum", '{"value":"a"}', "a"),
    ({"type": "ARRAY"}, "application/json", "[1, 2]", "[1, 2]"),
    ({"type": "ARRAY"}, "application/json", "I can't.", "I can't."),
    ({"type": "ARRAY"}, "application/json", '{"value": [1', "[1"),
    ({"type": "STRING", "enum": ["a"]}, "text/x.enum", "a", "a"),
    ({"type": "OBJECT"}, "application/json", '{"value": 1}', '{"value": 1}'),
])  # fmt: skip
def test_a_value_is_taken_from_the_object_that_other_providers_need(
    schema: JsonObject, media_type: str, said: str, value: str
) -> None:
    """A reply without the object, or with an incomplete one, is passed on as far as possible."""
    form: JsonObject = {"responseMimeType": media_type, "responseSchema": schema}
    asked = read(HELLO, generationConfig=form)
    assert asked.losses == ()
    reply = response(TextBlock(said))
    whole = reply_body(asked, reply)["candidates"][0]["content"]["parts"]
    assert "".join(part["text"] for part in whole).strip() == value
    for size in (1, 2, 5, len(said)):
        pieces = [TextDelta(said[at : at + size], 0, "msg_1") for at in range(0, len(said), size)]
        found = read_pieces(GEMINI, [streamed(asked, reply, pieces)])
        assert found.reply.text.strip() == value


# -- Failures
