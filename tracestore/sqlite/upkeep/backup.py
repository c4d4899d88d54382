"""A copy of a trace file while others write to it.

The copy is made page by page from one snapshot, over a connection of its own that only reads. It needs no lock
that writers need. Neither the store's own connection nor another process waits for it. Meanwhile the write-ahead
log can't be folded back, so it grows with every write until the copy is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread

from callboard.bus.errors import StoreError
from callboard.bus.private_file import UnfinishedFile

from ..files import is_at_rest, refuse_missing
from .snapshot import copy_snapshot

_PAGES_AT_ONCE = 1000


async def backup(source: Path, target: Path | str, progress: Callable[[int, int], object] | None) -> None:
    """See `TraceStore.backup`."""
    from anyio import from_thread

    def told(done: int, pages: int) -> None:
        from_thread.check_cancelled()
        if progress is not None:
            from_thread.run_sync(progress, done, pages)

    try:
        await anyio.to_thread.run_sync(_copy, source, Path(target), told)
    except OSError as error:
        raise StoreError(f"{error.filename or target}: {error.strerror or error}") from error


def _copy(source: Path, target: Path, told: Callable[[int, int], object]) -> None:
    target = target.expanduser()
    refuse_missing(source)
    if os.path.lexists(target):
        raise StoreError(f"{target} is there already; a backup overwrites nothing, give another path")
    unfinished = UnfinishedFile(target)
    try:
        copy_snapshot(source, unfinished.path, _PAGES_AT_ONCE, told, immutable=is_at_rest(source))
        if os.path.lexists(target):
            raise StoreError(f"{target} has appeared meanwhile; give another path")
        unfinished.keep()
    finally:
        unfinished.drop()
