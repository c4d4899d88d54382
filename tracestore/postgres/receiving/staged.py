"""The staged way of a shipment: into a temporary table, and from there whatever is new of it by (run, seq)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...shipping.shipment import EVENT_COLUMNS, Origin, Shipment, are_new, projection_of, sessions_of
from ...sql.projection import flat
from ..clean import clean_text
from ..statements import Statements
from .content import ContentStoring
from .entries import Present, Stored, enter_mark, enter_runs, enter_sessions, numbered

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
    """Copy the events of a shipment into a temporary table, before it is this transaction's turn to write."""
    statements.run(_STAGE)
    events = shipment.events
    as_there = {number: number for number in shipment.runs}
    statements.copy("pg_temp.shipped_events", ("run", *events.columns), events.options, events.parts(as_there))


def store_staged(
    statements: Statements, origin: Origin, shipment: Shipment, present: Present, *, clean: bool
) -> Stored:
    """Store what is new of a shipment that is staged. What has come before and was pruned since is not new.

    Args:
        statements: The connection, in the transaction of `stage`.
        origin: The file.
        shipment: The shipment.
        present: What is here.
        clean: Whether every value is to be made one that PostgreSQL takes, as has been done with the events.

    Returns:
        What became of it.

    Raises:
        Unstorable: No table takes something of it. The transaction is to be undone.
    """
    if present.pruned_us is not None:
        names = [{"there": number, "name": run.run_id} for number, run in shipment.runs.items()]
        statements.run(_DROP_PRUNED, (msgspec.json.encode(names).decode(), present.pruned_us))
    numbers = enter_runs(statements, origin, shipment)
    inserted = statements.run(_ENTER_EVENTS, (_array(numbers), _array(numbers.values())))
    new = None if len(inserted) == len(shipment) else set(inserted)
    places, sessions = shipment.projected, shipment.sessions
    if new is not None:
        places = are_new(shipment, places, numbers, new)
        sessions = sessions_of(shipment, are_new(shipment, range(len(shipment)), numbers, new))
    projection = projection_of(shipment.read, places)
    projection.complete()
    if clean:
        projection.make_storable(clean_text)
    for insert, rows, _ in projection.calls:
        statements.insert(insert, flat(numbered(rows, numbers)))
    enter_sessions(statements, sessions, projection, present.barrier)
    projection.write_behind_calls(statements)
    if shipment.content is not None:
        ContentStoring(statements, origin, shipment.content, new, present.barrier, sessions).store()
    return Stored(enter_mark(statements, origin, shipment, present.mark), all_new=new is None)


def _array(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
