"""What is going on in and beside a trace file: runs, what waits to be adopted, and how full its pages are."""

from __future__ import annotations

from pathlib import Path

from ...reports import StoreCondition
from ...writing.spill import leftovers
from ..database import Database
from ..files import free_run_lock
from ..runs import open_runs


async def condition(database: Database) -> StoreCondition:
    """The condition of the file. Nothing is changed.

    Raises:
        StoreError: The file can't be read.
    """
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
