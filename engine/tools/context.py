"""The context, the result and the approval of a tool call."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePath
from typing import TypeAlias

import msgspec

from callboard.adapters import DocumentBlock, ImageBlock, Message, Role, TextBlock, ToolDefinition, ToolUseBlock
from callboard.bus import ToolProgress
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import OpaqueBlock, ResultPart

from ..runtime.in_flight import AbortSignal

Report: TypeAlias = Callable[[ToolProgress], None]


class ToolContext:
    """The context of a tool call.

    Annotate a parameter of the tool with this class to get the context. The parameter may have any name, and the
    model never sees it. All methods may be called from the function's thread, too.

    Args:
        tool_call_id: The id of the call, as in the message.
        tool_name: The name of the tool, as the model sees it.
        messages: The conversation, up to and including the message with the call.
        session_id: The id of the session; None if the call belongs to no session.
        turn_id: The id of the turn.
        abort_signal: A signal that is aborted when the turn is cancelled or the tool's time is up.
        report: A function that receives the progress.
    """

    def __init__(
        self,
        *,
        tool_call_id: str,
        tool_name: str,
        messages: tuple[Message, ...] = (),
        session_id: str | None = None,
        turn_id: str | None = None,
        abort_signal: AbortSignal | None = None,
        report: Report | None = None,
    ) -> None:
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name
        self.messages = messages
        self.session_id = session_id
        self.turn_id = turn_id
        self.abort_signal = abort_signal if abort_signal is not None else AbortSignal()
        self._report = report
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        if report is not None:
            self._home = asyncio.get_running_loop(), threading.get_ident()

    @property
    def idempotency_key(self) -> str:
        """A key that you can pass to another system, so that it performs an action only once.

        The key is a UUID. It is unique to this call of the model. It stays the same if the call is run again,
        even in another process that has resumed the session. The same call in a fork of the session has a
        different key.
        """

        return idempotency_key(self.session_id, self.messages, self.tool_call_id)

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return self.abort_signal.aborted

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError if the call was cancelled. Call this between steps of long work.

        Raises:
            CancelledError: The call was cancelled.
        """
        self.abort_signal.raise_if_aborted()

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Publish a `tool.progress` event on the bus and in the turn's stream.

        It may be called in any thread, and does not block. Progress after the end of the call is dropped.

        Args:
            message: The progress as text.
            fraction: The progress from 0 to 1; None if it is unknown.
        """
        if self._home is None:
            return
        event = ToolProgress(
            tool_use_id=self.tool_call_id, tool_name=self.tool_name, message=message, fraction=fraction
        )
        loop, thread = self._home
        if threading.get_ident() == thread:
            self._publish(event)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._publish, event)

    def _publish(self, event: ToolProgress) -> None:
        if self._report is not None:
            self._report(event)

    def close(self) -> None:
        """Ignore progress reports from now on."""
        self._report = None


# --- Results for the model ---

_PARTS = (TextBlock, ImageBlock, DocumentBlock, OpaqueBlock)

ResultContent: TypeAlias = str | tuple[ResultPart, ...]


class ToolError(Exception):
    """An error with a text for the model. Raise it in a tool.

    For other exceptions, the model receives the type and the text.

    Args:
        content: The text or blocks for the model.
    """

    def __init__(self, content: str | Sequence[ResultPart]) -> None:
        super().__init__(content if isinstance(content, str) else "the tool failed")
        self.content: ResultContent = content if isinstance(content, str) else tuple(content)


def as_content(value: object) -> ResultContent:
    """Convert a tool's return value to the content of a result. Text and blocks are kept. Any other value becomes
    JSON.

    It supports msgspec Structs, dataclasses, pydantic models, dates and sets, for example.
    """
    match value:
        case str():
            return value
        case TextBlock() | ImageBlock() | DocumentBlock() | OpaqueBlock():
            return (value,)
        case list() | tuple() if any(isinstance(part, _PARTS) for part in value):
            return tuple(_part(part) for part in value)
        case bytes() | bytearray() | memoryview():
            raise TypeError(
                "the tool returned bytes: return text, or a block such as ImageBlock(data=...), or "
                "DocumentBlock(data=..., media_type=...)"
            )
        case _:
            return _as_json(value)


def _part(value: object) -> ResultPart:
    match value:
        case TextBlock() | ImageBlock() | DocumentBlock() | OpaqueBlock():
            return value
        case str():
            return TextBlock(value)
        case _:
            return TextBlock(_as_json(value))


def _as_json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    # Half a surrogate pair, an integer beyond 64 bits, or a circular reference.
    except (ValueError, RecursionError) as error:
        raise TypeError(f"the tool's result can't be written as JSON: {error}") from error


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # supports pydantic models without importing pydantic
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"the tool returned a {type(value).__name__}, which is not JSON: return text, a JSON value, a dataclass, "
        "a Struct, a model, or content blocks"
    )


_NAMESPACE = uuid.UUID("7d0d3b0e-58a7-5b0c-9a44-0c1f6a2f6c15")
"""The namespace of all keys. Never change it, because the keys of calls that wait for approval would change."""


def idempotency_key(session_id: str | None, messages: Sequence[Message], tool_call_id: str) -> str:
    """The key of a call, a UUID of 36 characters."""
    made_by = ""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role is Role.ASSISTANT:
            made_by = messages[place].id or f"#{place}"
            break
    parts = (session_id or "", made_by, tool_call_id)
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


# --- Approval of calls ---


class Approved(msgspec.Struct, frozen=True):
    """The decision that the call may run."""


class Denied(msgspec.Struct, frozen=True):
    """The decision that the call must not run. The model gets a result that reports the refusal."""

    reason: str = ""
    """The reason, for the model."""


class Pending(msgspec.Struct, frozen=True):
    """No decision yet. The turn ends with the call open. Answer later with `Session.submit`."""


Approval: TypeAlias = Approved | Denied | Pending
"""The decision about a call."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call to decide about. Its arguments have been checked against the tool's schema."""

    call: ToolUseBlock
    """The call as the model made it."""
    definition: ToolDefinition
    """The tool's definition. Its annotations are only hints. Don't trust the annotations of another operator's MCP
    server.
    """
    arguments: JsonObject
    """The arguments, after a repair if they were repaired."""
    messages: tuple[Message, ...] = ()
    """The conversation, up to and including the message with the call."""
    session_id: str | None = None
    """The id of the session, if there is one."""
    turn_id: str | None = None
    """The id of the turn."""


Approve: TypeAlias = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
"""A function that decides about a call. A plain function runs in a thread, so it may wait for a person. It is
called for one call at a time.
"""

NeedsApproval: TypeAlias = bool | Callable[[ApprovalRequest], bool | Awaitable[bool]]
"""Whether a tool's calls need approval. True: each call needs one. False: no call needs one.

A function decides about each call.
"""


def denial(reason: str) -> str:
    return f"The call was not approved: {reason}" if reason else "The call was not approved."
