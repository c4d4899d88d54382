"""Events that earlier processes could not write any more, written by the next one, or counted."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events.envelope import Envelope
from callboard.bus.log import Log

from .spill import leftovers, read_leftover, remove_leftover, sealed_files

_log = Log("tracestore.writer")

BATCH_EVENTS = 256
"""The number of events that a reader or a command stores in one transaction."""


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
            await anyio.to_thread.run_sync(remove_leftover, path)
            _log.info("spill_adopted", file=str(path), events=events)
        except (StoreError, OSError) as error:
            _log.warning("spill_not_adopted", file=str(path), error=str(error))
            return False
    return True


class LateEvents(msgspec.Struct, frozen=True):
    """The events of dead processes that a reader could not show."""

    events: int = 0
    """The number of events that could be counted."""
    files: tuple[Path, ...] = ()
    """Their files. Of a file that may not be opened, the events are not counted."""

    def __bool__(self) -> bool:
        return bool(self.files)


NOTHING_WAITS = LateEvents()


async def waiting_beside(database: Path) -> LateEvents:
    """The events of dead processes that wait beside a trace, and their files."""

    def count() -> LateEvents:
        files = leftovers(database)
        return LateEvents(sum(map(_events_in, files)), (*files, *sealed_files(database)))

    return await anyio.to_thread.run_sync(count)


def _events_in(path: Path) -> int:
    with contextlib.suppress(OSError), path.open("rb") as lines:
        return sum(line.endswith(b"\n") for line in lines)
    return 0


def warn_of(waiting: LateEvents, why: str) -> None:
    """Log how many events a reader doesn't show, and where they are."""
    _log.warning(
        "late_events_not_shown",
        events=waiting.events,
        files=[str(path) for path in waiting.files],
        why=why,
        note="the next engine that starts on this trace stores them",
    )


def left_over(waiting: LateEvents) -> StoreError:
    """The error of a deletion that would miss what waits in files beside a trace."""
    files = ", ".join(str(path) for path in waiting.files)
    return StoreError(
        f"nothing was deleted: {files} may hold content of processes that died, and can't be stored now; "
        "make the files and the trace writable, and try again"
    )
