"""Whole replies, token counts and stop reasons. The vectors are hand-written from wire facts."""

from __future__ import annotations

import msgspec
import pytest

from adapters.providers.openai_compatible.chat.usage import read_usage
from bus.errors import AdapterError, ServerError, StreamError
from bus.values.content import TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, TokenUsage, UsageSource

from .wire_chunks import USAGE, chunk, read, read_body, reply, tool


def test_a_whole_reply_is_read_like_a_stream_of_one_delta() -> None:
    """Reasoning, text and calls come in this order, whatever that of the keys, and equal the streamed form."""
    call = tool(arguments='{"at":1}')
    whole = read_body(reply("tool_calls", tool_calls=[call], content="Hi", reasoning_content="Hmm"))
    assert [type(block) for block in whole.content] == [ThinkingBlock, TextBlock, ToolUseBlock]
    streamed = read(
        chunk("tool_calls", tool_calls=[call], content="Hi", reasoning_content="Hmm") | {"usage": USAGE}, b"[DONE]"
    )
    assert streamed.content == whole.content
    assert streamed.events == whole.events


@pytest.mark.parametrize(
    "calls",
    [
        [tool(None, "", arguments="{}"), tool(None, "", arguments="{}")],
        [tool(0, "", arguments=""), tool(0, "", arguments=None)],
        [tool(0, "same", arguments="{}"), tool(0, "same", arguments="{}")],
        [tool(None, None, arguments={}), tool(None, None, arguments={}), None],
    ],
)
def test_every_element_of_a_whole_reply_is_a_call(calls: list[Json]) -> None:
    """Nothing but its place in the list tells one call from another here."""
    assert [name for _, name, _ in read_body(reply("tool_calls", tool_calls=calls)).calls] == ["look", "look"]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_reply_may_be_empty(content: Json) -> None:
    """No content is an answer, too."""
    outcome = read_body(reply(content=content, tool_calls=[], refusal=None))
    assert outcome.content == ()
    assert outcome.complete is not None
    assert outcome.complete.stop_reason is StopReason.END_TURN


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"text": "of another protocol"}]},
        {"pathname": "/chat/completions"},
    ],
)
def test_a_body_that_is_no_chat_completion_is_a_failure(value: JsonObject) -> None:
    """Status 200 is not enough."""
    with pytest.raises(StreamError):
        read_body(value)


@pytest.mark.parametrize("error", ["it broke", {"message": "it broke", "code": None, "type": None}])
def test_an_error_at_200_is_raised(error: Json) -> None:
    """Beside empty choices, or in their place."""
    for value in ({"error": error}, {"error": error, "choices": []}, {**reply(), "error": error}):
        with pytest.raises(AdapterError, match="it broke"):
            read_body(value)
    with pytest.raises(ServerError):
        read_body({"choices": [{"error": {"code": 502, "message": "upstream"}}]})


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", StopReason.END_TURN),
        ("eos_token", StopReason.END_TURN),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
        ("length", StopReason.MAX_TOKENS),
        ("model_length", StopReason.MAX_TOKENS),
        ("model_context_window_exceeded", StopReason.MAX_TOKENS),
        ("content_filter", StopReason.CONTENT_FILTER),
        ("sensitive", StopReason.CONTENT_FILTER),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", StopReason.PROVIDER_SPECIFIC),
        ("", StopReason.PROVIDER_SPECIFIC),
        (None, StopReason.PROVIDER_SPECIFIC),
    ],
)
def test_finish_reasons(finish: str | None, reason: StopReason) -> None:
    """Known ones have their meaning, unknown ones none, and all keep their own word."""
    complete = read_body(reply(finish, content="Hi")).complete
    assert complete is not None
    assert (complete.stop_reason, complete.raw_stop_reason) == (reason, finish)


def buckets(usage: Json) -> tuple[int, int, int, int, int | None]:
    read = read_usage(msgspec.Raw(msgspec.json.encode(usage)))
    assert read is not None
    assert read.raw is not None
    assert msgspec.json.decode(read.raw) == usage, "the raw figures are kept"
    cached, written = read.cached_input_tokens, read.cache_creation_input_tokens
    return read.input_tokens, cached, written, read.output_tokens, read.reasoning_tokens


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, (10, 60, 30, 20, 5)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}, (9, 0, 0, 3, None)),
        (
            {
                "prompt_tokens": 307,
                "completion_tokens": 26,
                "total_tokens": 560,
                "completion_tokens_details": {"reasoning_tokens": 227},
            },
            (307, 0, 0, 253, 227),
        ),
        ({"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109}, (35, 0, 0, 74, 62)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 8}, (1, 8, 0, 3, None)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4}, (5, 4, 0, 3, None)),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 20}},
            (0, 20, 0, 3, None),
        ),
        (
            {
                "prompt_tokens": 4.0,
                "completion_tokens": 3.0,
                "total_tokens": None,
                "prompt_tokens_details": None,
                "completion_tokens_details": [],
            },
            (4, 0, 0, 3, None),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0, 0, 0, None)),
        ({"prompt_tokens": 9, "completion_tokens": -3}, (9, 0, 0, 0, None)),
        ({"completion_tokens": 3, "total_tokens": 12}, (9, 0, 0, 3, None)),
        (
            {"prompt_tokens": 9, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 9}},
            (9, 0, 0, 3, 3),
        ),
    ],
    ids=[
        "openai",
        "plain",
        "xai",
        "gemini",
        "deepseek",
        "moonshot",
        "nonsense",
        "floats",
        "zero",
        "negative",
        "no-prompt",
        "too-much-reasoning",
    ],
)
def test_usage_in_disjoint_buckets(usage: JsonObject, expected: tuple[int, int, int, int, int | None]) -> None:
    """Cache reads and writes are taken out of the prompt, hidden reasoning is added to the output."""
    assert buckets(usage) == expected


@pytest.mark.parametrize("usage", [None, [], "much", {}, {"total_tokens": 5}, {"prompt_tokens": "many"}])
def test_usage_that_says_nothing_is_none(usage: Json) -> None:
    """Then it is estimated, not zero."""
    assert read_usage(msgspec.Raw(msgspec.json.encode(usage))) is None


def test_half_a_usage_is_partial() -> None:
    """An output that nobody counted is no zero."""
    usage = read_usage(msgspec.Raw(b'{"prompt_tokens": 9}'))
    assert usage is not None
    assert usage.source is UsageSource.PARTIAL


@pytest.mark.parametrize(
    ("usage", "nano_usd"),
    [
        ({"cost": 0.00019325}, 193_250),
        ({"cost": 0}, 0),
        ({"cost": 1e-9}, 1),
        ({"cost": 0.0000001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}, 2_000_100),
        ({"cost": 0.5, "is_byok": True, "cost_details": None}, 500_000_000),
        ({"cost": 0.5, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.5}}, 500_000_000),
        ({"cost": None}, None),
        ({"cost": "0.1"}, None),
        ({"cost": True}, None),
        ({"cost": -1}, None),
        ({"cost": 1e300}, None),
        ({}, None),
    ],
)
def test_a_reported_cost_is_kept_to_the_digit(usage: JsonObject, nano_usd: int | None) -> None:
    """In nano-USD; with a key of one's own at the provider behind, its bill is added. Nonsense is no cost."""
    read = read_usage(msgspec.Raw(msgspec.json.encode({**USAGE, **usage})))
    assert read is not None
    assert read.reported_cost_nano_usd == nano_usd


def test_costs_add_up_only_if_all_are_known() -> None:
    """A sum that left one out would be too small."""
    known, unknown = TokenUsage(1, reported_cost_nano_usd=5), TokenUsage(1)
    assert (known + known).reported_cost_nano_usd == 10
    assert (known + unknown).reported_cost_nano_usd is None
