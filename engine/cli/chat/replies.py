"""A turn's stream on a screen: text and tool calls, as they come."""

from __future__ import annotations

from collections.abc import Callable

from adapters import MessageComplete, MessageStart, TextDelta, ToolUseEnd, ToolUseInputDelta, ToolUseStart
from bus import StepFinish, StreamReset, TurnComplete
from bus.streams.events import TurnEvent

from ..common.screen import Screen


class ReplyWriter:
    """Shows a turn's events on a screen.

    Args:
        label: The text before each reply.
        before: Called before each reply.
    """

    def __init__(self, screen: Screen, label: str, *, before: Callable[[], None] = lambda: None) -> None:
        self._screen = screen
        self._label = label
        self._before = before
        self._writing = False

    def feed(self, event: TurnEvent | StreamReset[TurnEvent]) -> None:
        match event:
            case MessageStart():
                self._before()
            case TextDelta():
                self._write(event.text)
            case ToolUseStart():
                self._write(f"calls {event.tool_name} with ")
            case ToolUseInputDelta():
                self._write(event.partial_json)
            case ToolUseEnd():
                self._write(" (cut off)" if event.incomplete else "")
            case MessageComplete() | StepFinish() | TurnComplete():
                self.end()
            case _:
                pass

    def end(self) -> None:
        """End the line that is being written, if one is. Idempotent."""
        if self._writing:
            self._writing = False
            self._screen.end_reply()

    def _write(self, text: str) -> None:
        if text and not self._writing:
            self._writing = True
            self._screen.begin_reply(self._label, "green")
        self._screen.text(text)
