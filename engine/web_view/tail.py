"""The latest events of an engine's bus, for pages that come, go, and come again.

While a page listens, one task takes the events off one subscription into a ring, whatever the number of pages. A
page that breaks off comes back within seconds, with the id of the last event that it got; so the ring stays for a
while after the last page has gone. Then nothing is left of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import anyio

from callboard.bus import Bus, DropOldest, Envelope, Gap, Subscription

RING = 2000
"""The number of events that are kept for pages."""

LINGER_SECONDS = 30.0
"""The time for which the ring outlives its last page."""


AT_MOST_EVERY = 0.1
"""Seconds between two lots of events for one page."""


class Lot(NamedTuple):
    """Events that a page gets together."""

    missed: int
    """The number of events before or among these that nobody has kept for it."""
    events: list[Envelope]
    """The events that it wants, the oldest first."""


class Tail:
    """The ring of one bus.

    Args:
        bus: The bus.
        linger: Seconds for which the ring outlives its last page.
    """

    def __init__(self, bus: Bus, *, linger: float = LINGER_SECONDS) -> None:
        self._bus = bus
        self._linger = linger
        self.events: deque[Envelope] = deque(maxlen=RING)
        """The latest events, the oldest first. A `Gap` among them stands for events that came too fast."""
        self._task: asyncio.Task[None] | None = None
        self._pages = 0
        self._left: asyncio.Event = asyncio.Event()
        self._news: asyncio.Event = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether anything of it costs anything now."""
        return self._task is not None and not self._task.done()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A block in which a page listens."""
        self._pages += 1
        self._left.set()
        if not self.running:
            self.events.clear()
            self._task = asyncio.create_task(self._run(), name="callboard live view")
        try:
            yield
        finally:
            self._pages -= 1
            self._left.set()

    async def after(self, seq: int | None, wanted: Callable[[Envelope], bool]) -> AsyncIterator[Lot]:
        """The events behind one, as they come, in order, and how many are missing. It ends with the bus.

        Args:
            seq: The number of the last event that the page has; None for those that come from now on.
            wanted: Whether the page wants an event.
        """
        position = self._bus.last_seq if seq is None else seq
        while True:
            found = [each for each in self.events if each.seq > position]
            if found:
                missed = max(_first_of(found[0]) - position - 1, 0)
                position = found[-1].seq
                gaps = [each.data.count for each in found if isinstance(each.data, Gap)]
                lot = Lot(
                    missed + sum(gaps), [each for each in found if type(each.data) is not Gap and wanted(each)]
                )
                if lot.missed or lot.events:
                    yield lot
                    await asyncio.sleep(AT_MOST_EVERY)
                continue
            if not self.running:
                return
            news = self._news
            await news.wait()

    async def _run(self) -> None:
        with self._bus.subscribe(">", policy=DropOldest(RING), name="live view") as events:
            idle = asyncio.create_task(self._close_when_idle(events))
            try:
                while not events.closed or events.depth:
                    await events.wait()
                    self.events.extend(events.take())
                    self._tell()
            finally:
                idle.cancel()
                self._task = None
                self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _close_when_idle(self, events: Subscription) -> None:
        """Close the subscription when no page has listened for the time that the ring lingers."""
        while True:
            self._left.clear()
            if self._pages:
                await self._left.wait()
                continue
            with anyio.move_on_after(self._linger):
                await self._left.wait()
                continue
            events.close()
            return


def _first_of(envelope: Envelope) -> int:
    """The number of the first event that an envelope stands for."""
    return envelope.data.first if isinstance(envelope.data, Gap) else envelope.seq
