"""What is under way in an engine, so that closing it ends all of it in order, and with one and the same error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import anyio

from bus.errors import CancelledError

CLOSED = "the engine was closed while this call ran"


class InFlight:
    """Turns, and calls without one. closing: the engine is on its way down, so nothing more may begin."""

    def __init__(self) -> None:
        self.closing = False
        self._cancels: dict[object, Callable[[], object]] = {}
        self._idle: anyio.Event | None = None  # there while somebody waits for it

    def __len__(self) -> int:
        return len(self._cancels)

    def add(self, what: object, cancel: Callable[[], object]) -> None:
        """cancel: asks it to end; it is then to `remove` itself."""
        self._cancels[what] = cancel

    def remove(self, what: object) -> None:
        """It is over. Idempotent."""
        self._cancels.pop(what, None)
        if not self._cancels and self._idle is not None:
            self._idle.set()

    @contextlib.contextmanager
    def call(self, what: str = CLOSED) -> Iterator[None]:
        """What stands in it is cancelled when the engine is closed. Raises CancelledError then, with this text."""
        scope = anyio.CancelScope()
        self.add(scope, scope.cancel)
        try:
            with scope:
                yield
        finally:
            self.remove(scope)
        if scope.cancelled_caught:
            raise CancelledError(what)

    async def end(self, seconds: float) -> None:
        """Cancel all of it, and wait for its end, so long at most."""
        self.closing = True
        for cancel in tuple(self._cancels.values()):
            cancel()
        if self._cancels:
            self._idle = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._idle.wait()
