"""How content leaves the file: all that is older than a moment, or that of sessions that were pruned or deleted.

What goes is overwritten in the file. A body is kept once for all sessions that say it, so what was captured of a
session that is pruned goes in two steps: its rows with it, and then the bodies that no session refers to any more.
"""

from __future__ import annotations

import re
from functools import partial

import msgspec

from ...sql.connection import Row
from ..database import Database
from ..statements import Statements

BODIES_AT_ONCE = 500

# Bodies name those that they are made of; quotes inside of somebody's text are escaped, and never look like that.
_REFERENCE = re.compile(rb'"(?:hash|stored_data)":"([0-9a-f]{64})"')

CONTENT_OF_SESSIONS = (
    "DELETE FROM session_messages WHERE session_id IN (SELECT value FROM json_each(:names))",
    "DELETE FROM session_setups WHERE session_id IN (SELECT value FROM json_each(:names))",
)
"""Deletes the content of sessions. :names is a JSON array of their ids."""


def forget_content(statements: Statements, before_us: int) -> int:
    """Delete content that was last said before a moment, and overwrite it in the file. The caller holds a
    transaction.

    Sessions that began before that moment can't be resumed any more. Their events and costs stay.

    Returns:
        The number of bodies that were deleted.
    """
    statements.run("PRAGMA secure_delete = ON")
    try:
        statements.run("DELETE FROM session_messages WHERE ts_us < ?", (before_us,))
        statements.run("DELETE FROM session_setups WHERE ts_us < ?", (before_us,))
        statements.run("DELETE FROM content WHERE last_us < ?", (before_us,))
        ((gone,),) = statements.run("SELECT changes()")
        return int(gone)
    finally:
        statements.run("PRAGMA secure_delete = OFF")


async def delete_session(database: Database, session_id: str, now_us: int) -> bool:
    """Delete a session, and the captured content that belongs to no other session.

    It works step by step, so that others can write meanwhile. Content that is said again meanwhile stays.

    Returns:
        False if the store has nothing of the session.
    """
    names = {"names": msgspec.json.encode([session_id]).decode()}

    def rows(statements: Statements) -> bool:
        statements.run("PRAGMA secure_delete = ON")
        try:
            found = [statements.change(sql, names) for sql in (*CONTENT_OF_SESSIONS, _SESSION)]
        finally:
            statements.run("PRAGMA secure_delete = OFF")
        return any(found)

    found = await database.write(rows)
    needed = await database.look(lambda statements: needed_bodies(statements, now_us))
    place = 0
    while True:
        _, place = await database.write(partial(delete_unneeded, before_us=now_us, needed=needed, after=place))
        if not place:
            return found


_SESSION = "DELETE FROM sessions WHERE session_id IN (SELECT value FROM json_each(:names))"


def needed_bodies(statements: Statements, before_us: int) -> set[bytes]:
    """The hashes of all bodies from before a moment that a session refers to. Nothing is written.

    A body that is said again carries the later moment, so only old rows are looked at.
    """
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
            left += [bytes.fromhex(name.decode()) for name in _REFERENCE.findall(body)]
    return found


def delete_unneeded(statements: Statements, before_us: int, needed: set[bytes], after: int) -> tuple[int, int]:
    """Delete and overwrite some bodies that were last said before a moment and that no session needs. The caller
    holds a transaction.

    Args:
        statements: The connection.
        before_us: The moment, in microseconds since the epoch.
        needed: The hashes of the bodies that are needed.
        after: The number of the last body that was looked at; 0 at first.

    Returns:
        The number of bodies that were deleted, and the number of the last body that was looked at. It is 0 at the
            end.
    """
    rows = statements.run(
        "SELECT id, hash FROM content WHERE id > ? AND last_us < ? ORDER BY id LIMIT ?",
        (after, before_us, BODIES_AT_ONCE),
    )
    statements.run("PRAGMA secure_delete = ON")
    try:
        gone = [number for number, digest in rows if bytes(digest) not in needed]
        statements.run_many("DELETE FROM content WHERE id = ?", [(number,) for number in gone])
    finally:
        statements.run("PRAGMA secure_delete = OFF")
    return len(gone), rows[-1][0] if rows else 0
