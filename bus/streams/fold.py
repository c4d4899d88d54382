"""Fewer events for the same stream: merge, fold and weigh events.

All functions are pure. They change only events of `bus.streams.events`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..values.content import AudioBlock, DocumentBlock, ImageBlock, TextBlock, ThinkingBlock, ToolResultBlock
from .events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    ProviderEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
)

MERGE_LIMIT = 16 * 1024
"""The largest number of characters in a merged delta."""

_EVENT_BYTES = 160
"""The bytes of an event besides its text: the object, its string's header, its place in the list."""


def coalesce(events: Sequence[object], first_seq: int) -> tuple[list[object], list[int]]:
    """Merge adjacent text and thinking deltas."""
    merged: list[object] = []
    seqs: list[int] = []
    run: list[TextDelta | ThinkingDelta] = []
    length = 0

    def end_run() -> None:
        nonlocal length
        if run:
            merged.append(_join(run))
            run.clear()
            length = 0

    for seq, event in enumerate(events, first_seq):
        if not isinstance(event, (TextDelta, ThinkingDelta)):
            end_run()
            merged.append(event)
            seqs.append(seq)
            continue
        if run and (length + len(event.text) > MERGE_LIMIT or not _continues(run[-1], event)):
            end_run()
        if run:
            seqs[-1] = seq
        else:
            seqs.append(seq)
        run.append(event)
        length += len(event.text)
    end_run()
    return merged, seqs


def fold(events: Iterable[object]) -> tuple[object, ...]:
    """Fold events into the fewest with the same content.

    A finished message becomes its MessageStart and its MessageComplete. In an unfinished message, the deltas of
    each block are joined. `ProviderEvent` values are dropped.
    """
    folded: list[object] = []
    message_at: int | None = None  # where the unfinished message starts in `folded`
    run: list[TextDelta | ThinkingDelta | ToolUseInputDelta] = []
    for event in events:
        if isinstance(event, (TextDelta, ThinkingDelta, ToolUseInputDelta)):
            if run and not _continues(run[-1], event):
                folded.append(_join(run))
                run.clear()
            run.append(event)
            continue
        if isinstance(event, ProviderEvent):
            continue
        if run:
            folded.append(_join(run))
            run.clear()
        if isinstance(event, MessageStart):
            message_at = len(folded)
        elif isinstance(event, MessageComplete) and message_at is not None:
            del folded[message_at + 1 :]
            message_at = None
        folded.append(event)
    if run:
        folded.append(_join(run))
    return tuple(folded)


def weigh(event: object) -> int:
    """A rough number of bytes of memory that an event uses."""
    beyond = _BEYOND.get(type(event))
    return _EVENT_BYTES if beyond is None else _EVENT_BYTES + beyond(event)


def weigh_all(events: Iterable[object]) -> int:
    """The sum of `weigh`, fast for text deltas."""
    total, beyond_of = 0, _BEYOND.get
    for event in events:
        total += _EVENT_BYTES
        if type(event) is TextDelta:
            total += len(event.text)
        elif (beyond := beyond_of(type(event))) is not None:
            total += beyond(event)
    return total


def weigh_content(content: Iterable[object]) -> int:
    """A rough number of bytes of memory that the blocks of a message use, in constant time for each block."""
    return sum(map(_weigh_block, content))


def _weigh_block(block: object) -> int:
    match block:
        case TextBlock() | ThinkingBlock():
            return _EVENT_BYTES + len(block.text)
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return _EVENT_BYTES + len(block.data or b"") + len(block.url or "")
        case ToolResultBlock():
            return _EVENT_BYTES + len(block.text)
        case _:
            return 2 * _EVENT_BYTES


def _weigh_json(value: object) -> int:
    if isinstance(value, str):
        return 50 + len(value)
    if isinstance(value, dict):
        return 64 + sum(_weigh_json(key) + _weigh_json(item) for key, item in value.items())
    if isinstance(value, list):
        return 64 + sum(_weigh_json(item) for item in value)
    return 32


_BEYOND: dict[type, Callable[[Any], int]] = {
    TextDelta: lambda event: len(event.text),
    ThinkingDelta: lambda event: len(event.text),
    ToolUseInputDelta: lambda event: len(event.partial_json),
    ToolUseEnd: lambda event: _weigh_json(event.final_input),
    ProviderBlock: lambda event: _weigh_json(event.raw),
    ProviderEvent: lambda event: _weigh_json(event.raw),
    MessageComplete: lambda event: weigh_content(event.final_content),
}
"""The bytes of an event besides itself, by type. This is a table, because each log is weighed when it is closed.
"""

_Delta = TextDelta | ThinkingDelta | ToolUseInputDelta


def _same_block(first: _Delta, second: _Delta) -> bool:
    return first.content_block_index == second.content_block_index and first.message_id == second.message_id


def _continues(first: _Delta, second: _Delta) -> bool:
    if type(first) is not type(second) or not _same_block(first, second):
        return False
    return not (isinstance(first, ThinkingDelta) and first.signature is not None)


def _join(run: Sequence[_Delta]) -> _Delta:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    index, message_id = first.content_block_index, first.message_id
    if isinstance(last, ToolUseInputDelta):
        fragments = (delta.partial_json for delta in run if isinstance(delta, ToolUseInputDelta))
        return ToolUseInputDelta(last.tool_use_id, "".join(fragments), index, message_id)
    text = "".join(delta.text for delta in run if not isinstance(delta, ToolUseInputDelta))
    if isinstance(last, ThinkingDelta):
        return ThinkingDelta(text, last.signature, index, message_id)
    return TextDelta(text, index, message_id)
