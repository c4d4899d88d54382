"""Tools that a host lets the model call, and how a round of calls is run.

All calls of a round run at once and are answered in the order in which the model made them. Whatever goes wrong
in one is an error result for the model, never an exception of the turn. A call that was cut off is not run.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

import anyio
import anyio.to_thread
import msgspec

from adapters import ToolDefinition, ToolResultBlock, ToolUseBlock
from bus import Clock, ToolFinished, ToolStarted
from bus.json_types import Json, JsonObject
from bus.log import Log

_log = Log("engine.tools")

ToolHandler: TypeAlias = Callable[[JsonObject], "Json | Awaitable[Json]"]


class Tool(msgspec.Struct, frozen=True):
    """A tool and what runs it.

    execute: gets the arguments as one dictionary, and returns text or a JSON value; a plain function runs in a
    thread. None makes the tool passive: the turn ends with the call open, for the host to answer.
    timeout_seconds: of one call; None is the engine's `Timeouts.tool`.
    """

    definition: ToolDefinition
    execute: ToolHandler | None = None
    timeout_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.definition.name


Told: TypeAlias = Callable[[ToolStarted | ToolFinished], None]


async def run_tools(
    calls: Sequence[ToolUseBlock],
    tools: Sequence[Tool],
    *,
    clock: Clock,
    tell: Told,
    timeout_seconds: float = 60.0,
) -> tuple[ToolResultBlock, ...]:
    """Run the calls of one reply, all at once; results stand in the order of the calls.

    tell: gets the events. timeout_seconds: of a tool that has none of its own.
    """
    by_name = {tool.name: tool for tool in tools}
    results: list[ToolResultBlock | None] = [None] * len(calls)

    async def run_one(position: int, call: ToolUseBlock) -> None:
        started = clock.monotonic_ns()
        tell(ToolStarted(tool_use_id=call.id, tool_name=call.name))
        result = await _result(call, by_name.get(call.name), timeout_seconds)
        results[position] = result
        latency = (clock.monotonic_ns() - started) // 1_000_000
        tell(ToolFinished(tool_use_id=call.id, tool_name=call.name, is_error=result.is_error, latency_ms=latency))

    async with anyio.create_task_group() as group:
        for position, call in enumerate(calls):
            group.start_soon(run_one, position, call)
    return tuple(result for result in results if result is not None)


async def _result(call: ToolUseBlock, tool: Tool | None, timeout_seconds: float) -> ToolResultBlock:
    if call.incomplete:
        return ToolResultBlock(call.id, "The call's arguments are incomplete; it was not executed.", is_error=True)
    if tool is None or tool.execute is None:
        return ToolResultBlock(call.id, f"There is no tool named {call.name!r}.", is_error=True)
    seconds = timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
    try:
        with anyio.fail_after(seconds):
            return ToolResultBlock(call.id, _as_text(await _execute(tool.execute, call.input)))
    except TimeoutError:
        return ToolResultBlock(call.id, f"The tool took longer than {seconds:g} s.", is_error=True)
    except Exception as error:
        _log.warning("tool_failed", tool=call.name, error=type(error).__name__)
        return ToolResultBlock(call.id, f"{type(error).__name__}: {error}", is_error=True)


async def _execute(handler: ToolHandler, arguments: JsonObject) -> Json:
    if inspect.iscoroutinefunction(handler):
        return cast("Json", await handler(arguments))
    plain = cast("Callable[[JsonObject], Json]", handler)
    return await anyio.to_thread.run_sync(plain, arguments, abandon_on_cancel=True)


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
