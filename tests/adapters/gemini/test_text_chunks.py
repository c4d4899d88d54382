"""A streamed reply says the same whether its chunks are read as text alone or as anything at all."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.providers.gemini.response import GeminiNormaliser, read_reply
from callboard.adapters.replies.assembler import Assembler
from callboard.bus.clock import SystemClock
from callboard.bus.values.usage import TokenUsage

PART = st.sampled_from(
    [
        {"text": "a"},
        {"text": ""},
        {"text": "b", "thought": True},
        {"text": "c", "thoughtSignature": "c2ln"},
        {"executableCode": {"code": "1"}},
        {"functionCall": {"name": "f", "args": {"x": 1}}},
    ]
)
CANDIDATE = st.fixed_dictionaries(
    {"content": st.fixed_dictionaries({"parts": st.lists(PART, max_size=2)}, optional={"role": st.just("model")})},
    optional={
        "index": st.sampled_from([0, 1, None]),
        "safetyRatings": st.just([{"category": "C"}]),
        "finishReason": st.just("STOP"),
        "tokenCount": st.just(4),
    },
)
CHUNK = st.fixed_dictionaries(
    {"candidates": st.lists(CANDIDATE, max_size=2)},
    optional={
        "usageMetadata": st.sampled_from([None, {"promptTokenCount": 3}, {"candidatesTokenCount": 12}]),
        "modelVersion": st.just("m"),
        "responseId": st.just("r"),
        "modelStatus": st.just({"stage": "x"}),
    },
)
TEXT: dict[str, Any] = {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}


def assembler() -> Assembler:
    return Assembler(
        message_id="m",
        provider="p",
        requested_model="m",
        clock=SystemClock(),
        estimate_usage=lambda _: TokenUsage(0, 0),
    )


@given(st.lists(CHUNK, min_size=1, max_size=8))
@example([TEXT, TEXT, {"candidates": [{"content": {"parts": [{"text": "z"}]}, "index": 1}]}, TEXT])
@example([TEXT, {"candidates": [{"content": {"parts": [{"text": "z"}]}, "tokenCount": 4}]}, TEXT])
def test_a_stream_says_what_a_list_of_its_chunks_says(chunks: list[dict[str, Any]]) -> None:
    """Content, usage, details and warnings."""
    chunks = [*chunks, {"candidates": [{"finishReason": "STOP"}]}]
    streamed, whole = assembler(), assembler()
    normaliser = GeminiNormaliser(streamed)
    for chunk in chunks:
        normaliser.feed(b"data: " + msgspec.json.encode(chunk) + b"\r\n\r\n")
    normaliser.close()
    assert normaliser.error is None
    read_reply(msgspec.json.encode(chunks), whole)
    assert said(streamed) == said(whole)


def said(reply: Assembler) -> object:
    content = [msgspec.to_builtins(block) for block in reply.final_content]
    for block in content:
        block.pop("id", None)
    return content, reply.usage, reply.details, reply.warnings, reply.stop_reason, reply.response_id, reply.model
