"""A trace file: its writer, its runs, its reader, and copies.

The writer (`TraceFile`) stores events in batches. It closes its file before it opens another file at the path. If
the open failed, if the disk failed, or if the file was moved or replaced, the next batch opens the file that is
then at the path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events import Envelope
from callboard.bus.log import Log

from ..codec import storable_text
from ..prices.table import PriceTable
from ..reports import Delivered, SqlResult
from ..sql.batches import END_IN_ORDER, Batch, batch_of, close_run, delivered_of
from ..sql.connection import Row, SqlValue, Unstorable, shielded
from ..sql.events import RunNumbers
from ..sql.sums import SumKeeper
from ..writing.overflow import (
    BATCH_EVENTS,
    NOTHING_WAITS,
    adopt_leftovers,
    is_unwritten,
    leftovers,
    read_leftover,
    sealed_files,
    waiting_events,
    waiting_files,
    warn_of,
)
from .database import Database
from .files import RunLock, free_run_lock, is_immutable, remove_named_locks, remove_quietly, run_locks
from .schema import SCHEMA_VERSION, check, inspect, migrate
from .statements import BUSY_TIMEOUT_MS, Statements, uri

if TYPE_CHECKING:
    import sqlite3


_log = Log("tracestore.sqlite.store")
_runs_log = Log("tracestore.runs")


class TraceFile:
    """The opening, writing and closing of a `TraceStore`, whose methods describe the guarantees."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.numbers = RunNumbers()
        self.on_batch: Callable[[Batch], object] | None = None
        self._database = database
        self._clock = clock
        self._living = Runs(database, clock)
        self._sums = SumKeeper(database)
        self._opening = anyio.Lock()
        # whether the next write opens the file again, because it can't be written or is not open
        self._reopens = False
        self._reopening = anyio.Lock()

    async def open(self) -> None:
        async def prepare(database: Database) -> None:
            await migrate(database, self._clock.now_us())

        async with self._opening:
            if self._database.is_open:
                return
            try:
                if not self._database.readonly:
                    await inspect(self._database.path)
                await self._database.open(prepare)
            except StoreUnavailable:
                self._reopens = not self._database.readonly
                raise

    async def close(self) -> None:
        self._reopens = False
        try:
            await self._living.end_all()
        finally:
            self.numbers.forget()
            await self._database.close()

    def hold_run(self, run_id: str) -> None:
        try:
            self._living.hold(run_id)
        except StoreUnavailable:
            self._reopens = True
            raise

    async def close_lost_runs(self, prices: PriceTable | None, delivered: Delivered | None) -> list[str]:
        try:
            return await self._living.close_lost(prices, delivered)
        finally:
            self.numbers.forget()  # later events of such a run must look up the run's number and reopen the run

    # --- Writing ---

    async def write(
        self, envelopes: Sequence[Envelope], first: Callable[[Statements], None] | None = None
    ) -> None:
        """Store events, and the rows of calls and sessions that are derived from them, in one transaction.

        `first` runs in the transaction before the events are stored. If it raises, nothing is stored.
        """
        if not envelopes and first is None:
            return
        if self._reopens or self._database.is_moved:
            async with self._reopening:
                # Another writer may have reopened the file meanwhile.
                if self._reopens or self._database.is_moved:
                    await self._reopen()
        # Shielded as a whole: rows are written even if the caller is cancelled while they are built.
        self.numbers.remember(await shielded(self._store(envelopes, first)))
        await self._sums.stored(len(envelopes))

    async def _store(
        self, envelopes: Sequence[Envelope], first: Callable[[Statements], None] | None
    ) -> dict[str, int]:
        try:
            return await self._write(await batch_of(envelopes), first)
        except Unstorable:
            # The events contain half a surrogate pair, or a number beyond 64 bits. This is rare, so it is repaired
            # only after a failure.
            return await self._write(await batch_of(envelopes, storable_text), first)

    async def _write(self, batch: Batch, first: Callable[[Statements], None] | None) -> dict[str, int]:
        def work(statements: Statements) -> dict[str, int]:
            if first is not None:
                first(statements)
            return batch.write(statements, partial(self.numbers.note, statements))

        try:
            numbers = await self._database.write(work)
        except StoreUnavailable as error:
            self._reopens = error.reopen
            raise
        if self.on_batch is not None:
            self.on_batch(batch)
        return numbers

    async def _reopen(self) -> None:
        """Open the file at the path again, because the open file can't be written or was removed.

        A connection to a read-only, damaged or deleted file doesn't detect later changes of the file.
        """
        if self._database.is_moved:
            _log.warning("file_replaced", file=str(self._database.path), note="earlier events are in the old one")
        self.numbers.forget()
        with contextlib.suppress(StoreError):
            await self._database.close()
        self._reopens = True  # stays True unless the following lines succeed
        await self.open()
        self._living.hold_again()
        self._reopens = False


# --- The runs of a trace file ---
#
# A run is one start of a bus with a writer on this file. While the run is in progress, its process holds a lock on
# ``<file>.run-<run_id>``, which ends with the process. The next start of a writer finds runs without an end and
# with a free lock. Such a run is lost: its open calls get an end, and the run is marked, in one transaction.
# Readers and other commands never do this.
#
# The usage of such a call is estimated from the input in its start event, and priced for the time of the call. The
# output that readers in other processes have (`Delivered`) is counted. The provider may have generated more.
# Without an estimate of the input and without a reader's output, the usage is unknown.
#
# The end is an `llm.call_failed` of class `PROCESS_LOST`, with the lost run's next number, last moment and last
# monotonic time. So (run, seq) stays unique, and a replay of the run finds start and end in order, without waiting
# through the hours between. `runs.ended_us` holds the time at which it was ended.
#
# The spill file or the journal of the dead process may contain further events, including ends of calls. So a run
# stays open until those events are written.


class Runs:
    """The runs in progress of one store, and the end of lost runs."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._locks: dict[str, RunLock] = {}
        self._to_lock: set[str] = set()  # runs to lock, including runs that could not be locked yet

    def hold(self, run_id: str) -> None:
        """Lock this run until `end_all`. Call it before writing events of the run. Raises StoreError."""
        self._to_lock.add(run_id)
        if run_id not in self._locks:
            self._locks[run_id] = RunLock(self._database.path, run_id)

    def hold_again(self) -> None:
        """Lock the runs again that are not locked, or whose lock file was removed. Raises StoreError."""
        for run_id in self._to_lock:
            if run_id in self._locks and not self._locks[run_id].is_in_place:
                self._locks.pop(run_id).close()
            self.hold(run_id)

    async def close_lost(self, prices: PriceTable | None = None, delivered: Delivered | None = None) -> list[str]:
        """End the runs of dead processes."""
        path = self._database.path
        closed = []
        for run_id in await open_runs(self._database):
            with free_run_lock(path, run_id) as lock:
                if lock is None or is_unwritten(path, run_id):
                    continue
                now = self._clock.now_us()
                counts = await delivered_of(self._database, run_id, delivered)
                calls = await self._database.write(
                    partial(close_run, run_id=run_id, now_us=now, prices=prices, delivered=counts)
                )
                remove_quietly(lock)
            closed.append(run_id)
            _runs_log.info("run_lost", run_id=run_id, calls=calls, file=str(path))
        await self._remove_strays()
        return closed

    async def _remove_strays(self) -> None:
        """Remove lock files of processes that died before their first write or after their last write."""
        path = self._database.path
        remove_named_locks(path)
        open_run_ids = set(await open_runs(self._database))
        for run_id in run_locks(path):
            if run_id not in open_run_ids:
                with free_run_lock(path, run_id) as lock:
                    if lock is not None:
                        remove_quietly(lock)

    async def end_all(self) -> None:
        """Mark the locked runs as ended, and release their locks.

        A run with open calls, or with events in its spill file, is left to the next start.
        """
        locks, self._locks = self._locks, {}
        self._to_lock.clear()
        path, now = self._database.path, self._clock.now_us()
        ended = [run_id for run_id in locks if not is_unwritten(path, run_id)]

        def work(statements: Statements) -> None:
            for run_id in ended:
                statements.run(END_IN_ORDER, (now, run_id))

        try:
            if ended and self._database.is_open:
                await self._database.write(work)
        except StoreError as error:
            _runs_log.warning("run_not_ended", error=str(error))
        finally:
            for lock in locks.values():
                lock.remove()


async def open_runs(database: Database) -> list[str]:
    """The runs that are not marked as ended, the earliest first. They are in progress or lost."""
    return [str(run_id) for (run_id,) in await database.read("SELECT run_id FROM runs WHERE ended_us IS NULL")]


# --- Reading a trace file, with the events that dead processes left next to it ---
#
# A process that dies leaves the events since its last commit in its journal, and in its spill file if it had one.
# A reader looks for such files when it opens the trace, and before each query:
#
# - If the trace can be written, the reader stores the events and removes the files, as a starting engine does.
#   It doesn't end the lost calls and runs, because that needs the prices of an engine.
# - If the trace can't be written, as on read-only media, the reader copies it to a temporary file and stores the
#   events there. It makes a new copy when the trace or the files next to it change.
# - If neither works, the reader shows the trace without these events. It logs a warning with the number of events
#   and their files, and keeps both in `TraceStore.waiting`.
#
# The files of living processes are locked. The reader ignores them, because their events come with the next
# commit.


_T = TypeVar("_T")

_ATTEMPTS = 3
"""The largest number of attempts to copy, because another process may store a file meanwhile."""


async def take_in(path: Path) -> bool:
    """Store the events of dead processes in the trace file at a path, and remove their files."""
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return False
    try:
        await _store_leftovers(path, remove=True)
    except (StoreError, OSError):
        return False
    return not await anyio.to_thread.run_sync(leftovers, path)


async def _store_leftovers(path: Path, *, beside: Path | None = None, remove: bool = False) -> None:
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
                await _store_leftovers(copy, beside=self.path)
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


# --- Copies and free statements ---

_PAGES_AT_ONCE = 1000
"""The number of database pages that are copied in one step. Progress is reported after each step."""


def _copied(source: Path, target: Path) -> None:
    target.touch(0o600)
    copy_snapshot(source, target, lambda _done, _all: None)


def copy_snapshot(source: Path, target: Path, on_progress: Callable[[int, int], object]) -> None:
    """Copy the present state of a database into an empty file. The function blocks; call it in a thread.

    The copy is one read transaction from start to end. Other writers continue, and their writes do not restart the
    copy.
    """
    import sqlite3

    def progress(_status: int, remaining: int, total: int) -> None:
        on_progress(total - remaining, total)

    try:
        with (
            contextlib.closing(_connected(uri(source, "ro", immutable=is_immutable(source)))) as original,
            contextlib.closing(_connected(uri(target, "rw"))) as copy,
        ):
            original.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            original.execute("BEGIN")
            original.execute("SELECT count(*) FROM sqlite_master").fetchall()
            original.backup(copy, pages=_PAGES_AT_ONCE, progress=progress, sleep=0.01)
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
