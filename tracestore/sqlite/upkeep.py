"""Retention, backup, and the condition of a trace file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.files import UnfinishedFile

from ..reports import StoreCondition
from ..sql import pruning
from ..writing.overflow import leftovers
from .database import Database
from .files import escaped, free_run_lock, refuse_missing
from .trace_file import copy_snapshot, open_runs

# --- Retention in a trace file ---
#
# See `tracestore.sql.pruning`. The next writes reuse the free pages, so a regularly pruned file stops growing.
# Files of this version also return free pages to the disk, in small steps. A file of version 1 keeps its size
# until `vacuum` has rewritten it once. `vacuum` needs free disk space of the file's size, and writers wait
# meanwhile. In a shipped file, only events that all shared stores have are deleted.


PAGES_AT_ONCE = 1000
_INCREMENTAL = 2


class FilePruning(pruning.Pruning):
    # Tags are deleted through their key, which is read from the calls' events.
    _delete_tags = """
        DELETE FROM call_tags WHERE (key, value, call_id) IN (
            SELECT j.key, j.value, c.id
              FROM calls AS c
              JOIN events AS e ON e.request_id = c.request_id AND e.tags IS NOT NULL, json_each(e.tags) AS j
             WHERE c.id IN ({calls})
        )
    """
    _events_with_calls = True

    def __init__(self, database: Database, progress: pruning.Progress | None) -> None:
        super().__init__(database, progress)
        self._file = database

    async def _allowed_until(self, before_us: int) -> int:
        positions = _shipped(self._file.path)
        if not positions:
            return before_us
        ((earliest,),) = await self._file.read("SELECT min(ts_us) FROM events WHERE id > ?", (min(positions),))
        return before_us if earliest is None else min(before_us, int(earliest))

    async def _sizes(self) -> tuple[int, int]:
        ((page, pages, free),) = await self._file.read(
            "SELECT page_size, page_count, freelist_count FROM"
            " pragma_page_size, pragma_page_count, pragma_freelist_count"
        )
        return page * (pages - free), page * pages

    async def _vacuum(self) -> None:
        await self._file.vacuum()

    async def _give_back(self) -> None:
        ((mode,),) = await self._file.read("PRAGMA auto_vacuum")
        if mode != _INCREMENTAL:
            return
        ((free,),) = await self._file.read("PRAGMA freelist_count")
        for _ in range(0, free, PAGES_AT_ONCE):
            await self._file.give_back(PAGES_AT_ONCE)
            await anyio.sleep(0.01)


class _Position(msgspec.Struct, frozen=True):
    event: int = 0


class _Mark(msgspec.Struct):
    position: _Position = _Position()


def _shipped(trace: Path) -> list[int]:
    """The numbers of the last events in the shared stores, one for each store.

    Shipping leaves a file next to the trace for each store, see `tracestore.shipping.marks`. This function reads
    the files without that module, because retention needs only these numbers.
    """
    found = []
    for path in sorted(trace.parent.glob(f"{escaped(trace.name)}.shipped-*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=_Mark).position.event)
    return found


async def condition(database: Database) -> StoreCondition:
    """The condition of the file. The file is not changed."""
    runs = await open_runs(database)
    lost = [run_id for run_id in runs if _is_free(database.path, run_id)]
    calls = 0
    for run_id in lost:
        ((count,),) = await database.read(
            "SELECT count(*) FROM calls WHERE status = 'started' AND run = (SELECT id FROM runs WHERE run_id = ?)",
            (run_id,),
        )
        calls += count
    ((page, pages, free, mode),) = await database.read(
        "SELECT page_size, page_count, freelist_count, auto_vacuum"
        " FROM pragma_page_size, pragma_page_count, pragma_freelist_count, pragma_auto_vacuum"
    )
    return StoreCondition(
        living=len(runs) - len(lost),
        lost=len(lost),
        open_calls=calls,
        spilled=tuple((path, path.stat().st_size) for path in leftovers(database.path)),
        file_bytes=page * pages,
        free_bytes=page * free,
        shrinkable=mode != 0,
    )


def _is_free(database: Path, run_id: str) -> bool:
    with free_run_lock(database, run_id) as lock:
        return lock is not None


# --- Backup ---
#
# The copy is made page by page from one snapshot, over a separate read-only connection. The copy needs no lock
# that writers need, so writers do not wait. Meanwhile the write-ahead log grows with every write until the copy is
# done.


async def backup(source: Path, target: Path | str, progress: Callable[[int, int], object] | None) -> None:
    from anyio import from_thread

    def on_progress(done: int, pages: int) -> None:
        from_thread.check_cancelled()
        if progress is not None:
            from_thread.run_sync(progress, done, pages)

    try:
        await anyio.to_thread.run_sync(_copy, source, Path(target), on_progress)
    except OSError as error:
        raise StoreError(f"{error.filename or target}: {error.strerror or error}") from error


def _copy(source: Path, target: Path, on_progress: Callable[[int, int], object]) -> None:
    target = target.expanduser()
    refuse_missing(source)
    if os.path.lexists(target):
        raise StoreError(f"{target} already exists, and a backup never overwrites a file. Use another path")
    unfinished = UnfinishedFile(target)
    try:
        copy_snapshot(source, unfinished.path, on_progress)
        if os.path.lexists(target):
            raise StoreError(f"{target} was created by another process. Use another path")
        unfinished.keep()
    finally:
        unfinished.drop()
