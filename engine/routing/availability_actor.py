"""The actor that tells the availability table which adapters can't be kept running."""

from __future__ import annotations

from collections.abc import Callable

from callboard.bus import Actor, ActorContext, Bus, Clock, Envelope, Subscription
from callboard.bus.events.operation import ActorStopped

from .availability import AvailabilityTable

WATCHED = ("actor.stopped",)
"""The topics that an AvailabilityActor reads. The calls tell the table themselves how they begin and end."""


class AvailabilityActor(Actor):
    """Tells the availability table of crashed adapters. It gets no messages, and owns the task that reads events.

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
            self._take(envelope)

    def _take(self, envelope: Envelope) -> None:
        match envelope.data:
            case ActorStopped(actor=actor, reason="restart limit"):
                provider = self._provider_of(actor)
                if provider is not None:
                    for change in self._table.crashed(provider, self._clock.now_us()):
                        self._bus.publish(change)
