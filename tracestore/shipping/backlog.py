"""What waits in a trace file for shared stores, as far as this machine knows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .marks import marks
from .source import Source


class Backlog(msgspec.Struct, frozen=True):
    """What one shared store lacks of a trace file."""

    target: str
    """The name of the shared store, without user and password."""
    behind: int
    """The number of events that wait."""
    erasures: int
    """The number of deletions that wait."""
    shipped_us: int
    """The time at which events were last sent, in microseconds UTC; 0 if never."""
    failing: str
    """The reason why nothing can be sent; empty while all is well."""


async def backlogs(trace: Path) -> list[Backlog]:
    """What waits in a trace file, for each shared store that it is shipped to.

    Raises:
        StoreError: The file can't be read.
    """
    found = []
    source = Source(trace)
    try:
        for mark in marks(trace):
            behind = await source.behind(mark.position)
            erasures = await source.erasures_behind(mark.erased)
            found.append(Backlog(mark.target, behind, erasures, mark.shipped_us, mark.failing))
    finally:
        await source.close()
    return found
