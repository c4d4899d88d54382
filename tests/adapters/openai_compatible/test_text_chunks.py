"""A streamed reply says the same whether its chunks are read as text alone or as anything at all."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.adapters.providers.openai_compatible.quirks import Quirks
from callboard.adapters.providers.openai_compatible.response import ChatNormaliser
from callboard.adapters.replies.assembler import Assembler
from callboard.bus.values.usage import TokenUsage

from ...support.virtual_time import FakeClock

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["a", "", None, "<think>b</think>", [{"type": "text", "text": "c"}]]),
        "role": st.just("assistant"),
        "refusal": st.sampled_from([None, "no"]),
        "reasoning": st.sampled_from([None, "d"]),
        "tool_calls": st.sampled_from([None, [CALL]]),
        "annotations": st.just([{"type": "url_citation"}]),
    },
)
CHOICE = st.fixed_dictionaries(
    {"delta": DELTA},
    optional={
        "index": st.sampled_from([0, 0, 1, None]),
        "logprobs": st.sampled_from([None, {"content": [{"token": "a"}]}]),
        "finish_reason": st.sampled_from([None, "stop"]),
        "content_filter_results": st.just({"hate": {"filtered": False}}),
        "matched_stop": st.just("x"),
    },
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, max_size=2)},
    optional={
        "id": st.sampled_from(["r1", "r2", ""]),
        "model": st.sampled_from(["m1", "m2", None]),
        "usage": st.sampled_from([None, USAGE]),
        "service_tier": st.sampled_from(["default", "flex", None]),
        "system_fingerprint": st.just("fp"),
        "citations": st.just(["https://example.com"]),
    },
)


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": {"content": said}}], **more}


def read(chunks: list[dict[str, Any]], quirks: Quirks) -> object:
    """Everything that a stream says."""
    reply = Assembler(
        message_id="m",
        provider="p",
        requested_model="asked",
        clock=FakeClock(),
        estimate_usage=lambda _: TokenUsage(0, 0),
    )
    normaliser = ChatNormaliser(reply, quirks)
    events = [
        event for chunk in chunks for event in normaliser.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    ]
    events += normaliser.feed(b"data: [DONE]\n\n") + normaliser.close()
    return [
        *events,
        *(reply.usage, reply.details, reply.warnings, reply.stop_reason, reply.response_id, reply.model),
        str(normaliser.error),
    ]


@given(st.lists(CHUNK, min_size=1, max_size=8), st.sampled_from(["off", "paired"]))
@example([text("a", service_tier="flex"), text("b", id="r2"), text("c", service_tier="flex")], "off")
@example([text("a"), {"choices": [{"index": 1, "delta": {"content": "z"}}]}, text("c")], "off")
@example([text("a"), text("b", service_tier="flex"), {"choices": [], "usage": USAGE}], "off")
@example([{"choices": [{"index": 0, "delta": {"content": "a"}}]}, text("b")], "off")
@example([text("a"), text("b", error={"message": "down"})], "off")
@example([text("a"), text("<think>b"), text("c</think>d")], "paired")
def test_a_stream_says_what_it_says_with_a_field_that_nobody_knows(
    chunks: list[dict[str, Any]], tags: Any
) -> None:
    """Such a field has every chunk read in full."""
    quirks = Quirks(think_tags=tags)
    assert read(chunks, quirks) == read([{**chunk, "unheard_of": 1} for chunk in chunks], quirks)
