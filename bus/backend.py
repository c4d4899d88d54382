"""The library that runs this task, asyncio or trio, and what a task needs there: signals, cancel scopes, the time.

anyio asks at every turn which library it is, which on a call's way costs more than the answer is used for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import cache
from typing import Protocol

import anyio


def on_asyncio() -> bool:
    """Whether the running task is asyncio's; trio as a guest of an asyncio loop is not."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class Signal(Protocol):
    """A flag that tasks wait for until another task sets it, once and for all."""

    def set(self) -> None: ...
    async def wait(self) -> object: ...


def new_signal() -> Signal:
    """A signal that is not set. The task that waits must make it.

    On asyncio it is asyncio's own event. The event of anyio costs 2 µs more for every wait, and each call and each
    token that comes alone is waited for a few times.
    """
    return asyncio.Event() if on_asyncio() else anyio.Event()


class Notice:
    """A signal that calls a function when it is set, besides waking the tasks that wait for it.

    Args:
        callback: The function.
        inner: A signal that tasks wait for already; None if there is none.
    """

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


def new_scope(deadline: float = math.inf) -> anyio.CancelScope:
    """A cancel scope of anyio's, not entered yet.

    Args:
        deadline: The event loop's time at which it cancels itself.
    """
    return _asyncio_scope()(deadline=deadline) if on_asyncio() else anyio.CancelScope(deadline=deadline)


def current_time() -> float:
    """The event loop's time in seconds, as `anyio.current_time` has it."""
    return asyncio.get_running_loop().time() if on_asyncio() else anyio.current_time()


@cache
def _asyncio_scope() -> type[anyio.CancelScope]:
    """The class of which anyio's scopes on asyncio are. Only for a task of asyncio's."""
    return type(anyio.CancelScope())
