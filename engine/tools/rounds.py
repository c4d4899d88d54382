"""Where a round of calls takes place, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import anyio
import msgspec

from adapters import Message, ToolResultBlock, ToolUseBlock
from bus import Clock, ToolFinished, ToolProgress, ToolStarted

from .approval import Approve
from .repair import RepairToolCall

Tell: TypeAlias = Callable[[ToolStarted | ToolProgress | ToolFinished], None]


class ToolRoundContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a round takes place.

    clock: of how long tools take. tell: gets the events. messages: the conversation, with the message that made
    the calls. timeout_seconds: of a call whose tool has none of its own. cut_off: the reply was, so that nothing
    of it may be repaired. approved: ids of calls about which `approve` is not asked any more.
    """

    clock: Clock
    tell: Tell
    messages: tuple[Message, ...] = ()
    session_id: str | None = None
    turn_id: str | None = None
    timeout_seconds: float = 60.0
    approve: Approve | None = None
    repair: RepairToolCall | None = None
    cut_off: bool = False
    approved: frozenset[str] = frozenset()
    asking: anyio.Lock = msgspec.field(default_factory=lambda: anyio.Lock())


class ToolRound(msgspec.Struct, frozen=True):
    """What came of a round. results: of the calls that were run or refused, in their order. waiting: calls that
    are left open, in theirs.
    """

    results: tuple[ToolResultBlock, ...]
    waiting: tuple[ToolUseBlock, ...] = ()


def not_executed(call: ToolUseBlock) -> ToolResultBlock:
    """The result of a call that its turn did not come to."""
    from adapters.requests.history import (
        NOT_EXECUTED,  # which most programs need with their first call, and not at import
    )

    return ToolResultBlock(call.id, NOT_EXECUTED, is_error=True)
