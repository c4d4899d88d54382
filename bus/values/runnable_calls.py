"""Which tool calls of a reply may be run: only the calls of a reply that ended well. And which replies are empty.

This is the one place that decides it. Code that makes a reply canonical asks here. Code that reads a reply finds
the answer in its blocks, as `ToolUseBlock.incomplete`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from .usage import StopReason

_ENDED_WELL = frozenset({StopReason.TOOL_USE, StopReason.END_TURN, StopReason.PAUSE_TURN})


def is_empty(content: Sequence[ContentBlock], stop_reason: StopReason) -> bool:
    """Whether a reply ended well and has neither a text nor a call. Reasoning alone says nothing.

    A reply that ended with a stop sequence, or that pauses, is not taken for an empty one.
    """
    if stop_reason not in (StopReason.END_TURN, StopReason.TOOL_USE):
        return False
    for block in content:  # no `any`, as every call asks this
        if block.text.strip() if isinstance(block, TextBlock) else not isinstance(block, ThinkingBlock):
            return False
    return True


def ended_well(stop_reason: StopReason) -> bool:
    """Whether a reply came to the end that the model meant, so that its calls are complete, too."""
    return stop_reason in _ENDED_WELL


def with_whole_calls(content: tuple[ContentBlock, ...], stop_reason: StopReason) -> tuple[ContentBlock, ...]:
    """The content of a reply after its end is known. After a bad end, every call is incomplete."""
    if ended_well(stop_reason) or not any(_runs(block) for block in content):
        return content
    return tuple(msgspec.structs.replace(block, incomplete=True) if _runs(block) else block for block in content)


def _runs(block: ContentBlock) -> bool:
    return isinstance(block, ToolUseBlock) and not block.incomplete
