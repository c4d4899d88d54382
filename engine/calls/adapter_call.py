"""A call that an adapter makes: it waits for a slot, and asks the adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from adapters.actor import CallHandle
from bus import ActorRef
from bus.errors import CancelledError

from ..runtime.running_adapter import RunningAdapter
from .events import CallContext, CallEvents
from .slots import CallSlots

T = TypeVar("T")


class AdapterCall(CallEvents):
    """The part that calls of all kinds have in common."""

    def __init__(self, context: CallContext, *, streamed: bool) -> None:
        super().__init__(context, streamed=streamed)
        assert context.running is not None
        self._running: RunningAdapter = context.running

    def cancelled_error(self) -> CancelledError:
        """The error of a call that was cancelled."""
        return CancelledError("the call was cancelled", request_id=self.context.request_id)

    async def _in_slot(
        self, start: Callable[[ActorRef], CallHandle[T]], wait: Callable[[CallHandle[T]], Awaitable[T]]
    ) -> T:
        """The adapter's answer. However the wait ends, the adapter's task is cancelled and the slot is given back.

        Args:
            start: Starts the call in the adapter's actor.
            wait: Waits for the answer.
        """
        slots = self._running.slots
        if not slots.try_acquire():
            await self._queue(slots)
        try:
            handle = start(self._running.ref)
            try:
                return await wait(handle)
            finally:
                handle.kill()  # which does nothing if it is done
        finally:
            slots.release()

    async def _queue(self, slots: CallSlots) -> None:
        """Wait for a slot."""
        await slots.acquire(self.context.order)
