"""Virtual time, which advances only when all tasks wait."""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread

MARK = "WORKS_IN_THREADS"
"""The name that marks a module with futures that threads settle."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the loop's clock to the next timer instead of sleeping."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer, only a thread or a socket can continue.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            if self.loop.threads_at_work():
                ready = super().select(None)
            else:
                self.loop.now += timeout
        self.loop.refuse_stranger()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time, starting at 0. Not for sockets.

    While a thread works for it, no time passes, so that thread must not wait for a timer of the loop. This covers
    the threads of anyio, of executors, of aiosqlite and of plain tools. The loop can't detect other threads, so it
    raises RuntimeError when one calls it.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._awaited: set[asyncio.Future[Any]] = set()
        self._stranger: str | None = None
        self._ending = False
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def threads_at_work(self) -> bool:
        """Whether a thread works for a waiting task."""
        try:
            borrowed = anyio.to_thread.current_default_thread_limiter().borrowed_tokens
        except RuntimeError:  # anyio has not started this loop
            borrowed = 0
        return bool(self._awaited or borrowed)

    def create_future(self) -> asyncio.Future[Any]:
        """A future. Time stops while a thread is to settle it."""
        future = super().create_future()
        if _works_in_threads(sys._getframe(1).f_globals):
            self._awaited.add(future)
            future.add_done_callback(self._awaited.discard)
        return future

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function soon. For a thread that the loop can't track, it raises RuntimeError."""
        caller = threading.current_thread()
        known = caller.name == "AnyIO worker thread" or _works_in_threads(getattr(callback, "__globals__", {}))
        if self.is_running() and not (known or self._ending or _runs_here(self)):
            self._stranger = caller.name
        return super().call_soon_threadsafe(callback, *args, context=context)

    def refuse_stranger(self) -> None:
        """Raise RuntimeError, once, if an untracked thread has called."""
        if (name := self._stranger) is not None:
            self._stranger = None
            raise RuntimeError(
                f"the thread {name!r} works for a loop with virtual time, which does not wait for it. "
                f"Run the test in real time, on the backend 'asyncio'"
            )

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of `to_thread`, which end in real time.

        Args:
            timeout: Seconds, since Python 3.12. There is no limit here.
        """
        self._ending = True
        await super().shutdown_default_executor()


def _works_in_threads(module: Mapping[str, object]) -> bool:
    """Whether a module makes a future for a thread's work, and settles it by its own function.

    Our own modules are marked.

    Args:
        module: The module's names.
    """
    return module.get("__name__") in ("asyncio.futures", "aiosqlite.core") or module.get(MARK) is True


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _ClockHeldByThreads:
    """An instrument for trio: its clock stands still while a thread works."""

    def __init__(self, clock: Any, thread_limiter: Callable[[], Any]) -> None:
        self._clock = clock
        self._thread_limiter = thread_limiter

    def after_task_step(self, task: object) -> None:
        threshold = math.inf if self._thread_limiter().borrowed_tokens else 0.0
        if threshold != self._clock.autojump_threshold:
            self._clock.autojump_threshold = threshold


class FakeClock:
    """A `bus.clock.Clock` for tests. Ids are counted.

    Inside a loop, virtual or trio's MockClock, its times follow the loop's. `advance` moves it ahead of them.

    Args:
        randomness: The number that `random` gives, in [0, 1).
        epoch_us: The start time, in microseconds since the epoch.
    """

    def __init__(self, *, randomness: float = 0.5, epoch_us: int = 1_700_000_000_000_000) -> None:
        self.randomness = randomness
        self._epoch_us = epoch_us
        self._advanced_ns = 0
        self._ids = 0

    def advance(self, seconds: float) -> None:
        """Move its times ahead by a number of seconds, without a wait."""
        self._advanced_ns += round(seconds * 1e9)

    def monotonic_ns(self) -> int:
        try:
            loop_ns = round(anyio.current_time() * 1e9)
        except RuntimeError:  # no loop runs (anyio's own error, and sniffio's, are kinds of it)
            loop_ns = 0
        return self._advanced_ns + loop_ns

    def now_us(self) -> int:
        return self._epoch_us + self.monotonic_ns() // 1000

    def new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._ids:026d}"

    def random(self) -> float:
        return self.randomness


Backend = tuple[str, dict[str, object]]

BACKENDS = ("virtual-asyncio", "virtual-trio", "asyncio", "uvloop", "trio")


def backend(name: str) -> Backend:
    """The backend for anyio. Each has a fresh clock."""
    match name:
        case "virtual-asyncio":
            return "asyncio", {"loop_factory": VirtualLoop}
        case "virtual-trio":
            import trio.testing  # not a dependency: only needed on request

            clock = trio.testing.MockClock(autojump_threshold=0)
            limiter = trio.to_thread.current_default_thread_limiter
            return "trio", {"clock": clock, "instruments": [_ClockHeldByThreads(clock, limiter)]}
        case "uvloop":
            return "asyncio", {"use_uvloop": True}
        case "asyncio" | "trio":
            return name, {}
        case _:
            raise ValueError(f"unknown backend {name!r}. Expected {', '.join(BACKENDS)}")


def run_virtual(function: Callable[[], Awaitable[T]], name: str = "virtual-asyncio") -> T:
    """Run an async function on virtual time, for tests that can't be async."""
    kind, options = backend(name)
    return anyio.run(function, backend=kind, backend_options=options)
