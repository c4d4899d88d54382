"""What every shipment enters besides its events and calls: runs, sessions, and how far the file has come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ...shipping.shipment import START, Origin, Position, Shipment
from ...sql.call_rows import RUN, Values
from ...sql.connection import Insert
from ...sql.projection import UPSERT_SESSION, Projection, flat
from ..statements import Statements
from .erasing import OPEN, Barrier, barrier_for

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


class Present(msgspec.Struct, frozen=True):
    """What is here when a shipment comes."""

    mark: Position | None
    """The place up to which everything of its file is here; None if nothing is known of the file."""
    erased: int
    """The number of the last deletion in the file that is done here."""
    pruned_us: int | None
    """The moment before which retention has deleted, in microseconds UTC; None if it has never done so."""
    barrier: Barrier
    """What the shipment must not bring back."""


class Stored(msgspec.Struct, frozen=True):
    """What became of a shipment."""

    position: Position
    """The place up to which all of the file is here now."""
    all_new: bool
    """Whether none of its events was here before."""


def present_for(statements: Statements, origin: Origin, shipment: Shipment) -> Present:
    """What is here when a shipment comes, in its transaction."""
    ((erasures, pruned_us, erased, event, run_id, seq),) = statements.run(_PRESENT, (origin.name,))
    mark = None if event is None else Position(event, run_id, seq)
    barrier = barrier_for(statements, origin, shipment) if erasures else OPEN
    return Present(mark, erased or 0, pruned_us, barrier)


def is_ahead(shipment: Shipment, present: Present) -> bool:
    """Whether something that came before a shipment is missing here: the database fell back, as to a backup."""
    if shipment.after == START:
        return False
    return shipment.after.event > (present.mark or START).event or shipment.erased > present.erased


def was_sent(statements: Statements, shipment: Shipment) -> bool:
    """Whether events of its runs have come before that lie behind some of a shipment's."""
    first = [{"name": run.run_id, "seq": shipment.first_seqs[number]} for number, run in shipment.runs.items()]
    return bool(statements.run(_SENT, (msgspec.json.encode(first).decode(),)))


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


def enter_sessions(
    statements: Statements, times: Mapping[str, tuple[int, int]], projection: Projection, barrier: Barrier
) -> None:
    """Enter sessions with what events say of them, but for those that were deleted here."""
    here = {name: between for name, between in times.items() if name not in barrier.sessions}
    statements.insert(UPSERT_SESSION, projection.sessions(here))


def enter_mark(statements: Statements, origin: Origin, shipment: Shipment, before: Position | None) -> Position:
    """Enter how far the file has come, after all else.

    Returns:
        That place. It is further on than the shipment if another shipper of the same file was quicker. A shipment
        from the file's beginning is believed, and the place goes back.
    """
    last = shipment.last
    if before is not None and before.event > last.event and shipment.after != START:
        return before
    statements.run(
        _MARK, (origin.name, last.event, last.run_id, last.seq, origin.host, origin.file, shipment.erased)
    )
    return last
