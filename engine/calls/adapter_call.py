"""A call that an adapter makes: it waits for a slot, and asks the adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from callboard.adapters.actor import AdapterActor, CallHandle
from callboard.adapters.usage.estimate import upper_end
from callboard.bus import ActorRef
from callboard.bus.errors import CancelledError

from ..budgets.account import Amount
from ..budgets.reservation_names import reservation
from ..budgets.worst_case import Priced
from ..rate_limits.permit import Permit
from ..runtime.adapters import CallSlots, RunningAdapter
from .events import CallContext, CallEvents

T = TypeVar("T")


class AdapterCall(CallEvents):
    """The part that calls of all kinds have in common."""

    def __init__(self, context: CallContext, *, streamed: bool) -> None:
        super().__init__(context, streamed=streamed)
        assert context.running is not None
        self._running: RunningAdapter = context.running

    async def reserve(self, most: Callable[[Priced], Amount]) -> None:
        """Reserve the most that the first attempt can cost. Nothing is published of a call that has no room.

        Args:
            most: The most that it can cost, where its price is looked up there.

        Raises:
            BudgetExceededError: The call doesn't fit into a budget.
        """
        context = self.context
        runtime = context.runtime
        if not runtime.budgets:
            return
        priced = Priced(runtime.prices, context.routing.model, runtime.clock.now_us(), context.priced_as)
        name, asked = reservation(context.request_id, 1), most(priced)
        if not runtime.budgets.reserve_now(name, self.payer, asked):
            await self._await_room(name, asked)
        self.reserved = asked

    async def _await_room(self, name: str, asked: Amount) -> None:
        """Wait until there is room in all budgets, or be refused."""
        await self.context.runtime.budgets.reserve(name, self.payer, asked)

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
        await self._slot_and_turn(slots)
        try:
            actor = self._running.ref.actor
            if isinstance(actor, AdapterActor) and not getattr(actor.made, "reports_attempts", False):
                self.record_ahead()
            handle = start(self._running.ref)
            try:
                return await wait(handle)
            finally:
                handle.kill()  # which does nothing if it is done
        finally:
            slots.release()

    async def _slot_and_turn(self, slots: CallSlots) -> None:
        """Wait for a slot at a moment at which the rate limits have room."""
        permit = self._permit = self._new_permit()
        has_turn = permit.ask()
        while True:
            if not has_turn:
                await self._wait_for_turn(permit)
            if not slots.try_acquire():
                await self._patiently(lambda: slots.acquire(self.context.order))
            if permit.send():
                return
            slots.release()
            has_turn = False

    async def _patiently(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for a slot or a turn."""
        await wait()

    # -- rate limits

    def _time_left(self) -> float:
        """Seconds that the call has left."""
        return self._running.entry.config.timeout_seconds

    def _new_permit(self) -> Permit:
        context = self.context
        most = upper_end(context.estimated_input_tokens or 0), self.most_output or 0
        limits = context.runtime.rate_limits
        return limits.permit(self._running.entry, context.key or "", context.routing.model, context.order, most)

    async def _wait_for_turn(self, permit: Permit) -> None:
        """Wait until the rate limits have room, unless another model that may serve has room now.

        Raises:
            RateLimitWaitError: The wait would be too long, or another model is free.
        """
        limits, key = self.context.runtime.rate_limits, self.context.key or ""
        if any(limits.is_free(model.partition(":")[0], model, key) for model in self.context.spills_to):
            permit.give_up()
        else:
            await self._patiently(lambda: permit.wait(self._time_left()))
