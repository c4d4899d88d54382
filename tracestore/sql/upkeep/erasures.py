"""The record of what was deleted on purpose: sessions, and content by age. Retention is not recorded.

A trace file says with it what has to go from shared stores, too, after what was shipped before. In a shared store
it says what shippers must not bring back. A row is written in the transaction of its deletion, and stays.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

import msgspec

from ..connection import Row, Statements, placeholders


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """One deletion: of a session, or of all content that was last said before a moment."""

    key: str = ""
    """An identifier that no other deletion anywhere has; empty before it is recorded."""
    at_us: int
    """The time of the deletion, in microseconds UTC."""
    number: int = 0
    """The number in its file. Later ones have higher numbers."""
    event: int = 0
    """The number of the last event that the file had by then."""
    session_id: str | None = None
    """The session; None if it was a deletion by age."""
    before_us: int | None = None
    """The moment, in microseconds UTC; None if it was a session."""
    runs: tuple[str, ...] = ()
    """The runs that said something in the session, as far as the file knew."""


def note_erasure(statements: Statements, erasure: Erasure) -> None:
    """Record a deletion. The caller holds its transaction."""
    statements.run(
        """
        INSERT INTO erasures (key, at_us, event, session_id, before_us, runs)
        SELECT ?, ?, coalesce(max(id), 0), ?, ?, ? FROM events
        """,
        (
            secrets.token_hex(16),
            erasure.at_us,
            erasure.session_id,
            erasure.before_us,
            msgspec.json.encode(erasure.runs).decode(),
        ),
    )


def runs_in(statements: Statements, session_id: str) -> tuple[str, ...]:
    """The runs that said something in a session."""
    rows = statements.run(
        """
        SELECT run_id FROM runs
         WHERE id IN (SELECT run FROM session_messages WHERE session_id = :session
                       UNION SELECT run FROM session_setups WHERE session_id = :session
                       UNION SELECT run FROM events WHERE session_id = :session)
         ORDER BY id
        """,
        {"session": session_id},
    )
    return tuple(run_id for (run_id,) in rows)


def erasures_after(statements: Statements, number: int, limit: int) -> list[Erasure]:
    """The deletions in a file that have higher numbers, the first ones first."""
    rows = statements.run(
        "SELECT id, key, at_us, event, session_id, before_us, runs FROM erasures WHERE id > ? ORDER BY id LIMIT ?",
        (number, limit),
    )
    return [_erasure(row) for row in rows]


def next_boundary(statements: Statements, event: int) -> int | None:
    """The number of the last event before the next deletion of a session since an event; None without one."""
    ((boundary,),) = statements.run(
        "SELECT min(event) FROM erasures WHERE session_id IS NOT NULL AND event >= ?", (event,)
    )
    return None if boundary is None else int(boundary)


def erased_since(statements: Statements, event: int, sessions: Collection[str]) -> set[str]:
    """Those of some sessions that were deleted when an event was there already."""
    rows: list[Row] = statements.run(
        f"SELECT session_id FROM erasures WHERE event >= ? AND session_id IN ({placeholders(len(sessions))})",
        (event, *sessions),
    )
    return {session_id for (session_id,) in rows}


def _erasure(row: Row) -> Erasure:
    number, key, at_us, event, session_id, before_us, runs = row
    return Erasure(
        key=key,
        at_us=at_us,
        number=number,
        event=event,
        session_id=session_id,
        before_us=before_us,
        runs=msgspec.json.decode(runs, type=tuple[str, ...]),
    )
