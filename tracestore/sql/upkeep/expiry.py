"""How content leaves the trace: all that is older than a moment, or that of sessions that were pruned or deleted.

What goes is erased, as far as the database can. A body is kept once for all sessions that say it. So what was
captured of a session that is pruned goes in two steps: first its rows, and then the bodies to which no session
refers any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ..connection import Database, Row, Statements, placeholders
from .erasures import Erasure, note_erasure, runs_in

BODIES_AT_ONCE = 500


class Needed(NamedTuple):
    """The bodies that sessions referred to at one moment."""

    hashes: set[bytes]
    """Their hashes."""
    moment: str
    """The moment, see `Dialect.moment`."""
    spared: list[int]
    """The numbers of other bodies that were not deleted, because somebody may have written them since."""


# Bodies name those that they are made of; quotes inside of somebody's text are escaped, and never look like that.
_REFERENCE = re.compile(rb'"(?:hash|stored_data)":"([0-9a-f]{64})"')


def delete_sessions(statements: Statements, names: Sequence[str]) -> int:
    """Delete sessions with their content, but for bodies. The caller holds a transaction.

    Returns:
        The number of rows of the table of sessions that went. It is 1 or more as well if only content went.
    """
    if not names:
        return 0
    listed = placeholders(len(names))
    which = f"session_id IN ({listed})"
    for statement in statements.dialect.with_sessions:
        statements.run(statement.format(names=listed), names)
    with statements.erasing():  # metadata may say what was said, too
        content = [statements.change(f"DELETE FROM {table} WHERE {which}", names) for table in _CONTENT]
        return statements.change(f"DELETE FROM sessions WHERE {which}", names) or int(any(content))


_CONTENT = ("session_messages", "session_setups")


def forget_content(statements: Statements, before_us: int, at_us: int) -> int:
    """Delete content that was last said before a moment, and erase it. The caller holds a transaction.

    Sessions that began before that moment can't be resumed any more. Their events and costs stay.

    Args:
        statements: The connection.
        before_us: The moment, in microseconds since the epoch.
        at_us: The time now.

    Returns:
        The number of bodies that were deleted.
    """
    note_erasure(statements, Erasure(at_us=at_us, before_us=before_us))
    with statements.erasing():
        statements.run("DELETE FROM session_messages WHERE ts_us < ?", (before_us,))
        statements.run("DELETE FROM session_setups WHERE ts_us < ?", (before_us,))
        return statements.change("DELETE FROM content WHERE last_us < ?", (before_us,))


async def delete_session(
    database: Database, session_id: str, at_us: int, sweep_before_us: int | None = None
) -> bool:
    """Delete a session, and the captured content that belongs to no other session.

    It works step by step, so that others can write meanwhile. Content that is said again meanwhile stays.

    Args:
        database: The database.
        session_id: The session.
        at_us: The time now.
        sweep_before_us: The moment before which content is deleted that no session needs; None is that time.

    Returns:
        False if the store has nothing of the session.
    """

    def work(statements: Statements) -> bool:
        runs = runs_in(statements, session_id)
        if not delete_sessions(statements, [session_id]):
            return False
        note_erasure(statements, Erasure(at_us=at_us, session_id=session_id, runs=runs))
        return True

    found = await database.write(work)
    await sweep_bodies(database, at_us + 1 if sweep_before_us is None else sweep_before_us)
    return found


def references_in(body: bytes) -> list[bytes]:
    """The hashes of the bodies that one is made of."""
    return [bytes.fromhex(name.decode()) for name in _REFERENCE.findall(body)]


async def sweep_bodies(database: Database, before_us: int) -> None:
    """Delete and erase all bodies that were last said before a moment and that no session needs."""
    needed = await database.look(lambda statements: needed_bodies(statements, before_us))
    place = 0
    while True:
        _, place = await database.write(partial(delete_unneeded, before_us=before_us, needed=needed, after=place))
        if not place:
            break
    if needed.spared:
        await database.write(partial(delete_spared, before_us=before_us, some=needed.spared))


def delete_spared(statements: Statements, before_us: int, some: Sequence[int]) -> int:
    """Delete and erase those of some spared bodies that no session needs, while nobody else writes.

    Returns:
        The number of bodies that were deleted.
    """
    needed = needed_bodies(statements, before_us).hashes
    gone = 0
    with statements.erasing():
        for number in some:
            rows = statements.run("SELECT hash FROM content WHERE id = ? AND last_us < ?", (number, before_us))
            if rows and bytes(rows[0][0]) not in needed:
                gone += statements.change("DELETE FROM content WHERE id = ?", (number,))
    return gone


def needed_bodies(statements: Statements, before_us: int) -> Needed:
    """All bodies from before a moment that a session refers to. Nothing is written.

    A body that is said again carries the later moment, so only old rows are looked at.
    """
    ((moment,),) = statements.run(f"SELECT {statements.dialect.moment}")
    rows: list[Row] = statements.run(
        """
        SELECT hash FROM session_messages WHERE ts_us < :before AND hash IS NOT NULL
         UNION
        SELECT hash FROM session_setups WHERE ts_us < :before AND hash IS NOT NULL
        """,
        {"before": before_us},
    )
    found: set[bytes] = set()
    left = [bytes(digest) for (digest,) in rows]
    while left:
        digest = left.pop()
        if digest in found:
            continue
        found.add(digest)
        for (body,) in statements.run("SELECT body FROM content WHERE hash = ?", (digest,)):
            left += references_in(body)
    return Needed(found, str(moment), [])


def delete_unneeded(statements: Statements, before_us: int, needed: Needed, after: int) -> tuple[int, int]:
    """Delete and erase some bodies that were last said before a moment and that no session needs. The caller
    holds a transaction.

    Args:
        statements: The connection.
        before_us: The moment, in microseconds since the epoch.
        needed: The bodies that are needed. One that was written since may be, too.
        after: The number of the last body that was looked at; 0 at first.

    Returns:
        The number of bodies that were deleted, and the number of the last body that was looked at. It is 0 at the
            end.
    """
    untouched = statements.dialect.untouched_since
    rows = statements.run(
        f"SELECT id, hash, {untouched} FROM content WHERE id > ? AND last_us < ? ORDER BY id LIMIT ?",
        (needed.moment, after, before_us, BODIES_AT_ONCE),
    )
    with statements.erasing():
        unneeded = [(number, old) for number, digest, old in rows if bytes(digest) not in needed.hashes]
        gone = [number for number, old in unneeded if old]
        needed.spared.extend(number for number, old in unneeded if not old)
        statements.run_many("DELETE FROM content WHERE id = ?", [(number,) for number in gone])
    return len(gone), rows[-1][0] if rows else 0
