"""Giving something up from anywhere: a switch, and the signal that it sends.

Within asyncio cancelling a task is enough. A signal is for those whom that doesn't reach: plain functions in
threads, and callers who want to stop a call from another thread or before it has begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from bus.errors import CancelledError


class Unwatch(Protocol):
    """Forgets a callback of `AbortSignal.watch`. Idempotent."""

    def __call__(self) -> None: ...


class AbortSignal:
    """Whether something was given up. Read it from any thread; it never goes back."""

    def __init__(self) -> None:
        self._cancelled = False
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []
        self._reason = ""

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def reason(self) -> str:
        """Why, in words; empty while `cancelled` is False."""
        return self._reason

    def raise_if_cancelled(self) -> None:
        """Raises CancelledError (ours, an Exception) once it was given up: for the steps of long plain work."""
        if self.cancelled:
            raise CancelledError(self._reason)

    async def wait(self) -> None:
        """Return when it was given up."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        unwatch = self.watch(lambda: loop.call_soon_threadsafe(woken.set))
        try:
            await woken.wait()
        finally:
            unwatch()

    def wait_in_thread(self, seconds: float) -> bool:
        """Sleep in a thread, at most so long: True, at once, when it was given up. Never on an event loop."""
        woken = threading.Event()
        unwatch = self.watch(woken.set)
        try:
            return woken.wait(seconds)
        finally:
            unwatch()

    def watch(self, callback: Callable[[], object]) -> Unwatch:
        """Call back when it is given up, in whatever thread that happens; now, if it already was."""
        with self._lock:
            if not self._cancelled:
                self._watchers.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._watchers:
                self._watchers.remove(callback)

    def _abort(self, reason: str) -> None:
        with self._lock:
            if self._cancelled:
                return
            self._reason = reason
            self._cancelled = True
            watchers, self._watchers = self._watchers, []
        for callback in watchers:
            callback()


class AbortController:
    """The switch. `abort()` may be called from any thread, any number of times."""

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str = "cancelled by its caller") -> None:
        """Give it up. The first reason stays."""
        self.signal._abort(reason)
