"""A shared store as the target of shippers.

A shipment is one transaction: its events, what follows from them as if they had been written here, and the place
of its end in its file. It goes the direct way, and the staged way if that has failed. Where something of it was
here before, the next shipments of the file are staged, too, until one is all new. Costs of repricings don't come
along: those of the shared store are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from callboard.bus.clock import SYSTEM_CLOCK, Clock

from ...shipping.shipment import START, Ending, Origin, Position, Shipment, cleaned
from ...sql.calls.sum_keeping import SumKeeper
from ...sql.connection import Unstorable
from ...sql.uninterrupted import Patience
from ...sql.upkeep.erasures import Erasure
from ...sql.upkeep.expiry import erase_words
from ...timestamps import US_PER_DAY
from ..clean import clean_text
from ..database import SCHEMA, Database
from ..errors import unstorable
from ..schema.migrations import migrate
from ..schema.partitions import ensure_months
from ..statements import Statements
from .direct import store_new
from .entries import Present, Stored, enter_mark, is_ahead, present_for
from .erasing import erase
from .staged import stage, store_staged

_Store: TypeAlias = Callable[[Statements, Origin, Shipment, Present], Stored]
_Stage: TypeAlias = Callable[[Statements, Shipment], None]

PATIENCE = Patience(work=60.0, cancelled=2.0)
"""A transaction that takes longer is that of a server that hangs. Whoever ends meanwhile doesn't wait for it."""


class Receiver:
    """A shared store as `tracestore.shipping.shipment.Target`.

    Args:
        dsn: The database.
        schema: The schema of its tables.
        clock: The clock for the moment at which the schema is brought up to date.

    Raises:
        StoreError: This is no DSN, or the driver is not installed.
    """

    def __init__(self, dsn: str, *, schema: str = SCHEMA, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = Database(dsn, schema=schema, single=True, patience=PATIENCE)
        self._clock = clock
        self._sums = SumKeeper(self._database)
        self._days: set[int] = set()  # whose partitions are there
        self._sent_before: set[str] = set()  # files of which the last shipment was not all new

    @property
    def name(self) -> str:
        """The name of the database, without user and password."""
        return self._database.name

    async def open(self) -> None:
        """Reach the database, and bring its schema up to date. Raises StoreError."""
        if self._database.is_open:
            return
        await self._database.open()
        try:
            await migrate(self._database, self._clock.now_us())
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        self._days.clear()
        await self._database.close()

    async def position(self, origin: Origin) -> Position:
        """The place up to which everything of a file is here."""
        rows = await self._database.read(
            "SELECT event, run_id, seq FROM shipping WHERE origin = ?", (origin.name,)
        )
        return Position(*rows[0]) if rows else START

    async def take(self, origin: Origin, shipment: Shipment) -> Position:
        """Store what is new of a shipment. Raises StoreError, and Unstorable if a value is to blame."""
        if origin.name not in self._sent_before:
            try:
                return await self._take(origin, shipment, store_new)
            except Unstorable:
                self._days.clear()  # it may be a month that somebody has dropped
        try:
            return await self._take(origin, shipment, partial(store_staged, clean=False), stage)
        except Unstorable:
            self._days.clear()
            return await self._take(
                origin, cleaned(shipment, clean_text), partial(store_staged, clean=True), stage
            )

    async def _take(
        self, origin: Origin, shipment: Shipment, store: _Store, stage: _Stage | None = None
    ) -> Position:
        def work(statements: Statements) -> Stored:
            with unstorable():
                if not shipment.days <= self._days:
                    ensure_months(statements, [day * US_PER_DAY for day in shipment.days])
                present = present_for(statements, origin, shipment)
                if is_ahead(shipment, present):
                    return Stored(present.mark or START, all_new=True)
                stored = store(statements, origin, shipment, present)
                # events come as they were read, which may have been before their session was deleted
                for session_id in {*present.barrier.sessions, *shipment.dead}:
                    erase_words(statements, session_id, origin.name)
                return stored

        def staged(statements: Statements) -> None:
            with unstorable():
                assert stage is not None
                stage(statements, shipment)

        stored = await self._database.write(work, staged if stage else None)
        self._days |= shipment.days
        if stored.all_new:
            self._sent_before.discard(origin.name)
        else:
            self._sent_before.add(origin.name)
        await self._sums.stored(len(shipment))
        return stored.position

    async def pass_over(self, origin: Origin, shipment: Shipment) -> None:
        """Note the place of the end of a shipment that the store can't take."""
        clean = cleaned(shipment, clean_text)

        def work(statements: Statements) -> None:
            enter_mark(statements, origin, clean, present_for(statements, origin, clean).mark)

        await self._database.write(work)

    async def erased(self, origin: Origin) -> int:
        """The number of the last deletion of a file that was done here."""
        rows = await self._database.read("SELECT erasure FROM shipping WHERE origin = ?", (origin.name,))
        return int(rows[0][0]) if rows else 0

    async def erase(self, origin: Origin, erasures: Collection[Erasure]) -> None:
        """Delete what was deleted in a file."""
        await erase(self._database, origin, erasures)

    async def open_runs(self, origin: Origin) -> Collection[str]:
        """The runs of a file that have no end here."""
        rows = await self._database.read(
            "SELECT run_id FROM runs WHERE shipped_from = ? AND ended_us IS NULL", (origin.name,)
        )
        return [run_id for (run_id,) in rows]

    async def end_runs(self, endings: Mapping[str, Ending]) -> None:
        """Mark runs as ended."""

        def work(statements: Statements) -> None:
            statements.run_many(
                "UPDATE runs SET ended_us = ?, ending = ? WHERE run_id = ?",
                [(end.ended_us, end.ending, run_id) for run_id, end in endings.items()],
            )

        await self._database.write(work)
