"""Retention in a trace file, see `tracestore.sql.upkeep.pruning`.

The next writes use the pages that become free. So a file that is pruned regularly stops growing. Files of this
version also give free pages back to the disk, in small steps. A file of version 1 keeps its size until `vacuum`
has rewritten it once. The rewriting needs the size of the file again on the disk, and writers wait meanwhile.

Of a file that is shipped, nothing is deleted that a shared store still lacks.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import anyio
import msgspec

from ...sql.upkeep import pruning
from ..database import Database
from ..files import escaped

PAGES_AT_ONCE = 1000
_INCREMENTAL = 2


class FilePruning(pruning.Pruning):
    """One pruning of one file."""

    # Tags are found by the key, which the events of the calls have.
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
        """Free pages to the disk, where the file was made for that."""
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
    """The numbers of the last events that shared stores have, one for each store.

    Shipping leaves a file beside the trace for each store, see `tracestore.shipping.marks`. These files are read
    here without it, because retention needs no more of shipping than this number.
    """
    found = []
    for path in sorted(trace.parent.glob(f"{escaped(trace.name)}.shipped-*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=_Mark).position.event)
    return found
