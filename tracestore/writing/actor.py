"""The actor around a `WriterCore`, and the requests that it answers."""

from __future__ import annotations

import msgspec

from callboard.bus.actors.actor import Actor, ActorContext

from .writer import WriterCore


class Flush(msgspec.Struct, frozen=True):
    """Ask a `TraceWriter` for this, and the answer (None) comes when all before it is committed."""


class _PumpFailed(msgspec.Struct, frozen=True):
    error: Exception


class TraceWriter(Actor):
    """The actor around a `WriterCore`, so that a crash of the writer is seen, counted and mended.

    Args:
        core: The core, which `WriterCore.for_bus` has made once. Every incarnation of the actor is given the same
            core, which keeps the events that are not committed yet.
    """

    def __init__(self, core: WriterCore) -> None:
        self.core = core

    async def started(self, context: ActorContext) -> None:
        async def pump() -> None:
            try:
                await self.core.run()
            except Exception as error:
                # A task fails alone; that this one has failed is a crash of the writer.
                context.ref.tell(_PumpFailed(error))

        context.spawn(pump, name="pump")

    async def receive(self, message: object) -> object:
        """Takes `Flush`. Raises TypeError for anything else."""
        match message:
            case Flush():
                await self.core.flush()
                return None
            case _PumpFailed(error=error):
                raise error
            case _:
                raise TypeError(f"the trace writer does not understand {type(message).__name__}")

    async def flush(self) -> None:
        """The same as `WriterCore.flush`."""
        await self.core.flush()

    async def stopping(self) -> None:
        await self.core.close()
