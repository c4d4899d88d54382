"""The stream invariants of `bus.streams.events`, each as a check of the events of one whole message.

Every check raises AssertionError with the events that it found, also under ``python -O``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

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
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.runnable_calls import ended_well
from callboard.bus.values.usage import TokenUsage


def require(condition: object, message: str) -> None:
    """Require a condition.

    Raises:
        AssertionError: The condition doesn't hold. Its text is `message`.
    """
    if not condition:
        raise AssertionError(message)


def check_stream(events: Sequence[StreamEvent]) -> MessageComplete:
    """Check every invariant of a stream.

    Returns:
        The last event.

    Raises:
        AssertionError: An invariant is broken.
    """
    last = check_order(events)
    check_indexes(events)
    check_blocks(events)
    check_usage(last.usage)
    return last


def check_order(events: Sequence[StreamEvent]) -> MessageComplete:
    """`message.start` is first, `message.complete` last, each there once, and all are of one message."""
    require(events, "a message has events, and there are none")
    first, *middle, last = events
    if not isinstance(first, MessageStart):
        raise AssertionError(f"the first event is no message.start: {first!r}")
    if not isinstance(last, MessageComplete):
        raise AssertionError(f"the last event is no message.complete: {last!r}")
    again = [event for event in middle if isinstance(event, MessageStart | MessageComplete)]
    require(not again, f"a message starts and ends once; between its start and its end is {again}")
    ids = {event.message_id for event in events}
    require(len(ids) == 1, f"one message has one id, and here are {sorted(ids)}")
    return last


def check_indexes(events: Sequence[StreamEvent]) -> None:
    """Indexes never decrease, and each belongs to a block of the final content."""
    last = events[-1]
    if not isinstance(last, MessageComplete):
        raise AssertionError("the last event is no message.complete")
    indexes = [index for event in events if (index := _index(event)) is not None]
    require(indexes == sorted(indexes), f"content_block_index decreases: {indexes}")
    size = len(last.final_content)
    wrong = [index for index in indexes if not 0 <= index < size]
    require(not wrong, f"content_block_index {wrong} is of no block: the final content has {size}")


def check_blocks(events: Sequence[StreamEvent]) -> None:
    """The events of each block add up to it."""
    last = events[-1]
    if not isinstance(last, MessageComplete):
        raise AssertionError("the last event is no message.complete")
    inner = [event for event in events if _index(event) is not None]
    blocks = {index: list(block) for index, block in itertools.groupby(inner, _index)}
    for index, content in enumerate(last.final_content):
        try:
            _check_block(blocks.get(index, []), content, well=ended_well(last.stop_reason))
        except AssertionError as error:
            raise AssertionError(f"block {index} ({type(content).__name__}): {error}") from None
    ids = [block.id for block in last.final_content if isinstance(block, ToolUseBlock)]
    require(len(ids) == len(set(ids)), f"each tool call has an id of its own, and here are {ids}")


def check_usage(usage: TokenUsage) -> None:
    """Require that no count is negative, and that no part is larger than the whole that it belongs to."""
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_creation_1h_input_tokens,
    )
    require(min(counts) >= 0, f"a count is negative: {usage}")
    within = usage.cache_creation_1h_input_tokens <= usage.cache_creation_input_tokens
    require(within, f"the writes for an hour are part of all cache writes: {usage}")
    if usage.reasoning_tokens is not None:
        within = 0 <= usage.reasoning_tokens <= usage.output_tokens
        require(within, f"reasoning tokens are part of the output: {usage}")


def _index(event: StreamEvent) -> int | None:
    return None if isinstance(event, MessageStart | MessageComplete) else event.content_block_index


def _check_block(events: Sequence[StreamEvent], content: ContentBlock, *, well: bool) -> None:
    match content:
        case TextBlock():
            texts = [event.text for event in events if isinstance(event, TextDelta)]
            require(len(texts) == len(events), f"text has text.delta only, and here is {events}")
            require(texts and all(texts), f"text has deltas, and each of them has text: {texts}")
            _same_text("its deltas", "".join(texts), content.text)
        case ThinkingBlock():
            deltas = [event for event in events if isinstance(event, ThinkingDelta)]
            require(len(deltas) == len(events), f"thinking has thinking.delta only, and here is {events}")
            said = all(delta.text or delta.signature is not None for delta in deltas)
            require(said, f"each delta has text or the signature: {deltas}")
            early = [delta for delta in deltas[:-1] if delta.signature is not None]
            require(not early, f"only the last delta is signed, and here is {early}")
            _same_text("its deltas", "".join(delta.text for delta in deltas), content.text)
            signature = deltas[-1].signature if deltas else None
            require(signature == content.signature, f"signed {signature!r}, kept as {content.signature!r}")
        case ToolUseBlock():
            _check_tool(events, content, well=well)
        case OpaqueBlock() | RedactedThinkingBlock():
            match list(events):
                case [ProviderBlock(raw=raw)] if content.provider_raw is not None:
                    require(raw == content.provider_raw.data, f"{raw!r} is not {content.provider_raw.data!r}")
                case _:
                    raise AssertionError(f"a block outside the catalogue is one event, and here is {events}")
        case ImageBlock():
            shown = len(events) == 1 and isinstance(events[0], ProviderBlock)
            require(shown, f"an image is one event of its provider's, and here is {events}")
        case _:
            raise AssertionError(f"no model makes {content!r}")


def _check_tool(events: Sequence[StreamEvent], content: ToolUseBlock, *, well: bool) -> None:
    match list(events):
        case [ToolUseStart() as start, *middle, ToolUseEnd() as end]:
            pass
        case _:
            raise AssertionError(
                f"a call is start, fragments, end, and here is {[event.type for event in events]}"
            )
    deltas = [event for event in middle if isinstance(event, ToolUseInputDelta)]
    require(len(deltas) == len(middle), f"between start and end of a call is {middle}")
    fragments = [delta.partial_json for delta in deltas]
    require(all(fragments), f"a fragment is never empty: {fragments}")
    ids = {start.tool_use_id, end.tool_use_id, *(delta.tool_use_id for delta in deltas)}
    require(ids == {content.id}, f"the ids of its events are {sorted(ids)}, its own is {content.id}")
    require(start.tool_name == content.name, f"started as {start.tool_name!r}, ended as {content.name!r}")
    require(isinstance(end.final_input, dict), f"final_input is no object: {end.final_input!r}")
    require(end.final_input == content.input, f"ended with {end.final_input}, kept as {content.input}")
    msgspec.json.encode(end.final_input)  # it can be sent back
    if well:
        agree = end.incomplete == content.incomplete
        require(agree, f"incomplete is {end.incomplete} at its end and {content.incomplete} in the final content")
    else:
        require(content.incomplete, "the reply did not end well, and a call of it is not incomplete")
    if content.raw_arguments is not None:
        _same_text("its fragments", "".join(fragments), content.raw_arguments)
        require(content.incomplete, "arguments that are no object make the call incomplete")
        require(content.input == {}, f"arguments that are no object give {content.input}")


def _same_text(what: str, found: str, expected: str) -> None:
    require(found == expected, f"{what} add up to {found!r}, and it is {expected!r}")
