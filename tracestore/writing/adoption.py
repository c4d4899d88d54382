"""What earlier processes could not write any more, written by the next one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio.to_thread

from bus.errors import StoreError
from bus.events.envelope import Envelope
from bus.log import Log

from .spill import leftovers, read_leftover

_log = Log("tracestore.writer")


_BATCH_EVENTS = 500


async def adopt_before_erasing(database: Path, write: Callable[[Sequence[Envelope]], Awaitable[None]]) -> None:
    """Write what dead processes left, because a later start would bring back what is erased now.

    Where files have no locks, as on Windows, the files of this process look like those of a dead one: nothing is
    written there, and the next start writes them.

    Raises:
        StoreError: A file could not be written. Nothing is erased then.
    """
    if os.name != "nt" and not await adopt_leftovers(database, write, own=None, batch_events=_BATCH_EVENTS):
        raise StoreError(
            f"{database}: a file of a dead process beside it could not be adopted, and may hold what is to be "
            "erased. The log has the reason. Mend that, and delete again"
        )


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
