"""The actor around a `TraceShipper`, so that its crash is seen, counted and mended."""

from __future__ import annotations

import msgspec

from callboard.bus.actors.actor import Actor, ActorContext

from .shipper import TraceShipper


class _Failed(msgspec.Struct, frozen=True):
    error: Exception


class ShippingActor(Actor):
    """The actor.

    Args:
        shipper: The shipper, which is made once and given to every incarnation of the actor.
    """

    def __init__(self, shipper: TraceShipper) -> None:
        self.shipper = shipper

    async def started(self, context: ActorContext) -> None:
        async def ship() -> None:
            try:
                await self.shipper.run()
            except Exception as error:
                context.ref.tell(_Failed(error))

        context.spawn(ship, name="ship")

    async def receive(self, message: object) -> object:
        """Takes nothing from outside. Raises TypeError."""
        if isinstance(message, _Failed):
            raise message.error
        raise TypeError(f"the trace shipper does not understand {type(message).__name__}")
