"""A round of five tool calls: arguments are checked and converted, the calls run concurrently, results become
blocks, and events are published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from callboard.adapters import ToolDefinition, ToolUseBlock
from callboard.bus import SYSTEM_CLOCK, Bus, ToolFinished, ToolProgress, ToolStarted
from callboard.bus.values.base import JsonObject
from callboard.engine import Tool, ToolContext, tool
from callboard.engine.tools import ToolRoundContext, run_tools

from .table import Row, against, in_turns, micros, run

CALLS = 5
GATE_SECONDS = 0.5e-3

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}


@tool
async def hinted(city: str, days: int = 1) -> dict[str, int]:
    """An async function with type hints."""
    return {"days": days}


@tool
async def told(city: str, context: ToolContext, days: int = 1) -> dict[str, int]:
    """The same with a `ToolContext`."""
    return {"days": days}


@tool
def plain(city: str, days: int = 1) -> dict[str, int]:
    """A plain function: each call runs in a thread."""
    return {"days": days}


async def _mapping(arguments: JsonObject) -> JsonObject:
    return {"days": arguments["days"]}


GIVEN = Tool(ToolDefinition("given", "With a schema of its own.", SCHEMA), _mapping)


def _calls(name: str) -> list[ToolUseBlock]:
    return [ToolUseBlock(f"tu_{n}", name, {"city": "Rome", "days": n + 1}) for n in range(CALLS)]


async def rounds(which: Tool, count: int) -> None:
    bus = Bus()

    def tell(event: ToolStarted | ToolProgress | ToolFinished) -> None:
        bus.publish(event)

    calls, tools = _calls(which.name), [hinted, told, plain, GIVEN]
    for _ in range(count):
        made = await run_tools(calls, tools, ToolRoundContext(clock=SYSTEM_CLOCK, tell=tell))
        if any(result.is_error for result in made.results):
            raise RuntimeError(made.results[0].text)


async def gathered(count: int, work: Callable[[], Awaitable[object]]) -> None:
    """The floor: the same functions with `asyncio.gather`."""
    for _ in range(count):
        await asyncio.gather(*(work() for _ in range(CALLS)))


async def _rows(quick: bool) -> list[Row]:
    count = 100 if quick else 1_000
    contestants: dict[str, Callable[[], Awaitable[object]]] = {
        each.name: partial(rounds, each, count) for each in (hinted, told, GIVEN, plain)
    }
    contestants["gathered"] = partial(gathered, count, partial(hinted, "Rome", 1))
    contestants["threads"] = partial(gathered, count, partial(asyncio.to_thread, plain, "Rome", 1))
    spent = {
        name: seconds / count
        for name, seconds in (await in_turns(contestants, repetitions=2 if quick else 5)).items()
    }
    gate = f"< {micros(GATE_SECONDS)}"
    found: list[Row] = []
    for name, text in (
        ("hinted", "five async tools, by their hints"),
        ("told", "five async tools, with a context"),
        ("given", "five async tools, by a JSON Schema"),
    ):
        ratio = spent[name] / spent["gathered"]
        met = spent[name] < GATE_SECONDS
        found.append(Row(text, micros(spent[name]), micros(spent["gathered"]), ratio, gate, met))
    found.append(against("five plain tools (floor: asyncio.to_thread)", spent["plain"], spent["threads"]))
    return found


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
