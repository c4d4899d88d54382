"""The tasks below one life of an actor: each fails alone, and all end with that life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar, cast

import anyio
import anyio.abc

from ..backend import on_asyncio, scope_on_asyncio
from .task_handle import TaskHandle

T = TypeVar("T")


class Tasks:
    """The tasks of one life. While it is entered, tasks may be spawned. Leaving it cancels them and waits until
    all are over.

    On trio they are the tasks of an anyio task group. On asyncio they are asyncio's own: a group would add a
    second handle, scope and event to each, which costs 15 µs, and a turn that makes one call is two tasks. The
    protection of a group isn't needed here, because a task lets no exception out and has a cancel scope in its
    handle.
    """

    def __init__(self) -> None:
        self.running: set[TaskHandle[object]] = set()
        """The tasks that are not over."""
        self._group: anyio.abc.TaskGroup | None = None  # on trio
        self._new_scope: Callable[[], anyio.CancelScope] = anyio.CancelScope

    def __len__(self) -> int:
        return len(self.running)

    def spawn(self, call: Callable[[], Awaitable[T]], name: str) -> TaskHandle[T]:
        handle: TaskHandle[T] = TaskHandle(name, self._new_scope())
        entry = cast("TaskHandle[object]", handle)
        self.running.add(entry)
        body = handle._run(call, self.running.discard)
        handle._body = body
        if self._group is not None:
            self._group.start_soon(lambda: body, name=name)
        else:
            # Not `create_task`: with a host's eager task factory it would run the task before it returns.
            handle._task = asyncio.Task(body, loop=asyncio.get_running_loop(), name=name)
        return handle

    def hold(self, call: Callable[[], Awaitable[T]], name: str) -> TaskHandle[T]:
        """A handle whose `run_here` runs the call inside the task that awaits it. It ends with this life, too."""
        handle: TaskHandle[T] = TaskHandle(name, self._new_scope())
        self.running.add(cast("TaskHandle[object]", handle))
        handle._body = handle._run(call, self.running.discard)
        return handle

    def settle(self) -> None:
        """Answer the waiters of tasks that never began, as an ending event loop leaves them."""
        for handle in self.running:  # those that have run have taken themselves out
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
                except asyncio.CancelledError as cancelled:  # the event loop ends; it has cancelled them as well
                    interrupted = cancelled
        if interrupted is not None:
            raise interrupted
        return None

    async def _held_are_over(self) -> bool:
        """Wait for the calls that run inside tasks of others. Returns whether there were any."""
        held = [handle for handle in self.running if handle.runs_here]
        for handle in held:
            await handle.over()
        return bool(held)
