"""The actor around a `WriterCore`, and the requests that it answers."""

from __future__ import annotations

import msgspec

from callboard.bus.actors.actor import WorkActor

from .writer import WriterCore


class Flush(msgspec.Struct, frozen=True):
    """Ask a `TraceWriter` for this, and the answer (None) comes when all before it is committed."""


class TraceWriter(WorkActor):
    """The actor around a `WriterCore`, so that a crash of the writer is seen, counted and mended.

    Args:
        core: The core, which `WriterCore.for_bus` has made once. Every incarnation of the actor is given the same
            core, which keeps the events that are not committed yet.
    """

    def __init__(self, core: WriterCore) -> None:
        super().__init__(core.run, "trace writer")
        self.core = core

    async def receive(self, message: object) -> object:
        """Takes `Flush`. Raises TypeError for anything else."""
        if isinstance(message, Flush):
            await self.core.flush()
            return None
        return await super().receive(message)

    async def flush(self) -> None:
        """The same as `WriterCore.flush`."""
        await self.core.flush()

    async def stopping(self) -> None:
        await self.core.close()
