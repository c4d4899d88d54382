"""Which calls of a reply may be run: those of a reply whose end says that they are whole, and no others.

This is the one place that decides it. Whatever makes a reply canonical asks here, and whatever reads one finds the
answer in its blocks, as `ToolUseBlock.incomplete`.
"""

from __future__ import annotations

import msgspec

from .content import ContentBlock, ToolUseBlock
from .usage import StopReason

_ENDED_WELL = frozenset({StopReason.TOOL_USE, StopReason.END_TURN, StopReason.PAUSE_TURN})


def ended_well(stop_reason: StopReason) -> bool:
    """Whether a reply came to the end that the model meant, so that its calls are what it meant, too."""
    return stop_reason in _ENDED_WELL


def with_whole_calls(content: tuple[ContentBlock, ...], stop_reason: StopReason) -> tuple[ContentBlock, ...]:
    """A reply's content as its end leaves it: after a bad one no call is complete."""
    if ended_well(stop_reason) or not any(_runs(block) for block in content):
        return content
    return tuple(msgspec.structs.replace(block, incomplete=True) if _runs(block) else block for block in content)


def _runs(block: ContentBlock) -> bool:
    return isinstance(block, ToolUseBlock) and not block.incomplete
