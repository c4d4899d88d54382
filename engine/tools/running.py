"""How a round of calls is run.

All calls of a round run at once and are answered in the order in which the model made them. Whatever goes wrong in
one is an error result for the model, never an exception of the turn. A call that was cut off is not run. A call
that waits for somebody, because its tool is passive or nobody has approved it yet, is left open.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, cast

import anyio
import msgspec
from anyio.lowlevel import RunVar

from adapters import Message, ToolResultBlock, ToolUseBlock
from bus import Clock, ToolFinished, ToolProgress, ToolStarted
from bus.json_types import JsonObject
from bus.log import Log
from engine.abort import AbortController

from .approval import ApprovalRequest, Approve, Approved, Denied, Pending
from .context import ToolContext
from .function_tool import Tool
from .handler import Handler, Ready
from .parameters import is_async
from .repair import InvalidToolCallError, RepairToolCall
from .results import ToolError, as_content
from .threads import run_in_thread

_log = Log("engine.tools")

T = TypeVar("T")

MAX_THREADS = 40
"""How many plain functions of one event loop run at once. One that was abandoned doesn't count."""

MAX_NAMES = 30
"""How many tools are named to a model that called one there isn't."""

_slots: RunVar[anyio.CapacityLimiter] = RunVar("callboard tool threads")

Tell: TypeAlias = Callable[[ToolStarted | ToolProgress | ToolFinished], None]


@dataclass(frozen=True, kw_only=True)
class ToolScene:
    """Where a round takes place.

    clock: of how long tools take. tell: gets the events. messages: the conversation, with the message that made
    the calls. timeout_seconds: of a call whose tool has none of its own. cut_off: the reply was, so that nothing
    of it may be repaired. approved: ids of calls about which `approve` is not asked any more.
    """

    clock: Clock
    tell: Tell
    messages: tuple[Message, ...] = ()
    session_id: str | None = None
    turn_id: str | None = None
    timeout_seconds: float = 60.0
    approve: Approve | None = None
    repair: RepairToolCall | None = None
    cut_off: bool = False
    approved: frozenset[str] = frozenset()
    _asking: anyio.Lock = field(default_factory=anyio.Lock, repr=False)


@dataclass(frozen=True)
class ToolRound:
    """What came of a round. results: of the calls that were run or refused, in their order. waiting: calls that
    are left open, in theirs.
    """

    results: tuple[ToolResultBlock, ...]
    waiting: tuple[ToolUseBlock, ...] = ()


async def run_tools(calls: Sequence[ToolUseBlock], tools: Sequence[Tool], scene: ToolScene) -> ToolRound:
    """Run the calls of one reply, all at once. What goes wrong with one is its result, for the model to see."""
    by_name = {tool.name: tool for tool in tools}
    results: list[ToolResultBlock | None] = [None] * len(calls)

    async def answer(position: int, call: ToolUseBlock) -> None:
        results[position] = await _answer(call, by_name, scene)

    if len(calls) == 1:  # the usual round needs no tasks
        await answer(0, calls[0])
    else:
        async with anyio.create_task_group() as group:
            for position, call in enumerate(calls):
                group.start_soon(answer, position, call)
    return ToolRound(
        tuple(result for result in results if result is not None),
        tuple(call for call, result in zip(calls, results, strict=True) if result is None),
    )


class _Refused(Exception):
    """A call that is not run; the text is for the model."""


class _Waits(Exception):
    """A call that is left open."""


async def _answer(call: ToolUseBlock, tools: dict[str, Tool], scene: ToolScene) -> ToolResultBlock | None:
    """One call's result; None if it is left open. Its start and its end are told, also if it isn't run."""
    tool = tools.get(call.name)
    refusal: str | None = None
    ready: Ready | None = None
    try:
        ready = await _admit(call, tool, tools, scene)
    except _Waits:
        return None
    except _Refused as refused:
        refusal = str(refused)
    scene.tell(ToolStarted(tool_use_id=call.id, tool_name=call.name))
    started = scene.clock.monotonic_ns()
    if refusal is not None or tool is None or ready is None:
        result = ToolResultBlock(call.id, refusal or "", is_error=True)
    else:
        result = await _run(call, tool, ready, scene)
    latency = (scene.clock.monotonic_ns() - started) // 1_000_000
    scene.tell(
        ToolFinished(tool_use_id=call.id, tool_name=call.name, is_error=result.is_error, latency_ms=latency)
    )
    return result


# -- before it runs


async def _admit(call: ToolUseBlock, tool: Tool | None, tools: dict[str, Tool], scene: ToolScene) -> Ready:
    """The arguments, checked, converted and approved. Raises _Refused, _Waits."""
    if tool is None:
        names = ", ".join(list(tools)[:MAX_NAMES])
        raise _Refused(f"There is no tool named {call.name!r}. " + (f"The tools are: {names}." if names else ""))
    if call.incomplete and (scene.cut_off or call.raw_arguments is None):
        raise _Refused("The call's arguments are incomplete; it was not executed.")
    if tool.handler is None:
        if call.incomplete:
            raise _Refused(f"{_fault(call)}; call the tool again.")
        raise _Waits
    arguments, ready = await _readied(call, tool, tool.handler, scene)
    if call.id not in scene.approved:
        await _require_approval(call, tool, arguments, scene)
    return ready


async def _readied(call: ToolUseBlock, tool: Tool, handler: Handler, scene: ToolScene) -> tuple[JsonObject, Ready]:
    """The arguments as JSON and converted, perhaps repaired. Raises _Refused."""
    try:
        return call.input, _read(call, handler)
    except InvalidToolCallError as error:
        repaired = await _repaired(call, tool, error, scene)
        if repaired is None:
            raise _Refused(f"{error}; call the tool again with arguments that follow its schema.") from error
    mended = msgspec.structs.replace(call, input=repaired, raw_arguments=None, incomplete=False)
    try:
        return repaired, _read(mended, handler)
    except InvalidToolCallError as error:
        raise _Refused(f"{error}; call the tool again with arguments that follow its schema.") from error


def _read(call: ToolUseBlock, handler: Handler) -> Ready:
    if call.incomplete:
        raise InvalidToolCallError(_fault(call))
    try:
        return handler.read(call.input)
    except ValueError as error:
        raise InvalidToolCallError(f"The arguments of {call.name!r} are wrong: {error}") from error
    except Exception as error:  # the tool's own schema is wrong, or its type
        raise _Refused(f"The tool can't be called: {error}") from error


def _fault(call: ToolUseBlock) -> str:
    return f"The arguments of {call.name!r} are no JSON object"


async def _repaired(
    call: ToolUseBlock, tool: Tool, error: InvalidToolCallError, scene: ToolScene
) -> JsonObject | None:
    if scene.repair is None:
        return None
    try:
        return await _asked(scene.repair, call, error, tool)
    except Exception as failure:
        _log.warning("repair_failed", tool=call.name, error=type(failure).__name__)
        return None


async def _require_approval(call: ToolUseBlock, tool: Tool, arguments: JsonObject, scene: ToolScene) -> None:
    """Raises _Refused, _Waits unless the call may run."""
    if tool.needs_approval is False or (tool.needs_approval is None and scene.approve is None):
        return
    request = ApprovalRequest(
        call=call,
        definition=tool.definition,
        arguments=arguments,
        messages=scene.messages,
        session_id=scene.session_id,
        turn_id=scene.turn_id,
    )
    async with scene._asking:  # whoever is asked, perhaps a person at a terminal, is asked one thing at a time
        try:
            approval = await _approval(request, tool, scene)
        except Exception as error:
            _log.warning("approval_failed", tool=call.name, error=type(error).__name__)
            raise _Refused("The call was not executed: asking for its approval failed.") from error
    match approval:
        case Approved():
            return
        case Denied(reason=reason):
            raise _Refused(denial(reason))
        case Pending():
            raise _Waits
        case _:
            _log.error(
                "no_approval", tool=call.name, given=repr(approval), expected="Approved(), Denied() or Pending()"
            )
            raise _Refused("The call was not executed: it was neither approved nor denied.")


def denial(reason: str) -> str:
    """What the model is told of a call that was not approved."""
    return f"The call was not approved: {reason}" if reason else "The call was not approved."


async def _approval(request: ApprovalRequest, tool: Tool, scene: ToolScene) -> object:
    needed = tool.needs_approval
    if callable(needed) and not await _asked(needed, request):
        return Approved()
    return Pending() if scene.approve is None else await _asked(scene.approve, request)


async def _asked(hook: Callable[..., T | Awaitable[T]], *arguments: object) -> T:
    """What a host's hook says. A plain one runs in a thread: it may wait for somebody."""
    answer = hook(*arguments) if is_async(hook) else await run_in_thread(lambda: hook(*arguments))
    return await answer if inspect.isawaitable(answer) else answer


# -- running it


async def _run(call: ToolUseBlock, tool: Tool, ready: Ready, scene: ToolScene) -> ToolResultBlock:
    assert tool.handler is not None
    seconds = scene.timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
    controller = AbortController() if tool.handler.injected else None
    context = None if controller is None else _context(call, controller, scene)
    why = "the turn was cancelled"
    done = False
    try:
        with _Slot() if not tool.handler.is_async else contextlib.nullcontext() as slot:
            if slot is not None:
                await slot.wait()
            with anyio.move_on_after(seconds) as scope:
                work = _awaited if tool.handler.is_async else _in_thread
                result = await work(tool.handler, ready, context)
                done = True
        if not done and scope.cancelled_caught:
            why = f"The tool took longer than {seconds:g} s."
            return ToolResultBlock(call.id, why, is_error=True)
        return ToolResultBlock(call.id, as_content(result))
    except ToolError as error:
        done = True
        return ToolResultBlock(call.id, error.content, is_error=True)
    except Exception as error:
        done = True
        _log.warning("tool_failed", tool=call.name, error=type(error).__name__)
        return ToolResultBlock(call.id, _told(error), is_error=True)
    finally:
        if context is not None:
            context.close()
        if controller is not None and not done:
            controller.abort(why)


def _told(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _context(call: ToolUseBlock, controller: AbortController, scene: ToolScene) -> ToolContext:
    return ToolContext(
        tool_call_id=call.id,
        tool_name=call.name,
        messages=scene.messages,
        session_id=scene.session_id,
        turn_id=scene.turn_id,
        abort_signal=controller.signal,
        report=scene.tell,
    )


async def _in_thread(handler: Handler, ready: Ready, context: ToolContext | None) -> object:
    result = await run_in_thread(lambda: handler.call(ready, context))
    return await result if inspect.isawaitable(result) else result


async def _awaited(handler: Handler, ready: Ready, context: ToolContext | None) -> object:
    try:
        return await cast("Awaitable[object]", handler.call(ready, context))
    except SystemExit as error:  # would end the event loop
        raise RuntimeError(f"the tool raised SystemExit: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling()):
            raise
        raise RuntimeError("the tool waited for something that was cancelled") from None


class _Slot:
    """One of the places for plain functions; waiting for it is not the tool's time."""

    def __init__(self) -> None:
        try:
            self._limiter = _slots.get()
        except LookupError:
            self._limiter = anyio.CapacityLimiter(MAX_THREADS)
            _slots.set(self._limiter)
        self._held = False

    async def wait(self) -> None:
        try:
            self._limiter.acquire_on_behalf_of_nowait(self)  # a turn of the loop less, where one is free
        except anyio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        self._held = True

    def __enter__(self) -> _Slot:
        return self

    def __exit__(self, *error: object) -> None:
        if self._held:
            self._limiter.release_on_behalf_of(self)
