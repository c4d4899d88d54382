"""`tool.*`: the life of one call of a tool."""

from __future__ import annotations

from .envelope import Event


class _ToolEvent(Event, frozen=True, kw_only=True):
    """An event of one call of a tool."""

    tool_use_id: str
    """The id of the call in the message."""
    tool_name: str
    """The tool's name."""


class ToolStarted(_ToolEvent, frozen=True, kw_only=True, tag="tool.started"):
    """A tool is about to run, or its call is about to be refused."""


class ToolProgress(_ToolEvent, frozen=True, kw_only=True, tag="tool.progress"):
    """A running tool reports its progress.

    The report is in the tool's own words and may quote content. So the trace store keeps the event without its
    message.
    """

    message: str | None = None
    """The tool's own words."""
    fraction: float | None = None
    """The part of the work that is done, from 0 to 1; None if the tool can't tell."""


class ToolFinished(_ToolEvent, frozen=True, kw_only=True, tag="tool.finished"):
    """A tool has answered, or was given up."""

    is_error: bool
    """Whether the tool failed, was refused, or took too long."""
    latency_ms: int
    """Milliseconds that the tool ran, without waiting for an approval."""
