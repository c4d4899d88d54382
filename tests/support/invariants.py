"""The stream invariants of `bus.stream_events`, as one check that every test of a stream uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from bus.content import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from bus.stream_events import (
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
from bus.usage import StopReason

_TOOL_EVENTS = (ToolUseStart, ToolUseInputDelta, ToolUseEnd)


def check_stream(events: Iterable[StreamEvent]) -> MessageComplete:
    """Assert every invariant of one whole message's events, and return the last of them."""
    events = list(events)
    assert events, "a message has events"
    first, *middle, last = events
    assert isinstance(first, MessageStart), f"the first event is {first!r}"
    assert isinstance(last, MessageComplete), f"the last event is {last!r}"
    assert not [event for event in middle if isinstance(event, MessageStart | MessageComplete)]
    assert {event.message_id for event in events} == {first.message_id}, "one message has one id"

    indexes = [event.content_block_index for event in middle]
    assert indexes == sorted(indexes), f"indexes decrease: {indexes}"
    for index in indexes:
        assert 0 <= index < len(last.final_content), f"index {index} is no block of the final content"
    blocks = {
        index: list(block) for index, block in itertools.groupby(middle, lambda event: event.content_block_index)
    }
    for index, content in enumerate(last.final_content):
        is_last = index == len(last.final_content) - 1
        _check_block(blocks.get(index, []), content, cut=is_last and last.stop_reason is StopReason.MAX_TOKENS)
    ids = [block.id for block in last.final_content if isinstance(block, ToolUseBlock)]
    assert len(ids) == len(set(ids)), "each call has an id of its own"
    _check_usage(last)
    return last


def _check_block(events: Sequence[StreamEvent], content: ContentBlock, *, cut: bool) -> None:
    match content:
        case TextBlock():
            assert all(isinstance(event, TextDelta) for event in events), events
            texts = [event.text for event in events if isinstance(event, TextDelta)]
            assert all(texts), "a delta has text"
            assert texts, "text has deltas"
            assert "".join(texts) == content.text
        case ThinkingBlock():
            assert all(isinstance(event, ThinkingDelta) for event in events), events
            deltas = [event for event in events if isinstance(event, ThinkingDelta)]
            assert all(delta.text or delta.signature is not None for delta in deltas)
            assert all(delta.signature is None for delta in deltas[:-1]), "only the last delta is signed"
            assert "".join(delta.text for delta in deltas) == content.text
            assert (deltas[-1].signature if deltas else None) == content.signature
        case ToolUseBlock():
            _check_tool(events, content, cut=cut)
        case OpaqueBlock() | RedactedThinkingBlock():
            assert len(events) == 1, events
            event = events[0]
            assert isinstance(event, ProviderBlock)
            assert content.provider_raw is not None
            assert event.raw == content.provider_raw.data
        case _:
            raise AssertionError(f"no model makes {content!r}")


def _check_tool(events: Sequence[StreamEvent], content: ToolUseBlock, *, cut: bool) -> None:
    start, *middle, end = events
    assert isinstance(start, ToolUseStart)
    assert isinstance(end, ToolUseEnd)
    fragments = [event.partial_json for event in middle if isinstance(event, ToolUseInputDelta)]
    assert len(fragments) == len(middle), f"between start and end: {middle}"
    assert all(fragments), "a fragment is never empty"
    assert {event.tool_use_id for event in events if isinstance(event, _TOOL_EVENTS)} == {content.id}
    assert start.tool_name == content.name
    assert isinstance(end.final_input, dict)
    assert end.final_input == content.input
    msgspec.json.encode(end.final_input)  # it can be sent back
    if not cut:  # what ends at the token limit may be found to be cut only after its own end
        assert end.incomplete == content.incomplete
    if content.raw_arguments is not None:
        assert content.raw_arguments == "".join(fragments)
        assert content.incomplete
        assert content.input == {}


def _check_usage(last: MessageComplete) -> None:
    usage = last.usage
    assert min(usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) >= 0
    assert 0 <= usage.cache_creation_1h_input_tokens <= usage.cache_creation_input_tokens
    if usage.reasoning_tokens is not None:
        assert 0 <= usage.reasoning_tokens <= usage.output_tokens
