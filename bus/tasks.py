"""Tasks of an actor. A task fails alone; its handle holds the result.

    not started  the task is made, and its first step has not run
    running      its coroutine runs; `cancel` requests its end
    done         it has a result or an exception, and its waiters return

A task that is cancelled before its first step never runs. Some libraries raise a CancelledError although no
cancellation was requested. Treated as a cancellation, such an exception would end every task on its way. A
cancellation is real only if its source is a cancel scope around the task or the task's `cancel()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import anyio
import anyio.abc
import anyio.lowlevel

from .backend import LoopSignal, Signal, new_signal, on_asyncio, scope_on_asyncio
from .errors import ActorStopped, CallboardError, TaskCancelled
from .log import Log

T = TypeVar("T")

_log = Log("bus.task")


class LeakedCancellation(RuntimeError):
    """A call raised CancelledError although no cancellation was requested."""


def really_cancelled() -> bool:
    """Whether a scope around the running task was cancelled, or the task itself."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no asyncio loop: this is trio, which has scopes only
        return False
    return task is not None and task.cancelling() > 0


async def without_leak(awaitable: Awaitable[T]) -> T:
    """Await the result. Convert a CancelledError that was not requested to `LeakedCancellation`."""
    try:
        return await awaitable
    except anyio.get_cancelled_exc_class() as error:
        if really_cancelled():
            raise
        raise LeakedCancellation(f"a cancellation escaped its scope: {error!r}") from error


def unwrapped(error: Exception) -> Exception:
    """Return the exception inside a group with a single exception. Return any other exception unchanged."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def describe(error: BaseException, limit: int = 500) -> str:
    """``Type: text``, cut to `limit` characters."""
    text = str(error)
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:limit]


def origin(error: BaseException, frames: int = 6) -> list[str]:
    """The lines where an exception was raised, innermost last.

    Values of locals are left out, because they could contain a key.
    """
    lines: list[str] = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        lines.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return lines[-frames:]


def stack_of(coroutine: object) -> list[str]:
    """The lines at which a coroutine is suspended, outermost first, on any backend."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < 50:
        for prefix in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{prefix}_frame", None)
            if frame is not None:
                lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
                coroutine = getattr(coroutine, f"{prefix}_await", None) or getattr(
                    coroutine, f"{prefix}_yieldfrom", None
                )
                break
        else:
            break
    return lines


def current_coroutine() -> object:
    """The outermost coroutine of the running task, for `stack_of`."""
    return anyio.get_current_task().coro


class TaskHandle(Generic[T]):
    """The handle of an actor's task, made by `ActorRef.spawn`.

    Args:
        name: The task's name.
        scope: The scope that the task enters.
    """

    def __init__(self, name: str, scope: anyio.CancelScope) -> None:
        self.name = name
        """The task's name, for logs."""
        self._scope = scope
        self._cancelled = False
        self._done = False
        self._value: T  # set when the task has ended without an error
        self._error: Exception | None = None
        self._signal: Signal | None = None
        self._coroutine: object = None
        self._body: Coroutine[object, object, None] | None = None  # the coroutine, until it starts
        self._task: asyncio.Task[None] | None = None  # on asyncio; a reference, because asyncio keeps none
        self.runs_here = False
        """Whether the work runs inside another task, see `ActorRef.hold`."""

    @property
    def done(self) -> bool:
        """True if the task has ended, so that `wait` does not block."""
        return self._done

    def cancel(self) -> None:
        """Cancel the task without waiting. A task that is cancelled or done is not changed."""
        self._cancelled = True
        self._scope.cancel()

    def abandon(self) -> None:
        """Make all waiters raise TaskCancelled now. The task itself runs until it is cancelled."""
        if not self._done:
            self._error = TaskCancelled(f"task {self.name} was cancelled")
            self._done = True
            if self._signal is not None:
                self._signal.set()

    async def wait(self) -> T:
        """Wait for the task's result, or raise its exception.

        If a cancelled task still returns or raises, that is its result. Cancelling the waiter does not cancel the
        task. Any number of tasks may wait.

        Raises:
            TaskCancelled: The task was cancelled through its handle.
            ActorStopped: The task's actor crashed or stopped first.
        """
        if self._done:
            await anyio.lowlevel.checkpoint()
        while not self._done:
            if self._signal is None:
                self._signal = new_signal() if self._task is None else LoopSignal(self._task.get_loop())
            await self._signal.wait()
        return self.result()

    def run_here(self) -> Coroutine[object, object, None]:
        """Run a call of `ActorRef.hold` in the awaiting task. Afterwards `result` returns or raises."""
        assert self._body is not None, f"{self.name} has already run"
        self.runs_here = True
        return self._body

    async def over(self) -> None:
        """Wait until the task is done. The task's exception is not raised."""
        with contextlib.suppress(Exception):
            await self.wait()

    def result(self) -> T:
        """Return the result or raise the same exception as `wait`. The task must be done."""
        assert self._done, f"task {self.name} is not done"
        if self._error is not None:
            raise self._error
        return self._value

    def stack(self) -> list[str]:
        """The lines at which the task is suspended."""
        return stack_of(self._coroutine)

    def _never_ran(self) -> None:
        """Settle a task that was cancelled before its first step, for example by the end of the event loop."""
        if not self._done:
            if self._body is not None:
                self._body.close()
            self._error = ActorStopped(f"the actor of task {self.name} stopped before the task started")
            self._done = True
            if self._signal is not None:
                self._signal.set()

    async def _run(self, call: Callable[[], Awaitable[T]], finished: Callable[[TaskHandle[T]], None]) -> None:
        """The body of the task. It raises only the cancellation of a scope around it."""
        self._coroutine, self._body = self._body, None
        error: Exception | None = None
        returned = False
        try:
            with self._scope:
                try:
                    self._value = await call()
                except anyio.get_cancelled_exc_class() as leaked:  # inlined from `without_leak`, to save a frame
                    if really_cancelled():
                        raise
                    raise LeakedCancellation(f"a cancellation escaped its scope: {leaked!r}") from leaked
                returned = True
        except Exception as raised:
            error = unwrapped(raised)
            if not isinstance(error, CallboardError):
                _log.error("task.crashed", task=self.name, error=describe(error), where=origin(error))
        finally:
            if not returned and error is None:
                if self._cancelled:
                    error = TaskCancelled(f"task {self.name} was cancelled")
                else:
                    error = ActorStopped(f"the actor of task {self.name} stopped before the task was done")
            self._error = error
            self._done = True
            self._coroutine = None
            if self._signal is not None:
                self._signal.set()
            finished(self)


# --- Tasks of one life ---


class Tasks:
    """The tasks of one life. Leaving the context cancels them and waits until all have ended.

    On trio, the tasks are in an anyio task group. On asyncio, they are plain asyncio tasks: a group would add a
    handle, a scope and an event to each, which costs 15 µs. A group isn't needed, because a task raises nothing
    and has a cancel scope in its handle.
    """

    def __init__(self) -> None:
        self.running: set[TaskHandle[object]] = set()
        self._group: anyio.abc.TaskGroup | None = None  # on trio
        self._new_scope: Callable[[], anyio.CancelScope] = anyio.CancelScope

    def __len__(self) -> int:
        return len(self.running)

    def spawn(self, call: Callable[[], Awaitable[T]], name: str) -> TaskHandle[T]:
        handle = self.hold(call, name)
        body = handle._body
        assert body is not None
        if self._group is not None:
            self._group.start_soon(lambda: body, name=name)
        else:
            # Not `create_task`: with an eager task factory, `create_task` would run the task before it returns.
            handle._task = asyncio.Task(body, loop=asyncio.get_running_loop(), name=name)
        return handle

    def hold(self, call: Callable[[], Awaitable[T]], name: str) -> TaskHandle[T]:
        """Return a handle for a call that runs inside another task, the task that awaits `run_here`.

        The call is cancelled when this life ends.
        """
        handle: TaskHandle[T] = TaskHandle(name, self._new_scope())
        self.running.add(cast("TaskHandle[object]", handle))
        handle._body = handle._run(call, self.running.discard)
        return handle

    def settle(self) -> None:
        """Release the waiters of tasks that never started because the event loop ended."""
        for handle in self.running:  # finished tasks have removed themselves
            handle._never_ran()

    async def __aenter__(self) -> Self:
        if on_asyncio():
            self._new_scope = scope_on_asyncio()
        else:
            self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for handle in tuple(self.running):
            handle._scope.cancel()
        if self._group is not None:
            with anyio.CancelScope(shield=True):
                await self._held_are_over()
            self._group.cancel_scope.cancel()
            return await self._group.__aexit__(kind, error, trace)
        interrupted: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while self.running:
                try:
                    if tasks := [task for handle in self.running if (task := handle._task) and not task.done()]:
                        await asyncio.wait(tasks)
                    elif not await self._held_are_over():
                        break
                # the event loop is closing and has cancelled the tasks as well
                except asyncio.CancelledError as cancelled:
                    interrupted = cancelled
        if interrupted is not None:
            raise interrupted
        return None

    async def _held_are_over(self) -> bool:
        """Wait for the calls that run inside other tasks. Returns whether there were any."""
        waiting = [handle for handle in self.running if handle.runs_here]
        for handle in waiting:
            await handle.over()
        return bool(waiting)
