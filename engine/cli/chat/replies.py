"""A turn's stream on a screen: thoughts, text and tool calls, as they come."""

from __future__ import annotations

from collections.abc import Callable

from callboard.adapters import (
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus import StepFinish, StreamReset, TurnComplete
from callboard.bus.streams.events import TurnEvent

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
        self._writing: str | None = None  # the style of the line

    def feed(self, event: TurnEvent | StreamReset[TurnEvent]) -> None:
        match event:
            case MessageStart():
                self._before()
            case ThinkingDelta():
                if self._screen.console.is_terminal:
                    self._write(event.text, "dim")
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
        if self._writing is not None:
            self._writing = None
            self._screen.end_reply()

    def _write(self, text: str, style: str = "green") -> None:
        if text and self._writing != style:
            self.end()
            self._writing = style
            self._screen.begin_reply("thinks> " if style == "dim" else self._label, style)
        self._screen.text(text)
