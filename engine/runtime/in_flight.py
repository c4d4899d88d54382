"""The turns and calls in progress, and the ways to cancel them.

A turn ends early if it is cancelled, its signal is aborted, its time is up, or the engine is closed. Closing the
engine ends all turns and calls in order, with the same error. An `AbortController` has such a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from callboard.bus import CallboardError, WrongLoop
from callboard.bus.backend import scope_on_asyncio
from callboard.bus.errors import AdapterError, CancelledError, RequestTimeoutError
from callboard.bus.log import Log

_log = Log("engine.abort")


class AbortSignal:
    """A signal that work should stop. Any thread may read it. It is never reset.

    ``await signal`` waits for the abort, and returns its reason.
    """

    def __init__(self) -> None:
        self._aborted = False
        self._lock = threading.Lock()
        self._watchers: dict[object, Callable[[], object]] = {}
        self._reason = ""

    @property
    def aborted(self) -> bool:
        """True after the abort."""
        return self._aborted

    @property
    def reason(self) -> str:
        """The text of the reason. Empty while `aborted` is False."""
        return self._reason

    def raise_if_aborted(self) -> None:
        """Raise Callboard's CancelledError, an Exception, after the abort.

        Call this between steps of long work.
        """
        if self.aborted:
            raise CancelledError(self._reason)

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call a function at the abort, in the thread that aborts. If the signal is already aborted, the function
        is called immediately.

        Returns:
            A function that removes the callback. It may be called any number of times.
        """
        key = object()
        with self._lock:
            if not self._aborted:
                self._watchers[key] = callback
                return lambda: self._forget(key)
        callback()
        return lambda: None

    def watch_from_loop(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Like `watch`, but the function is called by the running event loop, and never before this method
        returns.

        Raises RuntimeError if no loop runs.
        """
        loop = asyncio.get_running_loop()

        def hand_over() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so its callbacks no longer exist
                loop.call_soon_threadsafe(callback)

        return self.watch(hand_over)

    async def wait(self) -> str:
        """Wait for the abort, and return its reason."""
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
        """Block this thread until the signal is aborted. Do not call it in an event loop's thread.

        Args:
            seconds: The maximum wait in seconds; None means no limit.

        Returns:
            True after an abort, False if the time is up.
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
            except Exception as error:  # the other callbacks must be called, too
                _log.error("abort.callback_failed", error, error=f"{type(error).__name__}: {error}")


class AbortController:
    """The sender of an abort. Pass its `signal` to calls, then call `abort()` from any thread.

    A turn with this `signal=` then raises CancelledError. `abort()` may be called any number of times.
    """

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str = "the caller cancelled the call") -> None:
        """Abort. If it was called before, the first reason is kept. An exception of a watcher is logged."""
        self.signal._abort(reason)


def require_asyncio() -> None:
    """Check that an asyncio event loop is running. Raises CallboardError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "an engine needs a running event loop of asyncio or uvloop (only adapters, bus and streams "
            "also run on trio). Call this in a coroutine, or use generate_sync(), stream_sync() and run_sync()"
        ) from None


def require_loop(owner_loop: asyncio.AbstractEventLoop, instead: str = "") -> None:
    """Check that the running event loop is this one. Raises WrongLoop."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return  # no event loop runs here, so this code cannot await on the wrong loop
    if running is not owner_loop:
        raise WrongLoop(
            "this engine belongs to another event loop. Create one engine for each loop, or use it from "
            "its own loop" + (f". {instead}" if instead else "")
        )


CLOSED = "the engine was closed while this call ran"


class InFlight:
    """The turns in progress, and the calls without a turn."""

    def __init__(self) -> None:
        self.closing = False
        """Whether the engine is closing. No more work may start."""
        self.plain: dict[object, None] = {}
        """The calls without a turn that have started, in order."""
        self._cancels: dict[object, Callable[[], object]] = {}
        self._idle: anyio.Event | None = None  # Set while a task waits for it.

    def __iter__(self) -> Iterator[object]:
        """The turns and the scopes of calls without a turn, in the order of their start."""
        return iter(tuple(self._cancels))

    def __len__(self) -> int:
        return len(self._cancels)

    def add(self, what: object, cancel: Callable[[], object]) -> None:
        self._cancels[what] = cancel

    def remove(self, what: object) -> None:
        """Remove a turn or call that has ended. A second call does nothing."""
        self._cancels.pop(what, None)
        if not self._cancels and self._idle is not None:
            self._idle.set()

    @contextlib.contextmanager
    def call(self, what: str = CLOSED) -> Iterator[Callable[[], object]]:
        """A context that is cancelled when the engine is closed, or when the yielded function is called.

        A cancelled block raises CancelledError.
        """
        scope = anyio.CancelScope()
        self.add(scope, scope.cancel)
        try:
            with scope:
                yield scope.cancel
        finally:
            self.remove(scope)
        if scope.cancelled_caught:
            raise CancelledError(what)

    async def end(self, seconds: float) -> None:
        """Cancel everything in progress, and wait at most this many seconds for it to end."""
        self.closing = True
        for cancel in tuple(self._cancels.values()):
            cancel()
        if self._cancels:
            self._idle = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._idle.wait()


MANAGER_ENDED = "the engine's session manager stopped while this call ran"


class TurnScope:
    """The cancel scope of one turn.

    Args:
        seconds: The turn's time in seconds; None means no limit.
        signal: The signal that ends the turn when it is aborted.
        in_flight: The engine's turns in progress.
    """

    def __init__(self, seconds: float | None, signal: AbortSignal | None, in_flight: InFlight) -> None:
        self.seconds = seconds
        self.deadline = math.inf
        """The turn's deadline, in the event loop's time. Set when the turn runs."""
        self.cancelled = False
        self._why = ""
        self._forget: Callable[[], object] | None = None  # stops watching the signal
        self._signal = signal
        self._in_flight = in_flight
        require_asyncio()
        self._scope = scope_on_asyncio()()

    def enter(self, cancel: Callable[[], object]) -> Self:
        """The context of the turn's work, for a `with` statement. `cancel` is called when the signal is aborted.

        The block raises CancelledError if the turn was cancelled or aborted, or the engine was closed. It raises
        RequestTimeoutError if the turn's time was up.
        """
        if self._signal is not None:
            self._forget = self._signal.watch_from_loop(cancel)
        if self.seconds is not None:
            self.deadline = self._scope.deadline = anyio.current_time() + self.seconds
        return self

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            cut = self._scope.__exit__(kind, error, trace)
        finally:
            if self._forget is not None:
                self._forget()
        cancelled = CancelledError("the turn was cancelled") if cut else error
        if isinstance(cancelled, CancelledError):
            ending = self._ending(cancelled)
            if ending is error:
                return
            if ending is not cancelled:
                ending.content, ending.usage, ending.cost = cancelled.content, cancelled.usage, cancelled.cost
                raise ending from cancelled
            raise ending
        if error is not None and isinstance(error, anyio.get_cancelled_exc_class()):
            # The turn's parent task has crashed or ends for another reason.
            raise CancelledError(CLOSED if self._in_flight.closing else MANAGER_ENDED) from None

    def cancel(self, why: str) -> None:
        self.cancelled = True
        self._why = self._why or why

    def cut(self) -> None:
        """Cancel the turn's current wait."""
        self._scope.cancel()

    async def leave_if_cut(self) -> None:
        """End the turn here if it was cancelled before it started, or its time was up."""
        if self._scope.cancel_called:
            await anyio.lowlevel.checkpoint_if_cancelled()

    def hold_time(self, stopped: bool) -> None:
        """Suspend the deadline during a call, because the call has the same deadline and ends itself."""
        if self.seconds is not None:
            self._scope.deadline = math.inf if stopped else self.deadline

    def _ending(self, cancelled: CancelledError) -> AdapterError:
        """The error for a cancelled turn, depending on the reason."""
        if self._signal is not None and self._signal.aborted:
            return CancelledError(f"the turn was aborted: {self._signal.reason}", request_id=cancelled.request_id)
        if self._why:
            return CancelledError(self._why, request_id=cancelled.request_id)
        if self.cancelled or anyio.current_time() < self.deadline:
            return cancelled
        what = f"the turn took longer than {self.seconds:g} s"
        return RequestTimeoutError(what, request_id=cancelled.request_id, retryable=False)
