"""A trace file as a shipper reads it, over a connection of its own that writes nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from bus.errors import StoreError
from bus.events.sessions import SessionConfigured, SessionMessageAppended

from ..sql.connection import Row, Statements, placeholders
from ..sql.events import COLUMNS, events_query
from ..sqlite.database import Database
from ..sqlite.schema.migrations import migrate
from .shipment import START, Ending, Position, SessionContent, Shipment

_COLUMN = {name: place for place, name in enumerate(COLUMNS, 1)}
RUN_ID, SEQ, TOPIC, TS_US, SESSION_ID = (
    _COLUMN[name] for name in ("run_id", "seq", "topic", "ts_us", "session_id")
)
"""The places of these columns in a row of a shipment. The event's number in the file is at place 0."""

_CAPTURED = frozenset((SessionConfigured.topic_of(), SessionMessageAppended.topic_of()))
_REFERENCE = re.compile(rb'"(?:hash|stored_data)":"([0-9a-f]{64})"')
_AT_ONCE = 500


class Source:
    """The reading end of a trace file, which somebody else writes.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, readonly=True)

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    async def open(self) -> None:
        """Open the file that is at the path now. Raises StoreError."""
        if self._database.is_moved:
            await self.close()
        await self._database.open(_checked)

    async def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        with contextlib.suppress(StoreError):
            await self._database.close()

    async def read(self, after: Position, limit: int) -> Shipment | None:
        """The events behind a position, with their content; None if there are none. Raises StoreError."""
        await self.open()
        return await self._database.look(lambda statements: _shipment(statements, after, limit))

    async def confirmed(self, position: Position) -> Position:
        """A position as the target tells it, if it is one of this file; else the beginning. Raises StoreError."""
        if position == START:
            return START
        await self.open()
        found = await self._database.read(
            "SELECT r.run_id, e.seq FROM events AS e JOIN runs AS r ON r.id = e.run WHERE e.id = ?",
            (position.event,),
        )
        return position if found == [(position.run_id, position.seq)] else START

    async def endings(self, runs: Iterable[str]) -> dict[str, Ending]:
        """The ends of those of some runs that have ended. Raises StoreError."""
        await self.open()
        wanted, found = list(runs), {}
        for begin in range(0, len(wanted), _AT_ONCE):
            part = wanted[begin : begin + _AT_ONCE]
            for run_id, ended_us, ending in await self._database.read(
                "SELECT run_id, ended_us, ending FROM runs"
                f" WHERE ended_us IS NOT NULL AND run_id IN ({placeholders(len(part))})",
                part,
            ):
                found[run_id] = Ending(ended_us, ending)
        return found

    async def behind(self, position: Position) -> int:
        """The number of events behind a position. Raises StoreError."""
        await self.open()
        ((count,),) = await self._database.read("SELECT count(*) FROM events WHERE id > ?", (position.event,))
        return int(count)


async def _checked(database: Database) -> None:
    await migrate(database, 0)


def _shipment(statements: Statements, after: Position, limit: int) -> Shipment | None:
    none = dict.fromkeys(("run_id", "session_id", "request_id", "topic", "since", "until"))
    sql, values = events_query(statements.dialect, **none, after_id=after.event, limit=limit)
    rows = statements.run(sql, values)
    if not rows:
        return None
    last = rows[-1]
    content = _content(statements, [row for row in rows if row[TOPIC] in _CAPTURED])
    runs = {row[RUN_ID] for row in rows}
    return Shipment(rows, after, Position(last[0], last[RUN_ID], last[SEQ]), runs, content)


def _content(statements: Statements, rows: list[Row]) -> SessionContent | None:
    """The content that was captured with events and has not been replaced or deleted since."""
    if not rows:
        return None
    moments = [row[TS_US] for row in rows]
    said = {(row[RUN_ID], row[SEQ]) for row in rows}
    messages = [
        row
        for row in statements.run(
            f"{_MESSAGES} WHERE m.ts_us BETWEEN ? AND ? ORDER BY m.session_id, m.position",
            (min(moments), max(moments)),
        )
        if (row[2], row[3]) in said
    ]
    names = {row[SESSION_ID] for row in rows} | {row[0] for row in messages}
    setups: list[Row] = []
    for name in sorted(name for name in names if name is not None):
        setups += statements.run(f"{_SETUPS} WHERE s.session_id = ?", (name,))
    for setup in setups:
        if not setup[2]:  # a branch, whose first messages were said before it
            messages += statements.run(f"{_MESSAGES} WHERE m.session_id = ? ORDER BY m.position", (setup[0],))
    if not setups and not messages:
        return None
    return SessionContent(setups, messages, _bodies(statements, {row[5] for row in (*setups, *messages)}))


_MESSAGES = """
    SELECT m.session_id, m.position, r.run_id, m.seq, m.ts_us, m.hash, m.message_id, m.metadata, m.withheld
      FROM session_messages AS m JOIN runs AS r ON r.id = m.run
"""
_SETUPS = """
    SELECT s.session_id, r.run_id, s.seq, s.ts_us, s.history, s.hash, s.withheld
      FROM session_setups AS s JOIN runs AS r ON r.id = s.run
"""


def _bodies(statements: Statements, wanted: set[bytes | None]) -> list[Row]:
    """The bodies of these hashes, and those that they refer to."""
    found: dict[bytes, Row] = {}
    waiting = [digest for digest in wanted if digest is not None]
    while waiting:
        digest = waiting.pop()
        if digest in found:
            continue
        rows = statements.run("SELECT hash, last_us, body FROM content WHERE hash = ?", (digest,))
        if rows:
            found[digest] = rows[0]
            body = rows[0][2]
            if body.startswith(b"{"):
                waiting += map(_digest, _REFERENCE.findall(body))
    return list(found.values())


def _digest(text: bytes) -> bytes:
    return bytes.fromhex(text.decode())
