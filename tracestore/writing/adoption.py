"""What earlier processes could not write any more, written by the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio.to_thread

from callboard.bus.errors import StoreError
from callboard.bus.events.envelope import Envelope
from callboard.bus.log import Log

from .spill import leftovers, read_leftover

_log = Log("tracestore.writer")


async def adopt_leftovers(
    database: Path,
    write: Callable[[Sequence[Envelope]], Awaitable[None]],
    *,
    own: Path | None,
    batch_events: int,
) -> bool:
    """Write the spill files that dead processes left beside a database, and remove each after it is written.

    Args:
        database: The path of the database.
        write: Writes events to the database.
        own: The spill file of this process; None if it has none.
        batch_events: The number of events that are written at a time.

    Returns:
        False if the store can't take all of it now. The rest can be adopted later.
    """
    for path in await anyio.to_thread.run_sync(leftovers, database):
        if path == own:
            continue
        try:
            offset = events = 0
            while True:
                try:
                    batch, end = await anyio.to_thread.run_sync(read_leftover, path, offset, batch_events)
                except FileNotFoundError:
                    break  # another process has adopted it, and removes it only when all of it is written
                if end == offset:
                    break
                await write(batch)
                offset, events = end, events + len(batch)
            path.unlink(missing_ok=True)
            _log.info("spill_adopted", file=str(path), events=events)
        except (StoreError, OSError) as error:
            _log.warning("spill_not_adopted", file=str(path), error=str(error))
            return False
    return True
