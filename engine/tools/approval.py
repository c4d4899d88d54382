"""Whether a call of a tool may run: the question, and the answers to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from adapters import Message, ToolDefinition, ToolUseBlock
from bus.values.json import JsonObject


class Approved(msgspec.Struct, frozen=True):
    """The call may run."""


class Denied(msgspec.Struct, frozen=True):
    """The call must not run; the model is told so, and the reason."""

    reason: str = ""


class Pending(msgspec.Struct, frozen=True):
    """Nobody has decided yet: the turn ends with the call open, and `Session.submit` brings the answer."""


Approval: TypeAlias = Approved | Denied | Pending
"""What can be said of a call that is about to run."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is about to run. Its arguments follow the tool's schema already.

    arguments: as a `repair_tool_call` hook left them. definition: with the tool's annotations, which are hints,
    and of a foreign server only claims. messages: the conversation up to the call, with the message that made it.
    """

    call: ToolUseBlock
    definition: ToolDefinition
    arguments: JsonObject
    messages: tuple[Message, ...] = ()
    session_id: str | None = None
    turn_id: str | None = None


Approve: TypeAlias = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
"""Decides on a call. A plain function runs in a thread, so that it may ask a person. One question at a time."""

NeedsApproval: TypeAlias = bool | Callable[[ApprovalRequest], bool | Awaitable[bool]]
"""Of a tool. True: a call waits for an answer; False: it is never asked about; a function decides on each call."""


def denial(reason: str) -> str:
    """What the model is told of a call that was not approved."""
    return f"The call was not approved: {reason}" if reason else "The call was not approved."
