"""A trace file for readers, with the events that dead processes left next to the file.

A process that dies leaves the events since its last commit in its journal, and in its spill file if it had one. A
reader looks for such files when it opens the trace, and before each query:

- If the trace can be written, the reader stores the events and removes the files, as an engine does at its start.
  It doesn't end the lost calls and runs, because that needs the prices of an engine.
- If the trace can't be written, as on read-only media, the reader copies it to a temporary file and stores the
  events there. It makes a new copy when the trace or the files next to it change.
- If neither works, the reader shows the trace without these events. It logs a warning with the number of events
  and their files, and keeps both in `TraceStore.waiting`.

The files of living processes are locked. The reader ignores them, because their events come with the next commit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ..reports import SqlResult
from ..sql.connection import Row, SqlValue
from ..writing.overflow import (
    BATCH_EVENTS,
    NOTHING_WAITS,
    adopt_leftovers,
    leftovers,
    read_leftover,
    sealed_files,
    waiting_events,
    waiting_files,
    warn_of,
)
from .database import Database
from .files import is_immutable
from .schema import SCHEMA_VERSION, check
from .statements import BUSY_TIMEOUT_MS, Statements, uri
from .trace_file import TraceFile

if TYPE_CHECKING:
    import sqlite3


_log = Log("tracestore.late_events")
_T = TypeVar("_T")

_ATTEMPTS = 3
"""The largest number of attempts to copy, because another process may store a file meanwhile."""

_PAGES_AT_ONCE = 1000


async def take_in(path: Path) -> bool:
    """Store the events of dead processes in the trace file at a path, and remove their files."""
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return False
    try:
        await _stored(path, remove=True)
    except (StoreError, OSError):
        return False
    return not await anyio.to_thread.run_sync(leftovers, path)


async def _stored(path: Path, *, beside: Path | None = None, remove: bool = False) -> None:
    """Store the events that are next to a trace in a file. With `remove`, remove their files."""
    file = TraceFile(Database(path), SYSTEM_CLOCK)
    await file.open()
    try:
        if remove:
            await adopt_leftovers(path, file.write, own_path=None, batch_events=BATCH_EVENTS)
            return
        for late in await anyio.to_thread.run_sync(leftovers, beside or path):
            offset = 0
            while True:
                batch, end = await anyio.to_thread.run_sync(read_leftover, late, offset, BATCH_EVENTS)
                if end == offset:
                    break
                await file.write(batch)
                offset = end
    finally:
        await file.close()


_Mark: TypeAlias = tuple[tuple[str, int, int], ...]
"""The names, sizes and times of a trace's files."""


def _mark(path: Path) -> _Mark:
    found = []
    for each in sorted({path, path.with_name(f"{path.name}-wal"), *waiting_files(path)}):
        with contextlib.suppress(OSError):
            facts = each.stat()
            found.append((each.name, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


class WholeTrace(Database):
    """A trace file that is only read, with the events that dead processes left next to the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, readonly=True)
        self.waiting = NOTHING_WAITS
        """The events that are not shown, because they could not be stored or merged."""
        self._ready = False
        self._looking = anyio.Lock()
        self._mark: _Mark | None = None  # the state of the files when events were last merged, or could not be

    async def open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        """Open the file, and add the events in the files next to it."""
        if self.is_open:
            return
        self._copy = self._mark = None
        await super().open(prepare)
        self._ready = True
        try:
            await self._find_waiting()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._ready = False
        await super().close()

    async def read(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        await self._find_waiting()
        return await super().read(sql, parameters)

    async def look(self, work: Callable[[Statements], _T]) -> _T:
        await self._find_waiting()
        return await super().look(work)

    async def _find_waiting(self) -> None:
        """Merge the events that dead processes have left since the last check."""
        if not self._ready:
            return
        async with self._looking:
            if self._copy is not None or waiting_files(self.path):
                await self._take_in()
            else:
                self.waiting, self._mark = NOTHING_WAITS, None

    async def _take_in(self) -> None:
        if self._mark is not None and self._mark == _mark(self.path):
            return
        late = await anyio.to_thread.run_sync(leftovers, self.path)
        sealed = await anyio.to_thread.run_sync(sealed_files, self.path)
        current = not late or await self._is_current()
        if late and current and await take_in(self.path):
            late = []
        mark = _mark(self.path)
        if late and current and await self._merge():
            late = []
        elif self._copy is not None:
            await self._reopen(None)
        if not late and not sealed:
            self.waiting, self._mark = NOTHING_WAITS, mark if self._copy else None
            return
        waiting = await waiting_events(self.path)
        self._mark = mark
        if waiting and waiting != self.waiting:
            older = "the trace has an older version: upgrade it with `callboard upgrade`"
            denied = "the trace can't be written, and there is no room for a temporary copy"
            warn_of(waiting, older if not current else denied if late else "the files can't be opened")
        self.waiting = waiting

    async def _merge(self) -> bool:
        """Read a temporary copy that includes the late events. Return False if no copy can be made."""
        for _ in range(_ATTEMPTS):
            before = await anyio.to_thread.run_sync(leftovers, self.path)
            try:
                folder = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, None, "callboard-"))
            except OSError:
                return False
            try:
                copy = folder / "trace.db"
                await anyio.to_thread.run_sync(_copied, self.path, copy)
                await _stored(copy, beside=self.path)
                if before != await anyio.to_thread.run_sync(leftovers, self.path):
                    # Another process has stored some events, so they are in the trace but not in the copy: make a
                    # new copy.
                    continue
                await self._reopen(copy)
            except (StoreError, OSError):
                return False
            finally:
                # The folder is removed while the connection is open, so no copy is left when this process ends.
                await anyio.to_thread.run_sync(shutil.rmtree, folder, True)
            return True
        return False

    async def _reopen(self, copy: Path | None) -> None:
        await super().close()
        self._copy = copy
        await super().open(_unchecked)

    async def _is_current(self) -> bool:
        ((version,),) = await super().read("PRAGMA user_version")
        return bool(version == SCHEMA_VERSION)


async def _unchecked(_: Database) -> None:
    """Skip the check of a file that was checked before."""


def _copied(source: Path, target: Path) -> None:
    target.touch(0o600)
    copy_snapshot(source, target, _PAGES_AT_ONCE, lambda _done, _all: None, immutable=is_immutable(source))


def copy_snapshot(
    source: Path,
    target: Path,
    step_pages: int,
    on_progress: Callable[[int, int], object],
    *,
    immutable: bool = False,
) -> None:
    """Copy the present state of a database into an empty file. The function blocks; call it in a thread.

    The copy is one read transaction from start to end. Other writers continue, and their writes do not restart the
    copy.
    """
    import sqlite3

    def progress(_status: int, remaining: int, total: int) -> None:
        on_progress(total - remaining, total)

    try:
        with (
            contextlib.closing(_connected(uri(source, "ro", immutable=immutable))) as original,
            contextlib.closing(_connected(uri(target, "rw"))) as copy,
        ):
            original.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            original.execute("BEGIN")
            original.execute("SELECT count(*) FROM sqlite_master").fetchall()
            original.backup(copy, pages=step_pages, progress=progress, sleep=0.01)
            original.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{source} could not be copied to {target}: {error}") from error


def _connected(to: str) -> sqlite3.Connection:
    import sqlite3

    return sqlite3.connect(to, uri=True, isolation_level=None)


async def select(path: Path, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float) -> SqlResult:
    """Run one statement on a separate read-only connection. The result includes the events of dead processes."""
    if limit < 0 or seconds <= 0:
        raise ValueError("limit must not be negative, and seconds must be positive")
    database = WholeTrace(path)
    await database.open(check)
    try:
        columns, rows = await database.select(sql, parameters, limit=limit + 1, seconds=seconds)
    except TimeoutError:
        raise StoreError(
            f"{path}: the statement took longer than {seconds:g} s. Narrow it, or allow more time"
        ) from None
    finally:
        await database.close()
    return SqlResult(tuple(columns), tuple(rows[:limit]), len(rows) > limit)
