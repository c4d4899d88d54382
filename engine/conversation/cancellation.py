"""What ends a turn from outside: whoever cancels it, its signal, its time, and the end of the engine."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from bus.errors import AdapterError, CancelledError, RequestTimeoutError

from ..abort import AbortSignal
from ..runtime.event_loops import require_asyncio
from ..runtime.in_flight import CLOSED, InFlight

T = TypeVar("T")

MANAGER_ENDED = "the engine's session manager stopped while this call ran"


class TurnScope:
    """seconds: the turn's time, None is without end. deadline: when it is over, in the event loop's time, which is
    known from `run` on. cancelled: somebody has asked it to end.
    """

    def __init__(self, seconds: float | None, signal: AbortSignal | None, in_flight: InFlight) -> None:
        self.seconds = seconds
        self.deadline = math.inf
        self.cancelled = False
        self._why = ""
        self._signal = signal
        self._in_flight = in_flight
        require_asyncio()
        self._scope = anyio.CancelScope()

    async def run(self, work: Callable[[], Awaitable[T]], cancel: Callable[[], object]) -> T:
        """What the turn gives. cancel: called when the signal is aborted. Raises CancelledError, ours, or
        RequestTimeoutError, when it was ended from outside.
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
        """Note that it is to end. why: the text of its error, if it is not to be the usual one."""
        self.cancelled = True
        self._why = self._why or why

    def cut(self) -> None:
        """Cancel whatever the turn waits for."""
        self._scope.cancel()

    def hold_time(self, held: bool) -> None:
        """While a call runs it keeps the turn's time itself, so that it ends in order."""
        self._scope.deadline = math.inf if held else self.deadline

    def _ending(self, cancelled: CancelledError) -> AdapterError:
        """What a turn raises that was cancelled, by whoever it was."""
        if self._signal is not None and self._signal.aborted:
            return CancelledError(f"the turn was aborted: {self._signal.reason}", request_id=cancelled.request_id)
        if self._why:
            return CancelledError(self._why, request_id=cancelled.request_id)
        if self.cancelled or anyio.current_time() < self.deadline:
            return cancelled
        what = f"the turn took longer than {self.seconds:g} s"
        return RequestTimeoutError(what, request_id=cancelled.request_id, retryable=False)
