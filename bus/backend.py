"""Primitives for asyncio and trio: signals, locks, time and scopes.

anyio detects the async library on every call. The detection costs more than the operation itself.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Protocol, Self

import anyio

# --- Library and time ---


def on_asyncio() -> bool:
    """Whether the running task is asyncio's. This is false for a trio task in trio's guest mode."""
    return _asyncio_task() is not None


def _asyncio_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def time_source() -> Callable[[], float]:
    """Return a function for the event loop's time in seconds, for a task that needs the time often."""
    task = _asyncio_task()
    return anyio.current_time if task is None else task.get_loop().time


def current_time() -> float:
    """The event loop's time in seconds, equal to `anyio.current_time`."""
    return time_source()()


# --- Signals and locks ---


class Signal(Protocol):
    """A flag that tasks wait for until another task sets it. It is never cleared."""

    def set(self) -> None: ...
    async def wait(self) -> object: ...


class LoopSignal:
    """A signal on asyncio.

    anyio's event costs 2 µs more for every wait. A call waits several times, and once per token. asyncio's event
    contains a deque, which is larger than all other data of a waiting stream.
    """

    __slots__ = ("_is_set", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_set = False
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        if self._is_set:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)


class LoopLock:
    """A lock on asyncio. Tasks get it in the order of their requests.

    anyio's lock costs 4 µs more: it records its owner and checks for cancellation. asyncio's lock is bound to the
    event loop of its first wait.
    """

    __slots__ = ("_locked", "_waiters")

    def __init__(self) -> None:
        self._locked = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for the lock. Return immediately if it is free."""
        if not self._locked:
            self._locked = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self._waiters:
                self._waiters.remove(turn)
            elif not turn.cancelled():  # the lock was passed to this task just before the task was cancelled
                self.release()
            raise

    def release(self) -> None:
        """Pass the lock to the task that has waited longest."""
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._locked = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


def new_signal() -> Signal:
    """Make an unset signal. Call this in the task that will wait for it."""
    task = _asyncio_task()
    return LoopSignal(task.get_loop()) if task is not None else anyio.Event()


class Notice:
    """A signal that also calls a function when it is set."""

    def __init__(self, callback: Callable[[], object], inner: Signal | None) -> None:
        self._callback = callback
        self._inner = inner

    def set(self) -> None:
        self._callback()
        if self._inner is not None:
            self._inner.set()

    async def wait(self) -> object:
        if self._inner is None:
            self._inner = new_signal()
        return await self._inner.wait()


# --- Cancel scopes ---


@cache
def scope_on_asyncio() -> type[anyio.CancelScope]:
    """The class of anyio's scopes on asyncio. Call it in a task of asyncio only."""
    return type(anyio.CancelScope())


def new_scope(deadline: float = math.inf) -> anyio.CancelScope:
    """A cancel scope of anyio's, not entered yet."""
    return (anyio.CancelScope if _asyncio_task() is None else scope_on_asyncio())(deadline=deadline)


class MovingDeadline:
    """A scope's deadline that moves whenever there is progress. A scope would reset its timer each time. This
    class checks the deadline only when the timer fires.
    """

    def __init__(self, scope: anyio.CancelScope | WaitScope, at: float) -> None:
        task = _asyncio_task()
        self._scope = scope
        self._loop = None if task is None else task.get_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf
        self.move(at)

    def move(self, at: float) -> None:
        self._at = at
        if self._loop is None:
            self._scope.deadline = at
        elif self._timer is None or at < self._timer.when():
            self._set(self._loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop()
        self._timer = None if self._at == math.inf else loop.call_at(self._at, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._at <= loop.time():
            self._scope.cancel()
        else:
            self._set(loop)


_MOST_KEPT = 64
"""The number of idle scopes that a pool keeps. The limit frees their memory after a peak of concurrent waits."""


class WaitScope:
    """The scope of one wait at a time, at a third of the cost of anyio's. `WaitScopes.until` enters it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: list[WaitScope]) -> None:
        self.loop = loop
        self._pool = pool
        self._deadline = math.inf
        self._task: asyncio.Task[object] | None = None  # the waiting task
        self._cancelling = 0  # the task's cancellation requests at the start of its wait
        self._waits = 0
        self._delivered = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def deadline(self) -> float:
        """The time of the cancellation, on the event loop's clock."""
        return self._deadline

    @deadline.setter
    def deadline(self, at: float) -> None:
        self._deadline = at
        if at != math.inf and (self._timer is None or at < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at, self._look)

    def cancel(self) -> None:
        self._cancel(self._waits)

    def _cancel(self, wait: int) -> None:
        task = self._task
        if task is None or wait != self._waits or self._delivered:
            return
        # the task isn't waiting, so a cancellation would affect its next wait, which may be unrelated
        if asyncio.current_task(self.loop) is task:
            self.loop.call_soon(self._cancel, wait)
        else:
            self._delivered = True
            task.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._deadline <= self.loop.time():
            self.cancel()
        else:
            self.deadline = self._deadline

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task(self.loop)
        assert task is not None
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        delivered, self._delivered = self._delivered, False
        self._waits += 1
        if len(self._pool) < _MOST_KEPT:
            self._pool.append(self)
        elif self._timer is not None:
            self._timer.cancel()
        if not delivered or task is None:
            return False
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError


class WaitScopes:
    """A pool of `WaitScope`, so that a wait rarely creates a scope. It serves one event loop at a time."""

    def __init__(self) -> None:
        self._pool: list[WaitScope] = []

    def until(self, at: float) -> WaitScope:
        """A scope to enter immediately, which is cancelled at the event loop's time `at`."""
        loop = asyncio.get_running_loop()
        scope = self._pool.pop() if self._pool else WaitScope(loop, self._pool)
        if scope.loop is not loop:  # the scope belongs to an ended loop
            self._pool.clear()
            scope = WaitScope(loop, self._pool)
        scope.deadline = at
        return scope
