"""The staged way of a shipment: into a temporary table, and from there whatever is new of it by (run, seq)."""

from __future__ import annotations

from collections.abc import Iterable

from ...shipping.packing import EVENT_COLUMNS, is_new, projection_of
from ...shipping.shipment import Origin, Shipment
from ...sql.projection import flat
from ..clean import clean_text
from ..statements import Statements
from .content import ContentStoring
from .entries import Stored, enter_mark, enter_runs, enter_sessions, mark_of, numbered

_NUMBERS = frozenset(("seq", "ts_us", "mono_ns", "attempt"))
_STAGE = f"""
    CREATE TEMP TABLE IF NOT EXISTS shipped_events (
        run bigint, {", ".join(f"{name} {'bigint' if name in _NUMBERS else 'text'}" for name in EVENT_COLUMNS)}
    ) ON COMMIT DELETE ROWS
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


def stage(statements: Statements, shipment: Shipment) -> None:
    """Copy the events of a shipment into a temporary table, before it is this transaction's turn to write."""
    statements.run(_STAGE)
    events = shipment.events
    as_there = {number: number for number in shipment.runs}
    statements.copy("pg_temp.shipped_events", ("run", *events.columns), events.options, events.text(as_there))


def store_staged(statements: Statements, origin: Origin, shipment: Shipment, *, clean: bool) -> Stored:
    """Store what is new of a shipment that is staged.

    Args:
        statements: The connection, in the transaction of `stage`.
        origin: The file.
        shipment: The shipment.
        clean: Whether every value is to be made one that PostgreSQL takes, as has been done with the events.

    Returns:
        What became of it.

    Raises:
        Unstorable: No table takes something of it. The transaction is to be undone.
    """
    before = mark_of(statements, origin)
    numbers = enter_runs(statements, origin, shipment)
    inserted = statements.run(_ENTER_EVENTS, (_array(numbers), _array(numbers.values())))
    new = None if len(inserted) == len(shipment) else set(inserted)
    projection = projection_of(event for event in shipment.projected if new is None or is_new(event, numbers, new))
    projection.complete()
    if clean:
        projection.make_storable(clean_text)
    for insert, rows, _ in projection.calls:
        statements.insert(insert, flat(numbered(rows, numbers)))
    enter_sessions(statements, shipment, projection)
    projection.write_behind_calls(statements)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, new).store()
    return Stored(enter_mark(statements, origin, shipment, before), all_new=new is None)


def _array(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
