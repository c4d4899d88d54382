"""Runs a round of tool calls.

All calls of a round run concurrently, and are answered in the model's order. If a call fails, the model gets an
error result, and the turn gets no exception. A call with incomplete arguments is not run. A call of a passive tool
or without an approval stays open. When the round is cancelled, every call still gets a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar, cast

import anyio
import msgspec
from anyio.lowlevel import RunVar

from callboard.adapters import ToolResultBlock, ToolUseBlock
from callboard.bus import ToolFinished, ToolStarted
from callboard.bus.log import Log
from callboard.bus.values.base import JsonObject

from ..middleware.chain import is_async
from ..runtime.in_flight import AbortController
from ..tree import current_tool
from .calls import InvalidToolCallError, ToolRound, ToolRoundContext, not_executed
from .context import ApprovalRequest, Approved, Denied, Pending, ToolContext, ToolError, as_content, denial
from .definitions import Tool
from .handler import Handler, Ready

T = TypeVar("T")

WORKS_IN_THREADS = True
"""Marks this module for event loops with virtual time: threads complete the futures made here, so the clock must
stop.
"""

MAX_IDLE = 16
"""The maximum number of idle threads that are kept for later calls."""

IDLE_SECONDS = 10.0
"""Seconds that an idle thread waits for another call before the thread ends."""

_Job: TypeAlias = Callable[[], Callable[[], None]]
"""A function that does the work and returns a function that delivers the result.

The returned function is called when the thread is free again.
"""

_lock = threading.Lock()
_idle: list[_Worker] = []


class _Worker:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def start(self) -> None:
        threading.Thread(target=self._work, name="callboard tool", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            tell = job()
            with _lock:
                spare = len(_idle) >= MAX_IDLE
                if not spare:
                    _idle.append(self)
            tell()
            del job, tell  # otherwise the thread would keep the job's objects alive until the next job
            if spare:
                return

    def _next(self) -> _Job | None:
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except Empty:
            with _lock:
                if self in _idle:
                    _idle.remove(self)
                    return None
            return self._jobs.get()  # another caller has just taken this worker, so a job will arrive


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run a plain function in a thread, with the caller's context variables.

    If the caller is cancelled, the function continues, and its result is dropped. An exception of the function is
    raised here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    if "sniffio" in sys.modules:  # otherwise anyio would assume that the loop runs in the thread
        context.run(sys.modules["sniffio"].current_async_library_cvar.set, None)

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T may be None; there is one exactly without error

    def job() -> Callable[[], None]:
        result: T | None = None
        error: Exception | None = None
        try:
            result = context.run(work)
        except StopIteration as stopped:  # a future does not accept StopIteration
            error = RuntimeError(f"the function raised StopIteration: {stopped}")
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = RuntimeError(f"the function raised {type(raised).__name__}: {raised}")
        return lambda: tell(result, error)

    def tell(result: T | None, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(settle, result, error)

    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is None:
        worker = _Worker()
        worker.start()
    worker.give(job)
    return await future


# --- Before a call runs ---

_log = Log("engine.tools")


MAX_NAMES = 30
"""The maximum number of tool names that a model gets after it called an unknown tool."""


class Refused(Exception):
    """Raised for a call that is not run. The text is for the model."""


class Waits(Exception):
    """Raised for a call that is left open."""


async def admit(call: ToolUseBlock, tool: Tool | None, tools: dict[str, Tool], shared: ToolRoundContext) -> Ready:
    """Decide whether a call may run, and return its converted arguments. Raises Refused or Waits."""
    if tool is None:
        names = ", ".join(list(tools)[:MAX_NAMES])
        raise Refused(f"There is no tool named {call.name!r}. " + (f"Available tools: {names}." if names else ""))
    if call.incomplete and (shared.cut_off or call.raw_arguments is None):
        raise Refused("The call's arguments are incomplete; the tool was not run.")
    if tool.handler is None:
        if call.incomplete:
            raise Refused(f"{_fault(call)}; call the tool again.")
        raise Waits
    arguments, ready = await _readied(call, tool, tool.handler, shared)
    if call.id not in shared.approved:
        await _require_approval(call, tool, arguments, shared)
    return ready


async def _readied(
    call: ToolUseBlock, tool: Tool, handler: Handler, shared: ToolRoundContext
) -> tuple[JsonObject, Ready]:
    """The arguments as JSON and converted, after a repair if needed."""
    try:
        return call.input, _read(call, handler)
    except InvalidToolCallError as error:
        repaired = await _repaired(call, tool, error, shared)
        if repaired is None:
            raise Refused(f"{error}; call the tool again with arguments that follow its schema.") from error
    changed = msgspec.structs.replace(call, input=repaired, raw_arguments=None, incomplete=False)
    try:
        return repaired, _read(changed, handler)
    except InvalidToolCallError as error:
        raise Refused(f"{error}; call the tool again with arguments that follow its schema.") from error


def _read(call: ToolUseBlock, handler: Handler) -> Ready:
    if call.incomplete:
        raise InvalidToolCallError(_fault(call))
    try:
        return handler.read(call.input)
    except ValueError as error:
        raise InvalidToolCallError(f"The arguments of {call.name!r} are wrong: {error}") from error
    except Exception as error:  # the tool's own schema or types are wrong
        raise Refused(f"The tool can't be called: {error}") from error


def _fault(call: ToolUseBlock) -> str:
    return f"The arguments of {call.name!r} are not a JSON object"


async def _repaired(
    call: ToolUseBlock, tool: Tool, error: InvalidToolCallError, shared: ToolRoundContext
) -> JsonObject | None:
    if shared.repair is None:
        return None
    try:
        return await _call_hook(shared.repair, call, error, tool)
    except Exception as failure:
        _log.warning("repair_failed", failure, tool=call.name, error=type(failure).__name__)
        return None


async def _require_approval(
    call: ToolUseBlock, tool: Tool, arguments: JsonObject, shared: ToolRoundContext
) -> None:
    if tool.needs_approval is False or (tool.needs_approval is None and shared.approve is None):
        return
    request = ApprovalRequest(
        call=call,
        definition=tool.definition,
        arguments=arguments,
        messages=shared.messages,
        session_id=shared.session_id,
        turn_id=shared.turn_id,
    )
    async with shared.asking:  # A person at a terminal must get only one question at a time.
        try:
            approval = await _approval(request, tool, shared)
        except Exception as error:
            _log.warning("approval_failed", error, tool=call.name, error=type(error).__name__)
            raise Refused("The tool was not run: the request for approval failed.") from error
    match approval:
        case Approved():
            return
        case Denied(reason=reason):
            raise Refused(denial(reason))
        case Pending():
            raise Waits
        case _:
            _log.error(
                "no_approval", tool=call.name, given=repr(approval), expected="Approved(), Denied() or Pending()"
            )
            raise Refused("The tool was not run: the call was neither approved nor denied.")


async def _approval(request: ApprovalRequest, tool: Tool, shared: ToolRoundContext) -> object:
    needed = tool.needs_approval
    if callable(needed) and not await _call_hook(needed, request):
        return Approved()
    return Pending() if shared.approve is None else await _call_hook(shared.approve, request)


async def _call_hook(hook: Callable[..., T | Awaitable[T]], *arguments: object) -> T:
    """Call a host's hook. A plain function runs in a thread, because it may block."""
    answer = hook(*arguments) if is_async(hook) else await run_in_thread(lambda: hook(*arguments))
    return await answer if inspect.isawaitable(answer) else answer


MAX_THREADS = 40
"""The maximum number of plain functions of one event loop that run concurrently. Abandoned functions don't
count.
"""

_slots: RunVar[anyio.CapacityLimiter] = RunVar("callboard tool threads")


INTERRUPTED = "This tool call was cancelled before it ended. It may have run in part or in full."
"""The result of a call that was running when its turn was cancelled or timed out."""

Results: TypeAlias = tuple[ToolResultBlock, ...]


async def run_tools(
    calls: Sequence[ToolUseBlock],
    tools: Sequence[Tool],
    shared: ToolRoundContext,
    *,
    interrupted: Callable[[Results], object] | None = None,
) -> ToolRound:
    """Run the calls of one reply concurrently.

    Args:
        calls: The calls.
        tools: The tools of the session.
        shared: The context that the calls share.
        interrupted: Receives the results if the round is cancelled. If a call did not run, its result reports
            this.
    """
    by_name = {tool.name: tool for tool in tools}
    results: dict[str, ToolResultBlock] = {}
    try:
        if len(calls) == 1:  # the usual round needs no tasks
            await _answer(calls[0], by_name, shared, results)
        else:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(_answer, call, by_name, shared, results)
    except anyio.get_cancelled_exc_class():
        if interrupted is not None:
            interrupted(tuple(results.get(call.id) or not_executed(call) for call in calls))
        raise
    return ToolRound(
        tuple(results[call.id] for call in calls if call.id in results),
        tuple(call for call in calls if call.id not in results),
    )


async def _answer(
    call: ToolUseBlock, tools: dict[str, Tool], shared: ToolRoundContext, results: dict[str, ToolResultBlock]
) -> None:
    """Add the call's result, unless the call stays open.

    The call's start and end are published even if it isn't run.
    """
    tool = tools.get(call.name)
    refusal: str | None = None
    ready: Ready | None = None
    try:
        ready = await admit(call, tool, tools, shared)
    except Waits:
        return
    except Refused as refused:
        refusal = str(refused)
    shared.tell(ToolStarted(tool_use_id=call.id, tool_name=call.name))
    started = shared.clock.monotonic_ns()
    result = ToolResultBlock(call.id, INTERRUPTED, is_error=True)
    try:
        if refusal is not None or tool is None or ready is None:
            result = ToolResultBlock(call.id, refusal or "", is_error=True)
        else:
            result = await _run(call, tool, ready, shared)
    finally:
        results[call.id] = result
        latency = (shared.clock.monotonic_ns() - started) // 1_000_000
        shared.tell(
            ToolFinished(tool_use_id=call.id, tool_name=call.name, is_error=result.is_error, latency_ms=latency)
        )


# --- Running a call ---


async def _run(call: ToolUseBlock, tool: Tool, ready: Ready, shared: ToolRoundContext) -> ToolResultBlock:
    assert tool.handler is not None
    seconds = shared.timeout_seconds if tool.timeout is None else tool.timeout
    controller = AbortController() if tool.handler.injected else None
    context = None if controller is None else _context(call, controller, shared)
    why = "the turn was cancelled"
    done = False
    caller = None if shared.caller is None else shared.caller(call)
    inherited = current_tool.set(caller)
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
        _log.warning("tool_failed", error, tool=call.name, error=type(error).__name__)
        text = str(error)
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return ToolResultBlock(call.id, text, is_error=True)
    finally:
        current_tool.reset(inherited)
        if caller is not None:
            caller.end("" if done else f"the call of the tool {call.name!r} was cut off: {why}")
        if context is not None:
            context.close()
        if controller is not None and not done:
            controller.abort(why)


def _context(call: ToolUseBlock, controller: AbortController, shared: ToolRoundContext) -> ToolContext:
    return ToolContext(
        tool_call_id=call.id,
        tool_name=call.name,
        messages=shared.messages,
        session_id=shared.session_id,
        turn_id=shared.turn_id,
        abort_signal=controller.signal,
        report=shared.tell,
    )


async def _in_thread(handler: Handler, ready: Ready, context: ToolContext | None) -> object:
    result = await run_in_thread(lambda: handler.call(ready, context))
    return await result if inspect.isawaitable(result) else result


async def _awaited(handler: Handler, ready: Ready, context: ToolContext | None) -> object:
    try:
        return await cast("Awaitable[object]", handler.call(ready, context))
    except SystemExit as error:  # otherwise the exception would end the event loop
        raise RuntimeError(f"the tool raised SystemExit: {error}") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling()):
            raise
        raise RuntimeError("the tool waited for a task that was cancelled") from None


class _Slot:
    """A slot for a plain function. The wait for a slot is not part of the tool's time limit."""

    def __init__(self) -> None:
        try:
            self._limiter = _slots.get()
        except LookupError:
            self._limiter = anyio.CapacityLimiter(MAX_THREADS)
            _slots.set(self._limiter)
        self._is_admitted = False

    async def wait(self) -> None:
        try:
            # This saves a cycle of the event loop if a slot is free.
            self._limiter.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        self._is_admitted = True

    def __enter__(self) -> _Slot:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_admitted:
            self._limiter.release_on_behalf_of(self)
