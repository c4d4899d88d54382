"""When something changed: the statistics of an engine, given again whenever they may be others.

A watcher waits for the bus. While turns are under way, their streams may grow without an event on the bus, so it
looks at intervals; when nothing is under way, it sleeps until the next event. Nobody pays for it but who watches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from callboard.bus import Bus, DropOldest

from ..runtime.in_flight import InFlight


async def changes(bus: Bus, in_flight: InFlight, min_interval: float) -> AsyncIterator[None]:
    """One item at once, and then one whenever something may have changed. It ends with the bus.

    Args:
        bus: The engine's bus.
        in_flight: The engine's turns and calls under way.
        min_interval: The least time between two items, in seconds.
    """
    with bus.subscribe(">", policy=DropOldest(1), name="changes") as events:
        while True:
            yield
            if events.closed:
                return
            await anyio.sleep(min_interval)
            if not len(in_flight):
                await events.wait()
            events.take()
