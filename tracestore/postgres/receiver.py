"""The receiving part of shipping in a shared store: runs, sessions, and two ways to store a shipment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, US_PER_DAY, Clock

from ..shipping.shipment import (
    EVENT_COLUMNS,
    START,
    Ending,
    Origin,
    Position,
    Shipment,
    are_new,
    cleaned,
    projection_of,
    sessions_of,
)
from ..sql.call_rows import RUN, Values
from ..sql.connection import Insert, Patience, Unstorable
from ..sql.expiry import Erasure, erase_words
from ..sql.projection import UPSERT_SESSION, Projection, flat
from ..sql.sums import SumKeeper
from .connection import unstorable
from .database import SCHEMA, Database
from .received_content import OPEN, Barrier, ContentStoring, barrier_for, erase
from .schema import ensure_months, open_migrated
from .statements import Statements, array_of, clean_text

# --- Runs, sessions and the position ---


_ENTER_RUNS = Insert(
    "runs",
    ("run_id", "first_us", "last_us", "committed_seq", "shipped_from"),
    """
    ON CONFLICT (run_id) DO UPDATE SET
        first_us = least(runs.first_us, excluded.first_us), last_us = greatest(runs.last_us, excluded.last_us),
        committed_seq = greatest(runs.committed_seq, excluded.committed_seq),
        ended_us = NULL, ending = NULL, shipped_from = excluded.shipped_from
    RETURNING run_id, id
    """,
)
_PRESENT = """
    SELECT EXISTS (SELECT 1 FROM erasures), (SELECT before_us FROM pruned), s.erasure, s.event, s.run_id, s.seq
      FROM (SELECT 1) AS one LEFT JOIN shipping AS s ON s.origin = ?
"""
_SENT = """
    SELECT 1 FROM jsonb_to_recordset(CAST(? AS jsonb)) AS s (name text, seq bigint)
      JOIN runs AS r ON r.run_id = s.name COLLATE "C" AND r.committed_seq >= s.seq
     LIMIT 1
"""
_MARK = """
    INSERT INTO shipping (origin, event, run_id, seq, host, file, erasure, shipped_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, clock_timestamp())
    ON CONFLICT (origin) DO UPDATE SET
        event = excluded.event, run_id = excluded.run_id, seq = excluded.seq, host = excluded.host,
        file = excluded.file, erasure = excluded.erasure, shipped_at = excluded.shipped_at
"""


class ExistingRows(msgspec.Struct, frozen=True):
    """The data that this store has when a shipment arrives."""

    mark: Position | None
    """The position up to which the shipment's file has arrived; None if the file is unknown."""
    erased: int
    """The number of the file's last deletion that was repeated in this store."""
    pruned_us: int | None
    """The time up to which retention has deleted rows, in microseconds UTC; None if it has not deleted any."""
    barrier: Barrier


class Stored(msgspec.Struct, frozen=True):
    position: Position
    """The position up to which the file has arrived now."""
    all_new: bool
    """Whether no event of the shipment was in this store before."""


def present_for(statements: Statements, origin: Origin, shipment: Shipment) -> ExistingRows:
    """Read the data that this store has when a shipment arrives, in the shipment's transaction."""
    ((erasures, pruned_us, erased, event, run_id, seq),) = statements.run(_PRESENT, (origin.name,))
    mark = None if event is None else Position(event, run_id, seq)
    barrier = barrier_for(statements, origin, shipment) if erasures else OPEN
    return ExistingRows(mark, erased or 0, pruned_us, barrier)


def is_ahead(shipment: Shipment, present: ExistingRows) -> bool:
    """Whether this store lacks events before a shipment, for example after a restore from a backup."""
    if shipment.after == START:
        return False
    return shipment.after.event > (present.mark or START).event or shipment.erased > present.erased


def was_sent(statements: Statements, shipment: Shipment) -> bool:
    """Whether this store already has later events of the shipment's runs."""
    first = [{"name": run.run_id, "seq": shipment.first_seqs[number]} for number, run in shipment.runs.items()]
    return bool(statements.run(_SENT, (msgspec.json.encode(first).decode(),)))


def enter_runs(statements: Statements, origin: Origin, shipment: Shipment) -> dict[int, int]:
    """Insert the runs of a shipment as runs in progress. Returns their numbers in this store."""
    spans = shipment.runs
    values = flat((run.run_id, run.first_us, run.last_us, run.seq, origin.name) for run in spans.values())
    there: dict[str, int] = dict(statements.insert_returning(_ENTER_RUNS, values))
    return {number: there[run.run_id] for number, run in spans.items()}


def numbered(rows: Iterable[Values], numbers: Mapping[int, int]) -> Iterator[Values]:
    """Yield rows of calls, with the numbers of runs in this store."""
    for row in rows:
        of_run: Any = row[RUN]
        yield [*row[:RUN], numbers[of_run], *row[RUN + 1 :]]


def enter_sessions(
    statements: Statements, times: Mapping[str, tuple[int, int]], projection: Projection, barrier: Barrier
) -> None:
    """Insert sessions from events, except sessions that were deleted in this store."""
    allowed = {name: between for name, between in times.items() if name not in barrier.sessions}
    statements.insert(UPSERT_SESSION, projection.sessions(allowed))


def enter_mark(statements: Statements, origin: Origin, shipment: Shipment, before: Position | None) -> Position:
    """Store the position of the file, after all other rows."""
    last = shipment.last
    if before is not None and before.event > last.event and shipment.after != START:
        return before
    statements.run(
        _MARK, (origin.name, last.event, last.run_id, last.seq, origin.host, origin.file, shipment.erased)
    )
    return last


def store_new(statements: Statements, origin: Origin, shipment: Shipment, present: ExistingRows) -> Stored:
    if (present.mark or START) != shipment.after or was_sent(statements, shipment):
        raise Unstorable("the shipment does not continue the stored events")
    numbers = enter_runs(statements, origin, shipment)
    for table, lines in (("events", shipment.events), *(("calls", lines) for lines in shipment.begun)):
        statements.copy(table, ("run", *lines.columns), lines.options, lines.parts(numbers))
    shipment.projection.write_before_calls(statements)
    for insert, rows, begin in shipment.projection.calls:
        if rows and not begin:
            statements.insert(insert, flat(numbered(rows, numbers)))
    enter_sessions(statements, shipment.sessions, shipment.projection, present.barrier)
    shipment.projection.write_behind_calls(statements)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, None, present.barrier).store()
    return Stored(enter_mark(statements, origin, shipment, present.mark), all_new=True)


# --- Storing a shipment ---
#
# The direct way writes straight into the tables, because events after the file's position are usually new. They
# are not new if the file is a copy, was renamed, or its events were stored in another way. Then a unique index
# fails, and the transaction is rolled back. The staged way writes to a temporary table, and copies from it the
# rows whose (run, seq) is new.


_NUMBERS = frozenset(("seq", "ts_us", "mono_ns", "attempt"))
_STAGE = f"""
    CREATE TEMP TABLE IF NOT EXISTS shipped_events (
        run bigint, {", ".join(f"{name} {'bigint' if name in _NUMBERS else 'text'}" for name in EVENT_COLUMNS)}
    ) ON COMMIT DROP
"""
_ENTER_EVENTS = f"""
    INSERT INTO events (run, {", ".join(EVENT_COLUMNS)})
    SELECT r.here, {", ".join(f"s.{name}" for name in EVENT_COLUMNS)}
      FROM pg_temp.shipped_events AS s
      JOIN unnest(CAST(? AS bigint[]), CAST(? AS bigint[])) AS r (there, here) ON r.there = s.run
     ORDER BY s.ctid
    ON CONFLICT DO NOTHING
    RETURNING run, seq
"""
_DROP_PRUNED = """
    DELETE FROM pg_temp.shipped_events AS s
     USING runs AS r, jsonb_to_recordset(CAST(? AS jsonb)) AS n (there bigint, name text)
     WHERE n.there = s.run AND r.run_id = n.name COLLATE "C" AND s.seq <= r.committed_seq AND s.ts_us < ?
"""


def stage(statements: Statements, shipment: Shipment) -> None:
    """Copy a shipment's events into a temporary table, before the transaction takes the writers' lock."""
    statements.run(_STAGE)
    events = shipment.events
    as_there = {number: number for number in shipment.runs}
    statements.copy("pg_temp.shipped_events", ("run", *events.columns), events.options, events.parts(as_there))


def store_staged(
    statements: Statements, origin: Origin, shipment: Shipment, present: ExistingRows, *, clean: bool
) -> Stored:
    """Store the new events of a staged shipment. Events that were received earlier and pruned are not new."""
    if present.pruned_us is not None:
        names = [{"there": number, "name": run.run_id} for number, run in shipment.runs.items()]
        statements.run(_DROP_PRUNED, (msgspec.json.encode(names).decode(), present.pruned_us))
    numbers = enter_runs(statements, origin, shipment)
    inserted = statements.run(_ENTER_EVENTS, (array_of(numbers, "bigint"), array_of(numbers.values(), "bigint")))
    new = None if len(inserted) == len(shipment) else set(inserted)
    places, sessions = shipment.projected, shipment.sessions
    if new is not None:
        places = are_new(shipment, places, numbers, new)
        sessions = sessions_of(shipment, are_new(shipment, range(len(shipment)), numbers, new))
    projection = projection_of(shipment.read, places)
    projection.complete()
    if clean:
        projection.make_storable(clean_text)
    projection.write_before_calls(statements)
    for insert, rows, _ in projection.calls:
        statements.insert(insert, flat(numbered(rows, numbers)))
    enter_sessions(statements, sessions, projection, present.barrier)
    projection.write_behind_calls(statements)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, new, present.barrier, sessions).store()
    return Stored(enter_mark(statements, origin, shipment, present.mark), all_new=new is None)


# --- The target of shippers ---
#
# A shipment is one transaction. It stores the events, the rows that are derived from them, and the end position in
# the file. The direct way is tried first, and then the staged way. If some events were already stored, the next
# shipments of the file are staged, too, until a shipment is completely new. Costs of repricings are not shipped:
# the shared store has its own.


_Store: TypeAlias = Callable[[Statements, Origin, Shipment, ExistingRows], Stored]
_Stage: TypeAlias = Callable[[Statements, Shipment], None]

PATIENCE = Patience(work=60.0, cancelled=2.0)
"""Seconds for a transaction. If a transaction takes longer, the server hangs. A shipper that ends does not wait
for it.
"""


class Receiver:
    """A shared store as `tracestore.shipping.shipment.Target`."""

    def __init__(self, dsn: str, *, schema: str = SCHEMA, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = Database(dsn, schema=schema, single=True, patience=PATIENCE)
        self._clock = clock
        self._sums = SumKeeper(self._database)
        self._days: set[int] = set()  # Days with existing partitions.
        self._sent_before: set[str] = set()  # Files whose last shipment contained events that were already stored.

    @property
    def name(self) -> str:
        return self._database.name

    async def open(self) -> None:
        if self._database.is_open:
            return
        await open_migrated(self._database, self._clock.now_us())

    async def close(self) -> None:
        self._days.clear()
        await self._database.close()

    async def position(self, origin: Origin) -> Position:
        rows = await self._database.read(
            "SELECT event, run_id, seq FROM shipping WHERE origin = ?", (origin.name,)
        )
        return Position(*rows[0]) if rows else START

    async def take(self, origin: Origin, shipment: Shipment) -> Position:
        """Store the new part of a shipment. Raises StoreError, and Unstorable if a value is the cause."""
        if origin.name not in self._sent_before:
            try:
                return await self._take(origin, shipment, store_new)
            except Unstorable:
                self._days.clear()  # The cause may be a partition that was dropped by hand.
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
                # the shipment may have been read before its session was deleted
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
        clean = cleaned(shipment, clean_text)

        def work(statements: Statements) -> None:
            enter_mark(statements, origin, clean, present_for(statements, origin, clean).mark)

        await self._database.write(work)

    async def erased(self, origin: Origin) -> int:
        rows = await self._database.read("SELECT erasure FROM shipping WHERE origin = ?", (origin.name,))
        return int(rows[0][0]) if rows else 0

    async def erase(self, origin: Origin, erasures: Collection[Erasure]) -> None:
        await erase(self._database, origin, erasures)

    async def open_runs(self, origin: Origin) -> Collection[str]:
        rows = await self._database.read(
            "SELECT run_id FROM runs WHERE shipped_from = ? AND ended_us IS NULL", (origin.name,)
        )
        return [run_id for (run_id,) in rows]

    async def end_runs(self, endings: Mapping[str, Ending]) -> None:

        def work(statements: Statements) -> None:
            statements.run_many(
                "UPDATE runs SET ended_us = ?, ending = ? WHERE run_id = ?",
                [(end.ended_us, end.ending, run_id) for run_id, end in endings.items()],
            )

        await self._database.write(work)
