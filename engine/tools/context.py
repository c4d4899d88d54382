"""The context that a tool's function may take besides its arguments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias

from callboard.adapters import Message
from callboard.bus import ToolProgress
from callboard.engine.abort import AbortSignal

Report: TypeAlias = Callable[[ToolProgress], None]


class ToolContext:
    """The context of one call of a tool.

    A parameter that is annotated with this class gets the context, whatever its name. The model never sees that
    parameter. Everything here may be used from the function's thread, too.

    Args:
        tool_call_id: The id of the call, as in the message.
        tool_name: The name of the tool, as the model knows it.
        messages: The conversation up to the call, with the message that made it.
        session_id: The id of the session; None if the call belongs to no session.
        turn_id: The id of the turn.
        abort_signal: A signal that is set when the turn is cancelled, or when the tool's time is up.
        report: A function that gets the progress.
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
        """A key for the system that the tool calls, so that it does a thing once.

        The key is a UUID. It is the same each time this call of the model is run, also in another process that has
        resumed the session. No other call has it, and the same call in a fork of the session has another.
        """
        from .idempotency import idempotency_key  # most tools call nobody who wants a key

        return idempotency_key(self.session_id, self.messages, self.tool_call_id)

    @property
    def cancelled(self) -> bool:
        """True once nobody waits for this call any more."""
        return self.abort_signal.aborted

    def raise_if_cancelled(self) -> None:
        """Stop the steps of long plain work.

        Raises:
            CancelledError: Nobody waits for this call any more.
        """
        self.abort_signal.raise_if_aborted()

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Publish a `tool.progress` on the bus and in the turn's stream.

        It may be called in any thread, and it doesn't wait. Progress after the end of the call is dropped.

        Args:
            message: The progress in words.
            fraction: The progress from 0 to 1; None if it is unknown.
        """
        if self._home is None:
            return
        event = ToolProgress(
            tool_use_id=self.tool_call_id, tool_name=self.tool_name, message=message, fraction=fraction
        )
        loop, thread = self._home
        if threading.get_ident() == thread:
            self._tell(event)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._tell, event)

    def _tell(self, event: ToolProgress) -> None:
        if self._report is not None:
            self._report(event)

    def close(self) -> None:
        """Drop all further progress, because the call has ended."""
        self._report = None
