"""Helpers that run rounds of tool calls without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callboard.adapters import ToolResultBlock, ToolUseBlock
from callboard.bus import SYSTEM_CLOCK, JsonObject, ToolFinished, ToolProgress, ToolStarted
from callboard.engine import Tool
from callboard.engine.tools import ToolRound, ToolRoundContext, run_tools

Told = list[ToolStarted | ToolProgress | ToolFinished]


def call(
    name: str, arguments: JsonObject | None = None, *, tool_use_id: str = "tu_1", **more: Any
) -> ToolUseBlock:
    return ToolUseBlock(tool_use_id, name, arguments or {}, **more)


def scene(told: Told | None = None, **more: Any) -> ToolRoundContext:
    """The context of a round.

    Args:
        told: The list that gets the events.
        more: Further fields.
    """
    events: Told = [] if told is None else told
    return ToolRoundContext(clock=SYSTEM_CLOCK, tell=events.append, **more)


async def run(
    calls: Sequence[ToolUseBlock], tools: Sequence[Tool], told: Told | None = None, **more: Any
) -> ToolRound:
    return await run_tools(calls, tools, scene(told, **more))


async def result_of(tool: Tool, arguments: JsonObject | None = None, **more: Any) -> ToolResultBlock:
    """The result of one call of one tool."""
    made = await run([call(tool.name, arguments)], [tool], **more)
    assert not made.waiting
    return made.results[0]
