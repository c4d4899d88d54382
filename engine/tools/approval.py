"""The approval of a tool's call: the question, and the answers to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from callboard.adapters import Message, ToolDefinition, ToolUseBlock
from callboard.bus.values.json import JsonObject


class Approved(msgspec.Struct, frozen=True):
    """The call may run."""


class Denied(msgspec.Struct, frozen=True):
    """The call must not run. The model is told so."""

    reason: str = ""
    """The reason, for the model."""


class Pending(msgspec.Struct, frozen=True):
    """Nobody has decided yet. The turn ends with the call open, and `Session.submit` brings the answer."""


Approval: TypeAlias = Approved | Denied | Pending
"""An answer to the question whether a call may run."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is about to run. Its arguments follow the tool's schema already."""

    call: ToolUseBlock
    """The call as the model made it."""
    definition: ToolDefinition
    """The tool's definition. Its annotations are hints, and of a foreign server they are only claims."""
    arguments: JsonObject
    """The arguments, after a repair if there was one."""
    messages: tuple[Message, ...] = ()
    """The conversation up to the call, with the message that made it."""
    session_id: str | None = None
    """The id of the session, if there is one."""
    turn_id: str | None = None
    """The id of the turn."""


Approve: TypeAlias = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
"""A function that decides about a call. A plain function runs in a thread, so it may ask a person. One question is
asked at a time."""

NeedsApproval: TypeAlias = bool | Callable[[ApprovalRequest], bool | Awaitable[bool]]
"""Whether a tool's calls need approval. True: a call waits for an answer. False: nobody is asked. A function
decides about each call."""


def denial(reason: str) -> str:
    """The text that the model gets about a call that was not approved."""
    return f"The call was not approved: {reason}" if reason else "The call was not approved."
