"""The turns and calls that are under way in an engine, so that closing it ends all of them in order, with one and
the same error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import anyio

from callboard.bus.errors import CancelledError

CLOSED = "the engine was closed while this call ran"


class InFlight:
    """The turns that are under way, and the calls without a turn."""

    def __init__(self) -> None:
        self.closing = False
        """Whether the engine is about to end, so that nothing more may begin."""
        self.plain: dict[object, None] = {}
        """The calls without a turn that have begun, in order."""
        self._cancels: dict[object, Callable[[], object]] = {}
        self._idle: anyio.Event | None = None  # there while somebody waits for it

    def __iter__(self) -> Iterator[object]:
        """The turns and the scopes of calls without a turn, in the order of their beginning."""
        return iter(tuple(self._cancels))

    def __len__(self) -> int:
        return len(self._cancels)

    def add(self, what: object, cancel: Callable[[], object]) -> None:
        """Add a turn or a call.

        Args:
            what: The turn or the call.
            cancel: A function that asks it to end. It must then `remove` itself.
        """
        self._cancels[what] = cancel

    def remove(self, what: object) -> None:
        """Remove a turn or a call that is over. A second call does nothing."""
        self._cancels.pop(what, None)
        if not self._cancels and self._idle is not None:
            self._idle.set()

    @contextlib.contextmanager
    def call(self, what: str = CLOSED) -> Iterator[None]:
        """A block that is cancelled when the engine is closed.

        Raises:
            CancelledError: The engine was closed; `what` is the text.
        """
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
        """Cancel everything that is under way, and wait at most these seconds for its end."""
        self.closing = True
        for cancel in tuple(self._cancels.values()):
            cancel()
        if self._cancels:
            self._idle = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._idle.wait()
