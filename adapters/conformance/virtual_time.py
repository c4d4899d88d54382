"""Time that passes only when nobody has anything to do: waits end at once, and in the right order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, moves the loop's clock there."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # no timer: only another thread or a socket can go on
        ready = super().select(0)
        if not ready and timeout > 0:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time, starting at 0. Not for sockets or threads."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of `to_thread`. They end in real time, over which no virtual one may run out.

        Args:
            timeout: Seconds, since Python 3.12. There is no limit here.
        """
        await super().shutdown_default_executor()


class FakeClock:
    """A `bus.clock.Clock` in the hands of a test. Ids are counted.

    Inside a loop, virtual or trio's MockClock, its times follow the loop's. `advance` moves it ahead of them.

    Args:
        randomness: The number that `random` gives, in [0, 1).
        epoch_us: The time at which it begins, in microseconds since the epoch.
    """

    def __init__(self, *, randomness: float = 0.5, epoch_us: int = 1_700_000_000_000_000) -> None:
        self.randomness = randomness
        self._epoch_us = epoch_us
        self._advanced_ns = 0
        self._ids = 0

    def advance(self, seconds: float) -> None:
        """Move its times ahead by so many seconds, which nobody waits for."""
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
            import trio.testing  # not one of our own dependencies: only whoever asks for it needs it

            return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}
        case "uvloop":
            return "asyncio", {"use_uvloop": True}
        case "asyncio" | "trio":
            return name, {}
        case _:
            raise ValueError(f"no backend {name!r}; there are {', '.join(BACKENDS)}")


def run_virtual(function: Callable[[], Awaitable[T]], name: str = "virtual-asyncio") -> T:
    """Run an async function to its end on virtual time, for tests that can't be async themselves."""
    kind, options = backend(name)
    return anyio.run(function, backend=kind, backend_options=options)
