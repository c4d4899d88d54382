"""A trace file as a shipper reads it, over a connection of its own that writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from bus.errors import StoreError
from bus.events.sessions import SessionConfigured, SessionMessageAppended

from ..sql.connection import Row, Statements, placeholders
from ..sql.upkeep.erasures import erased_since, erasures_after, next_boundary
from ..sql.upkeep.expiry import references_in
from ..sqlite.database import Database
from ..sqlite.schema.migrations import migrate
from .packing import EVENT_COLUMNS, SEQ, SESSION, TOPIC, TS_US, packed
from .shipment import START, Ending, Position, Read, Reading, SessionContent, Shipment

_CAPTURED = (SessionConfigured.topic_of(), SessionMessageAppended.topic_of())
_AT_ONCE_EVENTS = 500
_MOST_BYTES = 8_000_000
"""The size from which on a shipment is large enough, however few its events are."""

_AT_ONCE = 500
_ERASURES_AT_ONCE = 200


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

    async def read(self, after: Position, limit: int, erased: int) -> Reading:
        """What is to be done next, all of one state of the file.

        Args:
            after: The place behind which the events lie.
            limit: The number of events at most.
            erased: The number of the last deletion that is done.

        Raises:
            StoreError: The file can't be read.
        """
        await self.open()
        return await self._database.look(lambda statements: _reading(statements, after, limit, erased))

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

    async def erasures_behind(self, erased: int) -> int:
        """The number of deletions behind one. Raises StoreError."""
        await self.open()
        ((count,),) = await self._database.read("SELECT count(*) FROM erasures WHERE id > ?", (erased,))
        return int(count)


async def _checked(database: Database) -> None:
    await migrate(database, 0)


def _reading(statements: Statements, after: Position, limit: int, erased: int) -> Reading:
    statements.run("BEGIN")
    try:
        if erasures := erasures_after(statements, erased, _ERASURES_AT_ONCE):
            return Reading(erasures=erasures)
        return Reading(_shipment(statements, after, limit, erased))
    finally:
        statements.run("COMMIT")


def _shipment(statements: Statements, after: Position, limit: int, erased: int) -> Shipment | None:
    events, is_all = _events(statements, after.event, limit)
    if not events:
        return None
    boundary = next_boundary(statements, events[0][0])
    if boundary is not None:  # what was said before a deletion and what was said since go apart
        before = [event for event in events if event[0] <= boundary]
        events, is_all = before, is_all and len(before) == len(events)
    runs = {run for _, run, _ in events}
    names: dict[int, str] = dict(
        statements.run(f"SELECT id, run_id FROM runs WHERE id IN ({placeholders(len(runs))})", list(runs))
    )
    captured = [(names[run], values) for _, run, values in events if values[TOPIC] in _CAPTURED]
    content = _content(statements, captured)
    dead: set[str] = set()
    if boundary is not None:
        sessions = {values[SESSION] for _, _, values in events} - {None}
        dead = erased_since(statements, events[-1][0], sessions)
    return packed(events, names, after, content, is_all=is_all, erased=erased, dead=dead)


def _events(statements: Statements, after: int, limit: int) -> tuple[list[Read], bool]:
    """The events behind one, and whether those are all.

    They come as JSON. The thread gives other threads their turn with every row that it fetches, and in a busy
    process it waits milliseconds to have its own again. So many events are one row.
    """
    found: list[Read] = []
    size = 0
    while len(found) < limit and size < _MOST_BYTES:
        wanted = min(_AT_ONCE_EVENTS, limit - len(found))
        ((encoded,),) = statements.run(_EVENTS, {"after": after, "limit": wanted})
        events = _decoder.decode(encoded)
        found += events
        if len(events) < wanted:
            return found, True
        size += len(encoded)
        after = events[-1][0]
    return found, False


_TYPES: dict[str, Any] = {"seq": int, "ts_us": int, "mono_ns": int, "attempt": int | None}
_VALUES: Any = tuple[tuple(_TYPES.get(name, str | None) for name in EVENT_COLUMNS)]  # type: ignore[misc]
_decoder: msgspec.json.Decoder[list[Read]] = msgspec.json.Decoder(list[tuple[int, int, _VALUES]])
_EVENTS = f"""
    SELECT CAST(json_group_array(json_array(id, run, json_array({", ".join(EVENT_COLUMNS)}))) AS BLOB)
      FROM events
     WHERE id > :after
       AND id <= (SELECT max(id) FROM (SELECT id FROM events WHERE id > :after ORDER BY id LIMIT :limit))
"""


def _content(statements: Statements, events: list[tuple[str, Row]]) -> SessionContent | None:
    """The content that was captured with events and has not been replaced or deleted since."""
    if not events or not statements.run(_HAS_CONTENT)[0][0]:
        return None
    moments = [values[TS_US] for _, values in events]
    said = {(run_id, values[SEQ]) for run_id, values in events}
    messages = [
        row
        for row in statements.run(
            f"{_MESSAGES} WHERE m.ts_us BETWEEN ? AND ? ORDER BY m.session_id, m.position",
            (min(moments), max(moments)),
        )
        if (row[2], row[3]) in said
    ]
    names = {values[SESSION] for _, values in events} | {row[0] for row in messages}
    setups: list[Row] = []
    for name in sorted(name for name in names if name is not None):
        setups += statements.run(f"{_SETUPS} WHERE s.session_id = ?", (name,))
    for setup in setups:
        if not setup[2]:  # a branch, whose first messages were said before it
            messages += statements.run(f"{_MESSAGES} WHERE m.session_id = ? ORDER BY m.position", (setup[0],))
    if not setups and not messages:
        return None
    return SessionContent(setups, messages, _bodies(statements, {row[5] for row in (*setups, *messages)}))


_HAS_CONTENT = "SELECT EXISTS (SELECT 1 FROM session_messages) OR EXISTS (SELECT 1 FROM session_setups)"
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
                waiting += references_in(body)
    return list(found.values())
