"""A trace file for its writer: opened, written in batches, and reopened after failures.

The file is closed before another file at the path is opened. If the open failed, if the disk failed, or if the
file was moved or replaced, the next batch opens the file that is then at the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import anyio

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events import Envelope
from callboard.bus.log import Log

from ..codec import storable_text
from ..prices.table import PriceTable
from ..reports import Delivered
from ..sql.batches import END_IN_ORDER, Batch, batch_of, close_run, delivered_of
from ..sql.connection import Unstorable, shielded
from ..sql.events import RunNumbers
from ..sql.sums import SumKeeper
from ..writing.overflow import is_unwritten
from .database import Database
from .files import RunLock, free_run_lock, remove_named_locks, remove_quietly, run_locks
from .schema import inspect, migrate
from .statements import Statements

_log = Log("tracestore.sqlite.store")


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


_runs_log = Log("tracestore.runs")


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
