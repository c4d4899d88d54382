"""What a tool's function may be told besides its arguments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias

from adapters import Message
from bus import ToolProgress
from engine.abort import AbortSignal

Report: TypeAlias = Callable[[ToolProgress], None]


class ToolContext:
    """One call of a tool: where it comes from, how it hears that it was given up, and how it says how far it is.

    A parameter annotated with this class gets it, whatever its name; the model never sees that parameter.
    Everything here may be used from the function's thread, too.

    tool_call_id: ours, as in the message. tool_name: as the model knows it. session_id: None if the call belongs
    to no session. turn_id: of its turn. messages: the conversation up to the call, with the message that made it.
    abort_signal: set when the turn is cancelled, or the tool's time is up.
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
    def cancelled(self) -> bool:
        """Whether nobody waits for this call any more."""
        return self.abort_signal.aborted

    def raise_if_cancelled(self) -> None:
        """Raises CancelledError if nobody waits for this call any more: for the steps of long plain work."""
        self.abort_signal.raise_if_aborted()

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Publish a `tool.progress`, on the bus and in the turn's stream. fraction: from 0 to 1, None if unknown.

        From any thread, and without waiting. What is said after the call has ended is dropped.
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
        """The call has ended; its progress is of no interest any more."""
        self._report = None
