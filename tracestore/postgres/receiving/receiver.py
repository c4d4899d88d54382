"""A shared store as the target of shippers.

A batch is copied to a temporary table while others may write. Then, in the same transaction, whatever is new of
it by (run, seq) becomes events, and these are projected as if they had been written here; the position of the
batch's end in its file is noted. Costs of repricings don't come along: those of the shared store are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bus.clock import SYSTEM_CLOCK, Clock

from ...shipping.shipment import START, Ending, Origin, Position, Shipment
from ...sql.calls.sum_keeping import SumKeeper
from ...sql.connection import Row, SqlValue, Unstorable
from ...sql.events import COLUMNS, envelope
from ...sql.projection import PROJECTED_TOPICS, Batch
from ...sql.uninterrupted import Patience
from ...timestamps import US_PER_DAY
from ..clean import clean_envelope, clean_text
from ..database import SCHEMA, Database
from ..errors import unstorable
from ..schema.migrations import migrate
from ..schema.partitions import ensure_months
from ..statements import Statements
from .content import ContentStoring

_PLACE = {name: place for place, name in enumerate(COLUMNS, 1)}
_RUN_ID, _SEQ, _TOPIC, _TS_US = (_PLACE[name] for name in ("run_id", "seq", "topic", "ts_us"))
_NUMBERS = frozenset(("seq", "ts_us", "mono_ns", "attempt"))

_STAGED = ("n", *COLUMNS)
_STAGE = f"""
    CREATE TEMP TABLE IF NOT EXISTS shipped_events (
        n bigint, {", ".join(f"{name} {'bigint' if name in _NUMBERS else 'text'}" for name in COLUMNS)}
    ) ON COMMIT DELETE ROWS
"""
_COPY = f"COPY pg_temp.shipped_events ({', '.join(_STAGED)}) FROM STDIN"
_OWN = tuple(name for name in COLUMNS if name != "run_id")

_ENTER_RUNS = """
    INSERT INTO runs (run_id, first_us, last_us, committed_seq, shipped_from)
    SELECT run_id, min(ts_us), max(ts_us), max(seq), ? FROM pg_temp.shipped_events GROUP BY run_id ORDER BY min(n)
    ON CONFLICT (run_id) DO UPDATE SET
        first_us = least(runs.first_us, excluded.first_us), last_us = greatest(runs.last_us, excluded.last_us),
        committed_seq = greatest(runs.committed_seq, excluded.committed_seq),
        ended_us = NULL, ending = NULL, shipped_from = excluded.shipped_from
    RETURNING run_id, id
"""
_ENTER_EVENTS = f"""
    INSERT INTO events (run, {", ".join(_OWN)})
    SELECT r.id, {", ".join(f"s.{name}" for name in _OWN)}
      FROM pg_temp.shipped_events AS s JOIN runs AS r ON r.run_id = s.run_id COLLATE "C"
     ORDER BY s.n
    ON CONFLICT DO NOTHING
    RETURNING run, seq
"""
_ENTER_SESSIONS = """
    INSERT INTO sessions (session_id, first_us, last_us)
    SELECT session_id, min(ts_us), max(ts_us) FROM pg_temp.shipped_events
     WHERE session_id IS NOT NULL GROUP BY session_id
    ON CONFLICT (session_id) DO UPDATE SET
        first_us = least(sessions.first_us, excluded.first_us),
        last_us = greatest(sessions.last_us, excluded.last_us)
"""
_MARK = """
    INSERT INTO shipping (origin, event, run_id, seq, host, file, shipped_at)
    VALUES (?, ?, ?, ?, ?, ?, clock_timestamp())
    ON CONFLICT (origin) DO UPDATE SET
        event = excluded.event, run_id = excluded.run_id, seq = excluded.seq,
        host = excluded.host, file = excluded.file, shipped_at = excluded.shipped_at
"""

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
        try:
            return await self._take(origin, shipment, clean=False)
        except Unstorable:
            self._days.clear()  # it may be a month that somebody has dropped
            return await self._take(origin, shipment, clean=True)

    async def _take(self, origin: Origin, shipment: Shipment, *, clean: bool) -> Position:
        rows = _cleaned(shipment.rows) if clean else shipment.rows
        days = {row[_TS_US] // US_PER_DAY for row in rows}

        def stage(statements: Statements) -> None:
            with unstorable():
                statements.run(_STAGE)
                with statements.connection.cursor().copy(_COPY) as copy:
                    copy.write("".join(map(_line, rows)))

        def work(statements: Statements) -> Position:
            with unstorable():
                if not days <= self._days:
                    ensure_months(statements, [day * US_PER_DAY for day in days])
                return _store(statements, origin, shipment, rows, clean=clean)

        position = await self._database.write(work, stage)
        self._days |= days
        await self._sums.stored(len(rows))
        return position

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


# -- In the transaction


def _store(
    statements: Statements, origin: Origin, shipment: Shipment, rows: list[Row], *, clean: bool
) -> Position:
    before = statements.run("SELECT event, run_id, seq FROM shipping WHERE origin = ?", (origin.name,))
    numbers: dict[str, int] = dict(statements.run(_ENTER_RUNS, (origin.name,)))
    inserted = statements.run(_ENTER_EVENTS)
    if len(inserted) < len(rows):
        new = set(inserted)
        rows = [row for row in rows if (numbers[row[_RUN_ID]], row[_SEQ]) in new]
    else:
        new = None
    statements.run(_ENTER_SESSIONS)
    batch = Batch()
    projected = (envelope(row[1:]) for row in rows if row[_TOPIC] in PROJECTED_TOPICS)
    batch.add(map(clean_envelope, projected) if clean else projected)
    batch.complete(clean_text if clean else None)
    batch.write(statements, lambda run: numbers[run.run_id], events=False)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, new).store()
    last = shipment.last
    if before and before[0][0] > last.event and shipment.after != START:
        return Position(*before[0])  # another shipper of the same file was quicker
    statements.run(_MARK, (origin.name, last.event, last.run_id, last.seq, origin.host, origin.file))
    return last


# -- Rows as text


def _line(row: Sequence[SqlValue]) -> str:
    """A row as COPY reads it."""
    return "\t".join(map(_field, row)) + "\n"


def _field(value: SqlValue) -> str:
    if value is None:
        return "\\N"
    text = str(value)
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if not text.isprintable():
        text = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return text


def _cleaned(rows: list[Row]) -> list[Row]:
    return [tuple(clean_text(value) if isinstance(value, str) else value for value in row) for row in rows]
