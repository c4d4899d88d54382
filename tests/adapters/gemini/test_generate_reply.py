"""Whole replies: the same as a stream of one chunk, and what only a whole body can be."""

from __future__ import annotations

import msgspec
import pytest

from bus.errors import OverloadedError
from bus.values.content import OpaqueBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json
from bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.readings import without_raw
from .wire_chunks import (
    END,
    USAGE,
    call,
    chunk,
    read,
    read_whole,
    read_whole_bytes,
    text,
    thought,
)


def test_a_whole_reply_is_a_stream_of_one_chunk() -> None:
    """The very same events."""
    parts = [thought("Hm"), text("A"), text("B", "c2ln"), call("a", "c2ln", args={"x": 1}), call("b", id="c2")]
    whole = read_whole(*parts)
    assert without_raw(whole.events) == without_raw(read(chunk(*parts, finish="STOP", usage=USAGE)).events)
    assert [type(block) for block in whole.content] == [ThinkingBlock, TextBlock, ToolUseBlock, ToolUseBlock]
    assert whole.complete.stop_reason is StopReason.TOOL_USE


def test_text_that_was_cut_in_parts_is_one_text() -> None:
    """So that a streamed reply has the same content as a whole one."""
    assert read_whole(text("A"), text(""), text("B")).content == (TextBlock("AB"),)


@pytest.mark.parametrize("content", [{}, {"role": "model"}, {"parts": []}, {"parts": None}, None])
@pytest.mark.parametrize(
    ("finish", "reason"), [("STOP", StopReason.END_TURN), ("SAFETY", StopReason.CONTENT_FILTER)]
)
def test_an_empty_reply_is_a_reply(content: Json, finish: str, reason: StopReason) -> None:
    """Whatever is missing of its content."""
    complete = read_whole(content=content, finish=finish).complete
    assert (complete.final_content, complete.stop_reason) == ((), reason)


def test_a_reply_without_a_finish_reason_is_not_taken_for_a_regular_end() -> None:
    """It is whole, being JSON, but nobody said why it ended."""
    reading = read_whole(text("A"), finish=None)
    assert reading.complete.stop_reason is StopReason.PROVIDER_SPECIFIC
    assert reading.warnings == ["no_stop_reason"]


@pytest.mark.parametrize("body", [b"{}", b'{"candidates":[]}', b'{"usageMetadata":{"promptTokenCount":1}}', b"[]"])
def test_a_body_without_a_candidate_is_no_reply(body: bytes) -> None:
    """The adapter raises; see `HttpAdapter.read_whole`."""
    assert not read_whole_bytes(body).assembler.complete


def test_a_list_of_chunks_is_a_stream_that_was_not_asked_to_be_events() -> None:
    """Some proxies lose `alt=sse`."""
    chunks = [chunk(text("A")), chunk(call("a", args={})), END]
    reading = read_whole_bytes(b" " + msgspec.json.encode(chunks))
    assert without_raw(reading.events) == without_raw(read(*chunks).events)
    assert not read_whole_bytes(msgspec.json.encode(chunks[:2])).assembler.complete
    failed = read_whole_bytes(msgspec.json.encode([{"error": {"code": 503, "status": "UNAVAILABLE"}}]))
    assert isinstance(failed.error, OverloadedError)


def test_grounding_follows_the_content() -> None:
    """As the last block, for hosts that show sources."""
    _, grounding = read_whole(text("A"), groundingMetadata={"groundingChunks": [{"web": {"uri": "u"}}]}).content
    assert isinstance(grounding, OpaqueBlock)
    assert grounding.kind == "groundingMetadata"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"promptTokenCount": 14, "totalTokenCount": 14}, TokenUsage(14, 0)),
        ({"promptTokenCount": 9.0, "candidatesTokenCount": 2.0}, TokenUsage(9, 2)),
        (
            {"promptTokenCount": 5, "cachedContentTokenCount": 9},
            TokenUsage(0, 0, 9, source=UsageSource.INCONSISTENT),
        ),
        ({"promptTokenCount": 5, "thoughtsTokenCount": 0}, TokenUsage(5, 0, reasoning_tokens=0)),
        ({"promptTokenCount": 5, "candidatesTokenCount": "x", "thoughtsTokenCount": True}, TokenUsage(5, 0)),
        ({"promptTokenCount": 5, "candidatesTokenCount": -1}, TokenUsage(5, 0, source=UsageSource.INCONSISTENT)),
    ],
)
def test_usage(reported: Json, expected: TokenUsage) -> None:
    """Counts that are left out are zero; nonsense is left out."""
    usage = read_whole(text("A"), usage=reported).complete.usage
    assert msgspec.structs.replace(usage, raw=None) == expected
