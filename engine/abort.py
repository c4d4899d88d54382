"""Aborting work from anywhere: a controller, and the signal that it sends.

Within asyncio, cancelling a task is enough. A signal is for code that cancellation doesn't reach: plain functions
in threads, and callers that stop a call from another thread or before it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator

from callboard.bus.errors import CancelledError
from callboard.bus.log import Log

_log = Log("engine.abort")


class AbortSignal:
    """Whether something was given up. Read it from any thread; it never goes back.

    ``await signal`` returns the reason when it was given up.
    """

    def __init__(self) -> None:
        self._aborted = False
        self._lock = threading.Lock()
        self._watchers: dict[object, Callable[[], object]] = {}
        self._reason = ""

    @property
    def aborted(self) -> bool:
        """True once it was given up."""
        return self._aborted

    @property
    def reason(self) -> str:
        """The reason in words. Empty while `aborted` is False."""
        return self._reason

    def raise_if_aborted(self) -> None:
        """Raises CancelledError (ours, an Exception) once it was given up: for the steps of long plain work."""
        if self.aborted:
            raise CancelledError(self._reason)

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when it is given up, in the thread in which that happens. If it was given up already, call
        back now.

        Returns:
            A function that forgets the callback. It may be called any number of times.
        """
        key = object()
        with self._lock:
            if not self._aborted:
                self._watchers[key] = callback
                return lambda: self._forget(key)
        callback()
        return lambda: None

    def watch_from_loop(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Like `watch`, but called back by the running event loop, and never before this returns.

        Raises RuntimeError where none runs.
        """
        loop = asyncio.get_running_loop()

        def hand_over() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, and its callbacks with it.
                loop.call_soon_threadsafe(callback)

        return self.watch(hand_over)

    async def wait(self) -> str:
        """Return the reason when it was given up."""
        woken = asyncio.Event()
        forget = self.watch_from_loop(woken.set)
        try:
            await woken.wait()
        finally:
            forget()
        return self._reason

    def __await__(self) -> Generator[object, None, str]:
        return self.wait().__await__()

    def wait_in_thread(self, seconds: float | None = None) -> bool:
        """Sleep in a thread until it is given up. An event loop would be held up by it.

        Args:
            seconds: The longest sleep in seconds; None is without limit.

        Returns:
            True if it was given up, False if the time is over.
        """
        woken = threading.Event()
        forget = self.watch(woken.set)
        try:
            return woken.wait(seconds)
        finally:
            forget()

    def _forget(self, key: object) -> None:
        with self._lock:
            self._watchers.pop(key, None)

    def _abort(self, reason: str) -> None:
        with self._lock:
            if self._aborted:
                return
            self._reason = reason
            self._aborted = True
            watchers, self._watchers = self._watchers, {}
        for callback in watchers.values():
            try:
                callback()
            except Exception as error:  # the others must hear of it, too
                _log.error("abort.callback_failed", error, error=f"{type(error).__name__}: {error}")


class AbortController:
    """The sender of an abort: hand out `signal`, then call `abort()`, from any thread, any number of times.

    A turn with this `signal=` then raises CancelledError.
    """

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str = "the caller cancelled the call") -> None:
        """Give it up. The first reason stays. An exception of a watcher is logged."""
        self.signal._abort(reason)
