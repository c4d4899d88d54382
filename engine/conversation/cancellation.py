"""The ends of a turn that come from outside: it is cancelled, its signal is aborted, its time is up, the engine
ends."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from callboard.bus.backend import scope_on_asyncio
from callboard.bus.errors import AdapterError, CancelledError, RequestTimeoutError

from ..abort import AbortSignal
from ..runtime.event_loops import require_asyncio
from ..runtime.in_flight import CLOSED, InFlight

T = TypeVar("T")

MANAGER_ENDED = "the engine's session manager stopped while this call ran"


class TurnScope:
    """The cancel scope of one turn.

    Args:
        seconds: The turn's time in seconds; None is without end.
        signal: The signal that ends the turn when it is aborted.
        in_flight: The engine's turns under way.
    """

    def __init__(self, seconds: float | None, signal: AbortSignal | None, in_flight: InFlight) -> None:
        self.seconds = seconds
        """The turn's time in seconds; None is without end."""
        self.deadline = math.inf
        """The event loop's time at which the turn's time is up, from `run` on."""
        self.cancelled = False
        """Whether somebody has asked the turn to end."""
        self._why = ""
        self._signal = signal
        self._in_flight = in_flight
        require_asyncio()
        self._scope = scope_on_asyncio()()

    async def run(self, work: Callable[[], Awaitable[T]], cancel: Callable[[], object]) -> T:
        """The result of the turn's work.

        Args:
            work: The work.
            cancel: Is called when the signal is aborted.

        Raises:
            CancelledError: The turn was cancelled or aborted, or the engine was closed.
            RequestTimeoutError: The turn's time was up.
        """
        forget = self._signal.watch_from_loop(cancel) if self._signal is not None else None
        if self.seconds is not None:
            self.deadline = self._scope.deadline = anyio.current_time() + self.seconds
        try:
            with self._scope:
                return await work()
            raise CancelledError("the turn was cancelled")
        except CancelledError as cancelled:
            ending = self._ending(cancelled)
            if ending is cancelled:
                raise
            ending.content, ending.usage, ending.cost = cancelled.content, cancelled.usage, cancelled.cost
            raise ending from cancelled
        except anyio.get_cancelled_exc_class():  # what this runs below has crashed, or ends without us
            raise CancelledError(CLOSED if self._in_flight.closing else MANAGER_ENDED) from None
        finally:
            if forget is not None:
                forget()

    def cancel(self, why: str) -> None:
        """Note that the turn is to end.

        Args:
            why: The text of its error; empty for the usual text.
        """
        self.cancelled = True
        self._why = self._why or why

    def cut(self) -> None:
        """Cancel everything that the turn waits for."""
        self._scope.cancel()

    async def leave_if_cut(self) -> None:
        """Leave the turn here if it was cut, or its time was up, before it began."""
        if self._scope.cancel_called:
            await anyio.lowlevel.checkpoint_if_cancelled()

    def hold_time(self, held: bool) -> None:
        """Take the deadline away while a call runs, because the call keeps it and ends in order. Then set it
        again."""
        if self.seconds is not None:
            self._scope.deadline = math.inf if held else self.deadline

    def _ending(self, cancelled: CancelledError) -> AdapterError:
        """The error of a turn that was cancelled, by the reason for it."""
        if self._signal is not None and self._signal.aborted:
            return CancelledError(f"the turn was aborted: {self._signal.reason}", request_id=cancelled.request_id)
        if self._why:
            return CancelledError(self._why, request_id=cancelled.request_id)
        if self.cancelled or anyio.current_time() < self.deadline:
            return cancelled
        what = f"the turn took longer than {self.seconds:g} s"
        return RequestTimeoutError(what, request_id=cancelled.request_id, retryable=False)
