"""A running adapter: its actor, the bounds of its calls, and its users."""

from __future__ import annotations

from functools import cached_property

import anyio

from callboard.bus import ActorRef

from ..calls.slots import CallSlots
from ..models.entries import AdapterEntry, ModelEntry
from ..models.published_prices import name_at, published_provider

RESTART_SECONDS = 6.0
"""How long a turn waits for an actor that is being restarted: a little longer than the longest backoff."""


async def come_up(ref: ActorRef) -> None:
    """Wait for the restart of an actor that has crashed, so that the next use finds a fresh one."""
    if not ref.coming_up:  # nearly always
        return
    with anyio.move_on_after(RESTART_SECONDS):
        while ref.coming_up:  # noqa: ASYNC110 (rare and short; an event would be one more thing to keep in step)
            await anyio.sleep(0.01)


class RunningAdapter:
    """A provider's actor, the bounds of its calls, and the number of turns that use it."""

    def __init__(self, entry: AdapterEntry, ref: ActorRef, slots: CallSlots) -> None:
        self.entry = entry
        self.ref = ref
        self.slots = slots
        self._users = 0
        self._idle: anyio.Event | None = None  # there while somebody waits for it

    @cached_property
    def _published_provider(self) -> str | None:
        return published_provider(self.entry)

    def published_name(self, model: ModelEntry) -> str | None:
        """The name of a model in published price tables, see `models.published_prices`."""
        return name_at(self._published_provider, self.entry, model)

    def acquire(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._idle is not None:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no turn uses the adapter. No turn may begin to use it meanwhile."""
        if self._users:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()
