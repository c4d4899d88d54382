"""The actor that feeds the availability table with the events of calls and adapters."""

from __future__ import annotations

from collections.abc import Callable

from bus import Actor, ActorContext, Bus, Clock, Envelope, LlmCallCompleted, LlmCallFailed, Subscription
from bus.events.actors import ActorStopped

from .availability import AvailabilityTable, Changes

WATCHED = ("llm.call_completed", "llm.call_failed", "actor.stopped")
"""The topics that an AvailabilityActor reads. The table is told directly how a call begins."""


class AvailabilityActor(Actor):
    """Feeds the availability table. It gets no messages; it owns the task that reads the events.

    Args:
        table: The table.
        subscription: A lossless subscription to the topics in `WATCHED`, which the engine owns.
        bus: The bus to which changes are published.
        clock: The clock.
        provider_of: Returns the provider that an actor serves; None for actors that are no adapters.
    """

    def __init__(
        self,
        table: AvailabilityTable,
        subscription: Subscription,
        bus: Bus,
        clock: Clock,
        provider_of: Callable[[str], str | None] = lambda actor: None,
    ) -> None:
        self._table = table
        self._subscription = subscription
        self._bus = bus
        self._clock = clock
        self._provider_of = provider_of

    async def started(self, context: ActorContext) -> None:
        context.spawn(self._follow, name="availability")

    async def receive(self, message: object) -> object:
        raise TypeError(f"the availability actor takes no messages, got {type(message).__name__}")

    async def _follow(self) -> None:
        async for envelope in self._subscription:
            for change in self._observe(envelope):
                self._bus.publish(change)

    def _observe(self, envelope: Envelope) -> Changes:
        now_us = self._clock.now_us()
        match envelope.data:
            case LlmCallCompleted() | LlmCallFailed() as event:
                return self._table.observe(event, now_us, request_id=envelope.request_id)
            case ActorStopped(actor=actor, reason="restart limit"):
                provider = self._provider_of(actor)
                return self._table.crashed(provider, now_us) if provider is not None else ()
            case _:
                return ()
