"""A trace file in the hands of its writer: opened, written in batches, and opened anew when it can't be written.

The path is never given up before the file is closed. If nothing could be opened, if the disk failed, or if
somebody moved or replaced the file, the next batch opens the file that is then at the path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import anyio

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.events.envelope import Envelope
from callboard.bus.log import Log

from ..codec import storable_text
from ..prices.table import PriceTable
from ..sql.batches import Batch, batch_of
from ..sql.calls.sum_keeping import SumKeeper
from ..sql.connection import Unstorable
from ..sql.lost_runs import Delivered
from ..sql.run_numbers import RunNumbers
from ..sql.uninterrupted import uninterrupted
from .database import Database
from .runs import Runs
from .schema.migrations import inspect, migrate

_log = Log("tracestore.sqlite.store")


class TraceFile:
    """Opening, writing and closing behind `TraceStore`, whose methods of the same names say what they promise."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.numbers = RunNumbers()
        self.told: Callable[[Batch], object] | None = None
        """Told each batch when it is committed."""
        self._database = database
        self._clock = clock
        self._living = Runs(database, clock)
        self._sums = SumKeeper(database)
        self._opening = anyio.Lock()
        self._anew = False  # what is open can't be written, or nothing could be opened: the next write tries
        self._reopening = anyio.Lock()

    async def open(self) -> None:
        """Open the file, making or migrating it as needed."""

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
                self._anew = not self._database.readonly
                raise

    async def close(self) -> None:
        """Finish what is under way, mark the runs that lived here as ended, and close the file."""
        self._anew = False
        try:
            await self._living.end_all()
        finally:
            self.numbers.forget()
            await self._database.close()

    # -- Runs

    def hold_run(self, run_id: str) -> None:
        """Say that a run lives."""
        try:
            self._living.hold(run_id)
        except StoreUnavailable:
            self._anew = True
            raise

    async def close_lost_runs(self, prices: PriceTable | None, delivered: Delivered | None) -> list[str]:
        """End the calls and the runs of processes that died.

        Returns:
            The ids of those runs.
        """
        try:
            return await self._living.close_lost(prices, delivered)
        finally:
            self.numbers.forget()  # should more come of one of those, it is open again

    # -- Writing

    async def write(self, envelopes: Sequence[Envelope]) -> None:
        """Store events, and the facts that follow from them about calls and sessions, in one transaction."""
        if not envelopes:
            return
        if self._anew or self._database.is_moved:
            async with self._reopening:
                if self._anew or self._database.is_moved:  # somebody else may have waited for the same
                    await self._open_anew()
        # As a whole: who is cancelled while the rows are being made has them written all the same, as ever.
        self.numbers.remember(await uninterrupted(self._store(envelopes)))
        await self._sums.stored(len(envelopes))

    async def _store(self, envelopes: Sequence[Envelope]) -> dict[str, int]:
        try:
            return await self._write(await batch_of(envelopes))
        except Unstorable:
            # Half a surrogate pair, or a number beyond 64 bits; that is rare, so it is looked for only now.
            return await self._write(await batch_of(envelopes, storable_text))

    async def _write(self, batch: Batch) -> dict[str, int]:
        try:
            numbers = await self._database.write(
                lambda statements: batch.write(statements, partial(self.numbers.note, statements))
            )
        except StoreUnavailable as error:
            self._anew = error.reopen
            raise
        if self.told is not None:
            self.told(batch)
        return numbers

    async def _open_anew(self) -> None:
        """Open the file that is at the path now: the one that was open can't be written, or isn't there any more.

        A connection to a file that was read-only, damaged or deleted stays as it is, whatever becomes of the file.
        """
        if self._database.is_moved:
            _log.warning(
                "file_replaced",
                file=str(self._database.path),
                note="what was written to the old one is in that one",
            )
        self.numbers.forget()
        with contextlib.suppress(StoreError):
            await self._database.close()
        self._anew = True  # until all of it has worked
        await self.open()
        self._living.hold_again()
        self._anew = False
