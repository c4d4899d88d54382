"""One round of tool calls: its shared context, and its results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio
import msgspec

from callboard.adapters import Message, ToolResultBlock, ToolUseBlock
from callboard.bus import Clock, ToolFinished, ToolProgress, ToolStarted
from callboard.bus.errors import CallboardError
from callboard.bus.values.base import JsonObject

from ..tree import Caller
from .context import Approve
from .handler import Tool


class InvalidToolCallError(CallboardError):
    """The arguments of a call don't follow the tool's schema, or are not a JSON object.

    The text names the place.
    """


RepairToolCall: TypeAlias = Callable[
    [ToolUseBlock, InvalidToolCallError, Tool], JsonObject | Awaitable[JsonObject | None] | None
]
"""A function that gets a call, its error and its tool, and returns other arguments. None leaves the error to the
model.

It is called once for each such call. If the model's text was no JSON object, it is in the call's `raw_arguments`.
A plain function runs in a thread.
"""


OnToolEvent: TypeAlias = Callable[[ToolStarted | ToolProgress | ToolFinished], None]


class ToolRoundContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context that the calls of one round share."""

    clock: Clock
    """The clock that measures how long tools take."""
    tell: OnToolEvent
    """A function that gets the events."""
    messages: tuple[Message, ...] = ()
    """The conversation, with the message that made the calls."""
    session_id: str | None = None
    """The id of the session, if there is one."""
    turn_id: str | None = None
    """The id of the turn."""
    timeout_seconds: float = 60.0
    """Seconds for a call of a tool without its own limit."""
    approve: Approve | None = None
    """A function that decides about each call."""
    repair: RepairToolCall | None = None
    """A function that mends arguments that don't fit."""
    cut_off: bool = False
    """Whether the reply was cut off. If so, none of it may be repaired."""
    approved: frozenset[str] = frozenset()
    """The ids of calls for which `approve` is no longer called."""
    caller: Callable[[ToolUseBlock], Caller] | None = None
    """Gives the run of each tool its place in the tree of turns."""
    asking: anyio.Lock = msgspec.field(default_factory=lambda: anyio.Lock())
    """The lock that allows one question about approval at a time."""


class ToolRound(msgspec.Struct, frozen=True):
    """The results of a round."""

    results: tuple[ToolResultBlock, ...]
    """The results of the calls that were run or refused, in the order of the calls."""
    waiting: tuple[ToolUseBlock, ...] = ()
    """The calls that are left open, in their order."""


def not_executed(call: ToolUseBlock) -> ToolResultBlock:
    """The result of a call that its turn did not reach."""
    from callboard.adapters.requests.history import NOT_EXECUTED

    return ToolResultBlock(call.id, NOT_EXECUTED, is_error=True)
