"""What every shipment enters besides its events and calls: runs, sessions, and how far the file has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ...shipping.shipment import START, Origin, Position, Shipment
from ...sql.call_rows import RUN, Values
from ...sql.connection import Insert, placeholders
from ...sql.projection import UPSERT_SESSION, Projection, flat
from ..statements import Statements

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
_MARK = """
    INSERT INTO shipping (origin, event, run_id, seq, host, file, shipped_at)
    VALUES (?, ?, ?, ?, ?, ?, clock_timestamp())
    ON CONFLICT (origin) DO UPDATE SET
        event = excluded.event, run_id = excluded.run_id, seq = excluded.seq,
        host = excluded.host, file = excluded.file, shipped_at = excluded.shipped_at
"""


class Stored(msgspec.Struct, frozen=True):
    """What became of a shipment."""

    position: Position
    """The place up to which all of the file is here now."""
    all_new: bool
    """Whether none of its events was here before."""


def mark_of(statements: Statements, origin: Origin) -> Position | None:
    """The place up to which everything of a file is here; None if nothing is known of the file."""
    rows = statements.run("SELECT event, run_id, seq FROM shipping WHERE origin = ?", (origin.name,))
    return Position(*rows[0]) if rows else None


def known_runs(statements: Statements, shipment: Shipment) -> bool:
    """Whether something of the runs of a shipment is here, or was."""
    names = [run.run_id for run in shipment.runs.values()]
    return bool(statements.run(f"SELECT 1 FROM runs WHERE run_id IN ({placeholders(len(names))}) LIMIT 1", names))


def enter_runs(statements: Statements, origin: Origin, shipment: Shipment) -> dict[int, int]:
    """Enter the runs of a shipment, none of which has an end now.

    Returns:
        Their numbers here, by those in the file.
    """
    spans = shipment.runs
    values = flat((run.run_id, run.first_us, run.last_us, run.seq, origin.name) for run in spans.values())
    there: dict[str, int] = dict(statements.insert_returning(_ENTER_RUNS, values))
    return {number: there[run.run_id] for number, run in spans.items()}


def numbered(rows: Iterable[Values], numbers: Mapping[int, int]) -> Iterator[Values]:
    """Rows of calls with the numbers that their runs have here."""
    for row in rows:
        of_run: Any = row[RUN]
        yield [*row[:RUN], numbers[of_run], *row[RUN + 1 :]]


def enter_sessions(statements: Statements, shipment: Shipment, projection: Projection) -> None:
    """Enter the sessions of a shipment, with what the events that are new say of them."""
    statements.insert(UPSERT_SESSION, projection.sessions(shipment.sessions))


def enter_mark(statements: Statements, origin: Origin, shipment: Shipment, before: Position | None) -> Position:
    """Enter how far the file has come, after all else.

    Returns:
        That place. It is further on than the shipment if another shipper of the same file was quicker. A shipment
        from the file's beginning is believed, and the place goes back.
    """
    last = shipment.last
    if before is not None and before.event > last.event and shipment.after != START:
        return before
    statements.run(_MARK, (origin.name, last.event, last.run_id, last.seq, origin.host, origin.file))
    return last
