"""An adapter at work: its actor, what bounds its calls, and who still needs it."""

from __future__ import annotations

import anyio

from bus import ActorRef

from .registry import AdapterEntry


class RunningAdapter:
    """A provider's actor, what bounds its calls, and how many turns use it."""

    def __init__(self, entry: AdapterEntry, ref: ActorRef, limiter: anyio.CapacityLimiter) -> None:
        self.entry = entry
        self.ref = ref
        self.limiter = limiter
        self._users = 0
        self._idle = anyio.Event()
        self._idle.set()

    def acquire(self) -> None:
        self._users += 1
        if self._users == 1:
            self._idle = anyio.Event()

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no turn uses it."""
        await self._idle.wait()
