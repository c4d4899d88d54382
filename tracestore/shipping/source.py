"""A trace file for a shipper, read over a separate connection that writes nothing."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended

from ..sql.batches import STORED_COLUMNS, Batch
from ..sql.call_rows import Values
from ..sql.connection import Row, Statements, in_parts, placeholders
from ..sql.expiry import erased_since, erasures_after, next_boundary, references_in
from ..sql.projection import Projection, joined
from ..sqlite.database import Database
from ..sqlite.schema import migrate
from ..sqlite.trace_file import WholeTrace
from .shipment import (
    EVENT_COLUMNS,
    QUOTE,
    SEQ,
    SESSION,
    START,
    TOPIC,
    TS_US,
    Ending,
    Position,
    Read,
    Reading,
    SessionContent,
    Shipment,
    packed,
)

_CAPTURED = (SessionConfigured.topic_of(), SessionMessageAppended.topic_of())
_AT_ONCE_EVENTS = 500
_MOST_BYTES = 8_000_000
"""The size in bytes at which a shipment is sent, even with few events."""

_ERASURES_AT_ONCE = 200


class Source:
    """Reads a trace file that other processes write.

    It first adds the events that dead processes left next to the file. In an engine, the engine's writer does that
    instead.
    """

    def __init__(self, path: Path, recent: Recent | None = None) -> None:
        self._database = WholeTrace(path) if recent is None else Database(path, readonly=True)
        self.recent = recent or Recent()
        """The last batches that this process wrote to the file."""

    @property
    def path(self) -> Path:
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
        """The next part to ship, read from one state of the file."""
        await self.open()
        recent = self.recent.behind(after)
        return await self._database.look(lambda statements: _reading(statements, after, limit, erased, recent))

    async def confirmed(self, position: Position) -> Position:
        """Return the target's position if it belongs to this file, or else the start. Raises StoreError."""
        if position == START:
            return START
        await self.open()
        found = await self._database.read(
            "SELECT r.run_id, e.seq FROM events AS e JOIN runs AS r ON r.id = e.run WHERE e.id = ?",
            (position.event,),
        )
        return position if found == [(position.run_id, position.seq)] else START

    async def endings(self, runs: Iterable[str]) -> dict[str, Ending]:
        """Return the ends of the given runs, without runs that have not ended. Raises StoreError."""
        await self.open()
        found = {}
        for part in in_parts(list(runs)):
            for run_id, ended_us, ending in await self._database.read(
                "SELECT run_id, ended_us, ending FROM runs"
                f" WHERE ended_us IS NOT NULL AND run_id IN ({placeholders(len(part))})",
                part,
            ):
                found[run_id] = Ending(ended_us, ending)
        return found

    async def behind(self, position: Position) -> int:
        """The number of events after a position. Raises StoreError."""
        await self.open()
        ((count,),) = await self._database.read("SELECT count(*) FROM events WHERE id > ?", (position.event,))
        return int(count)

    async def erasures_behind(self, erased: int) -> int:
        """The number of deletions with a higher number. Raises StoreError."""
        await self.open()
        ((count,),) = await self._database.read("SELECT count(*) FROM erasures WHERE id > ?", (erased,))
        return int(count)


async def _checked(database: Database) -> None:
    await migrate(database, 0)


def _reading(
    statements: Statements, after: Position, limit: int, erased: int, recent: Sequence[Written]
) -> Reading:
    statements.run("BEGIN")
    try:
        if erasures := erasures_after(statements, erased, _ERASURES_AT_ONCE):
            return Reading(erasures=erasures)
        return Reading(_shipment(statements, after, limit, erased, recent))
    finally:
        statements.run("COMMIT")


class _Found(NamedTuple):
    read: Read
    last: int  # the number of the last event
    is_all: bool = False  # whether there are no later events
    projection: Projection | None = None


def _shipment(
    statements: Statements, after: Position, limit: int, erased: int, recent: Sequence[Written]
) -> Shipment | None:
    ((first,),) = statements.run("SELECT min(id) FROM events WHERE id > ?", (after.event,))
    if first is None:
        return None
    # Messages before and after a deletion go into separate shipments.
    boundary = next_boundary(statements, first)
    found = _written(statements, after.event, limit, recent) if recent and boundary is None else None
    found = found or _events(statements, after.event, boundary, limit)
    read = found.read
    runs = set(read.runs)
    names: dict[int, str] = dict(
        statements.run(f"SELECT id, run_id FROM runs WHERE id IN ({placeholders(len(runs))})", list(runs))
    )
    ((has_content,),) = statements.run(_HAS_CONTENT)
    content = _content(statements, _captured(read, names)) if has_content else None
    dead: set[str] = set()
    if boundary is not None:
        dead = erased_since(statements, found.last, set(read.columns[SESSION]) - {None})
    return packed(
        *(read, names, (after, found.last), content, found.projection),
        is_all=found.is_all,
        erased=erased,
        dead=dead,
    )


def _written(statements: Statements, after: int, limit: int, recent: Sequence[Written]) -> _Found | None:
    """The events after event number `after` from memory; None unless they are the last written events."""
    ((first_run, last_run, encoded),) = statements.run(_SEQS, {"after": after, "limit": limit, "most": _ANY})
    if first_run != last_run:
        return None
    seqs = _seqs_decoder.decode(encoded)
    ((run_id,),) = statements.run("SELECT run_id FROM runs WHERE id = ?", (first_run,))
    batches = matching(recent, first_run, run_id, seqs)
    if not batches:
        return None
    read = read_of(batches)
    last = (first_run, read.columns[SEQ][-1])
    ((number,),) = statements.run("SELECT id FROM events WHERE run = ? AND seq = ?", last)
    projection = joined(batch.projection for batch in batches)
    return _Found(read, number, len(read) == len(seqs) < limit, projection)


def _events(statements: Statements, after: int, boundary: int | None, limit: int) -> _Found:
    """Read the events after event number `after`, up to the boundary."""
    columns: list[list[Any]] = [[] for _ in _READ]
    size = 0
    is_all = False
    while len(columns[0]) < limit and size < _MOST_BYTES and not is_all:
        batch_limit = min(_AT_ONCE_EVENTS, limit - len(columns[0]))
        part = _part(statements, {"after": after, "limit": batch_limit, "most": boundary or _ANY})
        for column, more in zip(columns, part.columns, strict=True):
            column += more
        size += part.size
        after = part.last or after
        is_all = len(part.columns[0]) < batch_limit
    return _Found(Read(columns[0], columns[1:]), after, is_all and boundary is None)


class _Part(NamedTuple):
    columns: Sequence[list[Any]]
    last: int | None = None  # the number of the last event
    size: int = 0  # the size of the events' data


def _part(statements: Statements, which: Mapping[str, int]) -> _Part:
    """Read some events, column by column. The query returns them in one row, as JSON and as one long text.
    Fetching a row releases the GIL, and in a busy process it takes milliseconds to get it back.
    """
    ((last, encoded, joined_data),) = statements.run(_EVENTS, which)
    columns = _decoder.decode(encoded)
    if joined_data is None:
        return _Part((*columns, []))
    data = joined_data.split(QUOTE)
    if len(data) != len(columns[0]):  # the separator also occurs in the data
        ((encoded_data,),) = statements.run(_DATA, which)
        data = msgspec.json.decode(encoded_data, type=list[str])
    return _Part((*columns, data), last, len(joined_data))


_READ = ("run", *EVENT_COLUMNS)
_TYPES: dict[str, Any] = dict.fromkeys(("run", "seq", "ts_us", "mono_ns"), int) | {"attempt": int | None}
_decoder: msgspec.json.Decoder[tuple[list[Any], ...]] = msgspec.json.Decoder(
    tuple[tuple(list[_TYPES.get(name, str | None)] for name in _READ[:-1])]  # type: ignore[misc]
)
_seqs_decoder = msgspec.json.Decoder(list[int])
_ANY = (1 << 63) - 1
_BEHIND = """
      FROM events
     WHERE id > :after
       AND id <= (SELECT max(id)
                    FROM (SELECT id FROM events WHERE id > :after AND id <= :most ORDER BY id LIMIT :limit))
"""
_EVENTS = f"""
    SELECT max(id), CAST(json_array({", ".join(f"json_group_array({name})" for name in _READ[:-1])}) AS BLOB),
           group_concat(data, char({ord(QUOTE)})) {_BEHIND}
"""
_DATA = f"SELECT CAST(json_group_array(data) AS BLOB) {_BEHIND}"
_SEQS = f"SELECT min(run), max(run), CAST(json_group_array(seq) AS BLOB) {_BEHIND}"


def _captured(read: Read, names: Mapping[int, str]) -> list[tuple[str, int, int, str | None]]:
    """The run, number, time and session of each event that may have content."""
    seqs, topics, moments, sessions = (read.columns[place] for place in (SEQ, TOPIC, TS_US, SESSION))
    return [
        (names[read.runs[place]], seqs[place], moments[place], sessions[place])
        for place, topic in enumerate(topics)
        if topic in _CAPTURED
    ]


def _content(statements: Statements, events: list[tuple[str, int, int, str | None]]) -> SessionContent | None:
    """The content that was captured with events and has not been replaced or deleted since."""
    if not events:
        return None
    moments = [ts_us for _, _, ts_us, _ in events]
    positions = {(run_id, seq) for run_id, seq, _, _ in events}
    messages = [
        row
        for row in statements.run(
            f"{_MESSAGES} WHERE m.ts_us BETWEEN ? AND ? ORDER BY m.session_id, m.position",
            (min(moments), max(moments)),
        )
        if (row[2], row[3]) in positions
    ]
    names = {session_id for _, _, _, session_id in events} | {row[0] for row in messages}
    setups: list[Row] = []
    for name in sorted(name for name in names if name is not None):
        setups += statements.run(f"{_SETUPS} WHERE s.session_id = ?", (name,))
    for setup in setups:
        if not setup[2]:  # a branch: its first messages are older
            messages += statements.run(f"{_MESSAGES} WHERE m.session_id = ? ORDER BY m.position", (setup[0],))
    if not setups and not messages:
        return None
    return SessionContent(setups, messages, _bodies(statements, {row[5] for row in (*setups, *messages)}))


_HAS_CONTENT = "SELECT EXISTS (SELECT 1 FROM session_messages) OR EXISTS (SELECT 1 FROM session_setups)"
_MESSAGES = """
    SELECT m.session_id, m.position, r.run_id, m.seq, m.ts_us, m.hash, m.message_id, m.metadata, m.withheld,
           m.epoch
      FROM session_messages AS m JOIN runs AS r ON r.id = m.run
"""
_SETUPS = """
    SELECT s.session_id, r.run_id, s.seq, s.ts_us, s.history, s.hash, s.withheld, s.epoch
      FROM session_setups AS s JOIN runs AS r ON r.id = s.run
"""


def _bodies(statements: Statements, digests: set[bytes | None]) -> list[Row]:
    """The bodies of these hashes, and the bodies that they refer to."""
    found: dict[bytes, Row] = {}
    waiting = [digest for digest in digests if digest is not None]
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


# --- Recently written rows ---
#
# Recently written rows are kept in memory, so that they need not be read again. The file decides which events are
# shipped: the runs and numbers after a position are read from it. If these are exactly the last written batches,
# the other values are taken from memory. Otherwise everything is read: at the start, after an outage, if other
# processes write to the file, and after deletions.


MOST_EVENTS = 10_000
"""The largest number of events in memory. The oldest events are dropped first."""

MOST_BYTES = 8_000_000
"""The largest size of the kept events' data, in bytes."""

_RUN, _SEQ, _DATA_AT = map(STORED_COLUMNS.index, ("run", "seq", "data"))
_ORDER = tuple(map(STORED_COLUMNS.index, EVENT_COLUMNS))
_WIDTH = len(STORED_COLUMNS)


class Written(msgspec.Struct, frozen=True):
    """A batch of events of one run, in the order of the events' numbers in the file."""

    run: int
    """The number of the run in the file."""
    run_id: str
    seqs: list[int]
    """The numbers of the events in their run."""
    events: Values
    """The values of the events, row after row, in the order of `STORED_COLUMNS`."""
    projection: Projection
    size: int
    """The length of the events' data, in characters."""


class Recent:
    """The last batches that were written to one trace file. Batches are kept only while a shipper reads them."""

    def __init__(self) -> None:
        self._batches: deque[Written] = deque()
        self._events = self._size = 0

    def keep(self, batch: Batch) -> None:
        """Keep a committed batch. A batch of several runs is not kept, and is read from the file."""
        if len(batch.runs) != 1:
            return
        values: list[Any] = batch.events
        seqs, size = values[_SEQ::_WIDTH], sum(map(len, values[_DATA_AT::_WIDTH]))
        self._batches.append(Written(values[_RUN], batch.runs[0].run_id, seqs, values, batch.projection, size))
        self._events += len(seqs)
        self._size += size
        while self._events > MOST_EVENTS or self._size > MOST_BYTES:
            self._drop_first()

    def behind(self, position: Position) -> Sequence[Written]:
        """The events after a position that are in memory. Batches before the position are dropped."""
        places = [
            place
            for place, batch in enumerate(self._batches)
            if batch.run_id == position.run_id and batch.seqs[-1] <= position.seq
        ]
        for _ in range(places[-1] + 1 if places else 0):  # batches are in the order of the file
            self._drop_first()
        return tuple(self._batches)

    def forget(self) -> None:
        """Drop all batches, because the file is not shipped at present."""
        self._batches.clear()
        self._events = self._size = 0

    def _drop_first(self) -> None:
        first = self._batches.popleft()
        self._events -= len(first.seqs)
        self._size -= first.size


def matching(batches: Iterable[Written], run: int, run_id: str, seqs: Sequence[int]) -> list[Written]:
    """The batches that match the first of some events of a run. Older batches are left out."""
    found: list[Written] = []
    count = 0
    for batch in batches:
        end = count + len(batch.seqs)
        if (batch.run, batch.run_id) == (run, run_id) and seqs[count:end] == batch.seqs:
            found.append(batch)
            count = end
        elif found:
            break
    return found if 2 * count >= len(seqs) else []


def read_of(batches: Sequence[Written]) -> Read:
    """Convert batches of one run to the form of events that were read from the file."""
    values: list[Any] = list(chain.from_iterable(batch.events for batch in batches))
    columns = [values[place::_WIDTH] for place in _ORDER]
    return Read(values[_RUN::_WIDTH], columns)
