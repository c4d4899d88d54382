"""Whole replies: what a stream says, said at once. Written by hand from wire facts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.providers.anthropic.response import token_usage
from bus.errors import OverloadedError
from bus.values.content import (
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, TokenUsage, UsageSource

from ...support.invariants import check_stream
from ...support.readings import without_raw
from .wire_events import (
    START_USAGE,
    delta,
    ending,
    message_start,
    read,
    read_whole,
    read_whole_bytes,
    start,
    stop,
    text,
    tool,
)


def test_a_whole_reply_equals_its_stream() -> None:
    """The same content, stop reason and usage, by the same events but for their cutting."""
    streamed = read(
        message_start(),
        start(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Hm"),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        start(1, "redacted_thinking", data="ZGF0YQ"),
        stop(1),
        *text(2, "a"),
        start(3, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        delta(3, "input_json_delta", partial_json='{"q": "x"}'),
        stop(3),
        *tool(4, "f", "toolu_1", '{"a": [1, 2]}'),
        *ending("tool_use", usage=START_USAGE),
    )
    whole = read_whole(
        [
            {"thinking": "Hm", "signature": "c2ln", "type": "thinking"},
            {"type": "redacted_thinking", "data": "ZGF0YQ"},
            {"type": "text", "text": "a"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1, 2]}},
        ],
        reason="tool_use",
    )
    assert without_raw([whole.complete]) == without_raw([streamed.complete])


def test_each_kind_of_block_has_its_canonical_form() -> None:
    """What is in the catalogue becomes typed, the rest opaque and word for word."""
    result: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"x": None}]}
    cited: JsonObject = {"type": "web_search_result_location", "url": "https://x.test"}
    content = read_whole(
        [
            {"type": "thinking", "thinking": "", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ"},
            {"type": "text", "text": "a", "citations": [cited]},
            {"type": "text", "text": "b", "citations": None},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "caller": {"type": "direct"}},
            result,
        ]
    ).content
    raw: JsonObject = {"type": "redacted_thinking", "data": "ZGF0YQ"}
    call = content[4]
    assert isinstance(call, ToolUseBlock)
    assert content == (
        ThinkingBlock("", "c2ln", ProviderRaw("anthropic", {}, "claude-test")),
        RedactedThinkingBlock("ZGF0YQ", ProviderRaw("anthropic", raw, "claude-test")),
        TextBlock("a", ProviderRaw("anthropic", {"citations": [cited]}, "claude-test")),
        TextBlock("b"),
        ToolUseBlock(
            call.id,
            "f",
            {},
            provider_raw=ProviderRaw("anthropic", {"id": "toolu_1", "caller": {"type": "direct"}}, "claude-test"),
        ),
        OpaqueBlock("web_search_tool_result", ProviderRaw("anthropic", result, "claude-test")),
    )
    assert not call.incomplete


@pytest.mark.parametrize(
    ("given_input", "expected", "raw", "incomplete"),
    [
        ({}, {}, None, False),
        (None, {}, None, False),
        ('{"a": 1}', {"a": 1}, None, False),
        ('{"a": ', {}, '{"a": ', True),
        ([1], {}, "[1]", True),
    ],
)
def test_a_calls_input_that_is_no_object(
    given_input: Json, expected: JsonObject, raw: str | None, incomplete: bool
) -> None:
    """Text is parsed; what can't be an object makes the call incomplete, never empty."""
    (block,) = read_whole([{"type": "tool_use", "id": "t", "name": "f", "input": given_input}]).content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.raw_arguments, block.incomplete) == (expected, raw, incomplete)


def test_an_odd_value_in_a_field_that_nobody_needs_costs_nothing() -> None:
    """Wrong types outside of what was said are not worth a reply."""
    reading = read_whole(
        [{"type": "text", "text": "a", "citations": 7}, 5, {"no": "type"}],
        usage={"input_tokens": 3.0, "output_tokens": "many", "cache_creation": [], "service_tier": {}},
        reason=None,
        id=7,
        model=None,
        role=[],
        container=0,
        stop_details="x",
    )
    assert reading.content == (TextBlock("a", ProviderRaw("anthropic", {"citations": 7}, "claude-test")),)
    assert reading.complete.stop_reason is StopReason.PROVIDER_SPECIFIC
    usage = reading.complete.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (3, 0, UsageSource.PARTIAL)
    assert reading.assembler.model == "claude-test"


def test_empty_content_is_a_reply() -> None:
    """A refused or a prewarming call says nothing, and that is its whole answer."""
    assert read_whole([], reason="max_tokens").content == ()
    assert read_whole(None, reason="refusal").content == ()


@pytest.mark.parametrize("body", [b"{}", b'{"content": null}', b'{"id": "x", "object": "chat.completion"}'])
def test_a_body_of_another_protocol_is_no_reply(body: bytes) -> None:
    """The assembler stays incomplete, which the adapter reports as a StreamError."""
    reading = read_whole_bytes(body)
    assert reading.events == []
    assert not reading.assembler.complete


def test_an_error_that_comes_with_http_200_is_an_error() -> None:
    """Some proxies answer 200 to everything."""
    reading = read_whole_bytes(b'{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}')
    assert type(reading.error) is OverloadedError


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, TokenUsage(3, 4)),
        ({"input_tokens": 0, "output_tokens": 0}, TokenUsage(0, 0)),
        (
            {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 6,
            },
            TokenUsage(3, 4, 5, 6),
        ),
        (
            {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_creation_input_tokens": 30,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
            },
            TokenUsage(3, 4, 0, 30, 20),
        ),
        (  # the split alone
            {"input_tokens": 3, "output_tokens": 4, "cache_creation": {"ephemeral_1h_input_tokens": 20}},
            TokenUsage(3, 4, 0, 20, 20),
        ),
        (  # the total grew after the split was known, and all of it was for an hour
            {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_creation_input_tokens": 50,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 20},
            },
            TokenUsage(3, 4, 0, 50, 50),
        ),
        (  # the total shrank
            {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_creation_input_tokens": 5,
                "cache_creation": {"ephemeral_5m_input_tokens": 7, "ephemeral_1h_input_tokens": 20},
            },
            TokenUsage(3, 4, 0, 5, 5, source=UsageSource.INCONSISTENT),
        ),
        (
            {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 2}},
            TokenUsage(3, 4, reasoning_tokens=2),
        ),
        (
            {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 9}},
            TokenUsage(3, 4, reasoning_tokens=4, source=UsageSource.INCONSISTENT),
        ),
        ({"output_tokens": 4}, TokenUsage(0, 4, source=UsageSource.PARTIAL)),
        ({"input_tokens": 3.7, "output_tokens": -4}, TokenUsage(3, 0, source=UsageSource.INCONSISTENT)),
        ({"input_tokens": True, "output_tokens": "4"}, None),
        ({"service_tier": "standard"}, None),
        ({}, None),
    ],
)
def test_usage_goes_into_disjoint_buckets(usage: JsonObject, expected: TokenUsage | None) -> None:
    """Input excludes the cache already; null or nonsense is unknown, never zero."""
    found = token_usage(usage)
    assert (found and msgspec.structs.replace(found, raw=None)) == expected


def test_the_advisors_tokens_stay_out_of_the_models_own() -> None:
    """`iterations` of another model are in the raw usage, for whoever prices them."""
    usage: JsonObject = {
        "input_tokens": 2390,
        "output_tokens": 40,
        "iterations": [{"type": "advisor_message", "model": "other", "input_tokens": 2518, "output_tokens": 22}],
    }
    found = read_whole([], usage=usage).complete.usage
    assert (found.input_tokens, found.output_tokens) == (2390, 40)
    assert found.raw is not None
    assert msgspec.json.decode(found.raw) == usage


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("type", "text", "thinking", "signature", "data", "id", "name", "input", "citations", "caller")
_KINDS = st.sampled_from(["text", "thinking", "tool_use", "redacted_thinking", "server_tool_use", "new"])
_BLOCK = st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=5).flatmap(
    lambda block: _KINDS.map(lambda kind: {**block, "type": kind})
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_BLOCK | _JSON, max_size=4), _JSON, _JSON)
def test_whatever_stands_in_a_reply_it_is_read_or_refused(content: list[Json], usage: Json, reason: Json) -> None:
    """Any JSON in any field ends in a valid message."""
    reading = read_whole(content, usage=usage, reason=reason)
    check_stream(reading.events)
