"""Gemini's models, interrupted calls, and streamed text and token counts."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini import wire
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.gemini.response import GeminiNormaliser, read_reply
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.adapters.replies.assembler import Assembler
from callboard.bus.clock import SystemClock
from callboard.bus.errors import StreamError
from callboard.bus.values.base import Json
from callboard.bus.values.usage import TokenUsage

from ...support.fake_http import FakeReply, FakeTransport
from ...support.virtual_time import FakeClock
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.gemini import USAGE, chunk
from ...support.wires.reading import read_whole

JSON = {"content-type": "application/json; charset=UTF-8"}


def adapter(
    *replies: FakeReply, base_url: str | None = None, retries: int = 0
) -> tuple[GeminiAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    config = AdapterConfig(api_key="secret-key", base_url=base_url, max_retries=retries)
    return GeminiAdapter(config, transport=transport, clock=FakeClock()), transport


def whole(*parts: Json, finish: str = "STOP") -> FakeReply:
    return FakeReply(msgspec.json.encode(chunk(*parts, finish=finish, usage=USAGE)), headers=JSON)


# -- A streamed reply says the same whether its chunks are read as text alone or as anything at all.


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
    for each in chunks:
        normaliser.feed(b"data: " + msgspec.json.encode(each) + b"\r\n\r\n")
    normaliser.close()
    assert normaliser.error is None
    read_reply(msgspec.json.encode(chunks), whole)
    assert said(streamed) == said(whole)


def said(reply: Assembler) -> object:
    content = [msgspec.to_builtins(block) for block in reply.final_content]
    for block in content:
        block.pop("id", None)
    return content, reply.usage, reply.details, reply.warnings, reply.stop_reason, reply.response_id, reply.model


# -- A streamed reply's counts, of which each chunk has some.


COUNTS = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount")

COUNTED_CHUNK = st.dictionaries(st.sampled_from(COUNTS), st.none() | st.integers(0, 120), max_size=len(COUNTS))


@given(st.lists(COUNTED_CHUNK, min_size=1, max_size=12))
def test_the_last_of_each_count_is_the_total(chunks: list[dict[str, int | None]]) -> None:
    """Whether a chunk says all counts or some, and says them as numbers or as null."""
    counts = UsageCounts()
    last: dict[str, int] = {}
    for each in chunks:
        counts.add(msgspec.Raw(msgspec.json.encode(each)))
        last.update({name: count for name, count in each.items() if count is not None})
    total = counts.total()
    if not last:
        assert total is None
        return
    assert total is not None
    cached = last.get("cachedContentTokenCount", 0)
    assert total.cached_input_tokens == cached
    assert total.input_tokens == max(0, last.get("promptTokenCount", 0) - cached)
    thoughts = last.get("thoughtsTokenCount")
    assert total.output_tokens == last.get("candidatesTokenCount", 0) + (thoughts or 0)
    assert total.reasoning_tokens == thoughts


def test_the_usage_that_is_kept_is_the_last_with_the_prompts_count() -> None:
    """As it came; a chunk without the prompt's count adds to the figures, and does not stand for them."""
    counts = UsageCounts()
    for raw in (b'{"promptTokenCount":7}', b'{"promptTokenCount":8}', b'{"candidatesTokenCount":3}', b"null"):
        counts.add(msgspec.Raw(raw))
    total = counts.total()
    assert total is not None
    assert total.raw == msgspec.Raw(b'{"promptTokenCount":8}')
    assert (total.input_tokens, total.output_tokens) == (8, 3)


def test_no_usage_is_reported_where_none_came() -> None:
    """Nothing, or null."""
    counts = UsageCounts()
    assert counts.total() is None
    counts.add(wire.ABSENT)
    assert counts.total() is None


def test_a_number_in_place_of_the_counts_is_no_reply() -> None:
    """It has nothing but digits, which the forms of two chunks are compared without."""
    error = read_whole(WIRES[3], {**g.chunk(g.text("Hi"), finish="STOP"), "usageMetadata": 7}).error
    assert isinstance(error, StreamError)
