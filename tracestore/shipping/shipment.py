"""The values that are shipped from a trace file to a shared store, and the interface of the receiver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from callboard.bus.clock import US_PER_DAY
from callboard.bus.events import Event
from callboard.bus.events.calls import LlmCallCompleted
from callboard.bus.events.codec import decode_event
from callboard.bus.values.usage import TokenUsage

from ..sql.call_rows import IDENTITY, RUN, Values, tags_of
from ..sql.connection import Row, SqlValue
from ..sql.events import COLUMNS, RunSpan, ranges
from ..sql.expiry import Erasure
from ..sql.projection import PROJECTED_TOPICS, Projection


class Position(msgspec.Struct, frozen=True):
    """A position in a trace file: an event, and all events before it.

    The event's number is not enough. In a fully pruned file the numbers start from 1 again. In a copy of a file,
    the same numbers belong to other events.
    """

    event: int = 0
    """The number of the event in the file; 0 is the start."""
    run_id: str = ""
    seq: int = 0
    """The number of the event in its run."""


START = Position()
"""The position before the first event."""


class Read(msgspec.Struct, frozen=True):
    """Events that were read from a file, column by column, so that thousands of events need few objects."""

    runs: list[int]
    """The number of each event's run in the file."""
    columns: Sequence[Sequence[Any]]
    """The values of the events, column by column, in the order of `EVENT_COLUMNS`."""

    def __len__(self) -> int:
        return len(self.runs)


class SessionContent(msgspec.Struct, frozen=True):
    """Captured content of the events in a shipment, as rows. The rows contain the ids of runs."""

    setups: list[Row]
    """Rows of session_id, run_id, seq, ts_us, history, hash, withheld, epoch"""
    messages: list[Row]
    """Rows of session_id, position, run_id, seq, ts_us, hash, message_id, metadata, withheld, epoch"""
    bodies: list[Row]
    """Rows of hash, last_us, body"""


class Shipment(msgspec.Struct, frozen=True):
    """Consecutive events of a trace file, and the rows that are derived from them."""

    after: Position
    last: Position
    read: Read
    events: Lines
    runs: dict[int, RunSpan]
    """The parts of runs in the shipment's events, by the numbers of the runs in the file."""
    first_seqs: dict[int, int]
    """The lowest number of an event in each run, by the numbers of the runs in the file."""
    sessions: dict[str, tuple[int, int]]
    """The times of the first and the last event of each session that was not deleted, in microseconds UTC."""
    days: set[int]
    """The days of the events, since 1970."""
    projected: list[int]
    """The indexes of the events that change other tables."""
    projection: Projection
    begun: list[Lines]
    """The calls that start in the shipment's events, as text for COPY."""
    content: SessionContent | None = None
    """The content that was captured with the events; None if there is none."""
    is_all: bool = True
    """Whether no later events existed at the time of reading."""
    erased: int = 0
    """The number of the file's last deletion when the shipment was read. The store has already repeated it."""
    dead: Collection[str] = ()
    """The sessions whose messages in this shipment were all deleted in the file."""

    def __len__(self) -> int:
        return len(self.read)


class Reading(msgspec.Struct, frozen=True):
    """The next part of a trace file: deletions, or events. Deletions come first."""

    shipment: Shipment | None = None
    erasures: Sequence[Erasure] = ()


class Ending(msgspec.Struct, frozen=True):
    ended_us: int
    """The time at which the run was marked as ended."""
    ending: str
    """How the run ended, as in the column ``ending``."""


class Origin(msgspec.Struct, frozen=True):
    """A trace file in a shared store."""

    name: str
    """An identifier that no other file has."""
    host: str = ""
    """The name of the machine, for people."""
    file: str = ""
    """The path, for people."""


class Target(Protocol):
    """A shared store for a shipper. Each failure is a StoreError."""

    @property
    def name(self) -> str:
        """The name of the store in messages and file names, without any password."""
        ...

    async def open(self) -> None:
        """Connect to the store, and upgrade it if needed. If the store is connected, nothing happens."""

    async def close(self) -> None:
        """Close the store. Closing twice is harmless."""

    async def position(self, origin: Origin) -> Position:
        """The position up to which the store has all events of a file; `START` for an unknown file."""
        ...

    async def take(self, origin: Origin, shipment: Shipment) -> Position:
        """Store the new part of a shipment, its rows, and its end position, all in one transaction."""
        ...

    async def pass_over(self, origin: Origin, shipment: Shipment) -> None:
        """Record the end position of a shipment that the store refuses."""

    async def erased(self, origin: Origin) -> int:
        """The number of a file's last deletion that the store has repeated."""
        ...

    async def erase(self, origin: Origin, erasures: Collection[Erasure]) -> None:
        """Repeat deletions of a file in the store. A deletion that was already repeated has no effect."""

    async def open_runs(self, origin: Origin) -> Collection[str]:
        """The runs of a file without an end in the store."""
        ...

    async def end_runs(self, endings: Mapping[str, Ending]) -> None: ...


# --- Rows for COPY ---
#
# The rows are CSV with control characters in place of commas and quotes. All values are quoted. A third control
# character means NULL, even in quotes. So rows are made by joining texts. If a text contains one of these
# characters, the rows are made value by value.


_BETWEEN = "\x1f"
QUOTE = "\x02"
"""The quote character. A quote character in a value is doubled."""
_NULL = "\x1e"
_END = "\n"
_ROWS_AT_ONCE = 250
"""The number of rows in one piece of text. psycopg sends this many rows of usual size in one piece."""

_OPTIONS = f"FORMAT csv, DELIMITER '{_BETWEEN}', QUOTE '{QUOTE}', NULL '{_NULL}'"


class Lines(msgspec.Struct, frozen=True):
    """Rows of one table as text, without the numbers of runs, because the server has its own numbers."""

    columns: tuple[str, ...]
    """The columns, without the run and without columns that are NULL in all rows."""
    options: str
    """The options for COPY to read the text."""
    runs: Sequence[int]
    """The number of each row's run in the file."""
    rows: list[str]
    """The text of each row, without the run's number and the common start and end of all rows."""
    begin: str
    """The text between the number of the run and the text of a row."""
    end: str
    """The text after the text of a row."""

    def parts(self, runs: Mapping[int, int]) -> Iterator[bytes]:
        """The text of all rows in pieces, as UTF-8. Each row starts with the number that its run has on the
        server. A single text of all rows would take some megabytes of memory.
        """
        before = {number: f"{there}{self.begin}" for number, there in runs.items()}
        for place in range(0, len(self.rows), _ROWS_AT_ONCE):
            rows = self.rows[place : place + _ROWS_AT_ONCE]
            if len(before) > 1:
                runs_of = self.runs[place : place + _ROWS_AT_ONCE]
                text = "".join([before[run] + row + self.end for run, row in zip(runs_of, rows, strict=True)])
            else:
                (begin,) = before.values()
                text = f"{begin}{f'{self.end}{begin}'.join(rows)}{self.end}"
            yield text.encode("utf-8", "surrogatepass")  # the server rejects half a surrogate pair


def lines_of(names: Sequence[str], runs: Sequence[int], columns: Sequence[Sequence[SqlValue]]) -> Lines:
    missing = {name: column.count(None) for name, column in zip(names, columns, strict=True)}
    some = [place for place, name in enumerate(names) if missing[name] < len(runs)] or [0]
    names, columns = tuple(names[place] for place in some), [columns[place] for place in some]
    with_nulls = [name for name in names if missing[name]]
    options = f"{_OPTIONS}, FORCE_NULL ({', '.join(with_nulls)})" if with_nulls else _OPTIONS
    try:
        texts = [_texts(column, missing[name]) for name, column in zip(names, columns, strict=True)]
        rows = list(map(f"{QUOTE}{_BETWEEN}{QUOTE}".join, zip(*texts, strict=True)))
        return Lines(names, options, runs, rows, f"{_BETWEEN}{QUOTE}", f"{QUOTE}{_END}")
    except (TypeError, _SignInText):  # a column has values of several types
        return Lines(names, _OPTIONS, runs, list(map(_row, zip(*columns, strict=True))), _BETWEEN, _END)


class _SignInText(Exception):
    pass


def _texts(column: Sequence[SqlValue], missing: int) -> Sequence[str]:
    """The values of a column as text. In a column of several types, values that are not text may remain."""
    if isinstance(next((value for value in column if value is not None), ""), int):
        encoded = msgspec.json.encode(column).decode()  # many times faster than str
        if '"' in encoded or encoded.count("null") != missing:
            raise TypeError("not all of them are whole numbers")
        texts = encoded[1:-1].split(",")
        return [_NULL if text == "null" else text for text in texts] if missing else texts
    if missing:
        if _NULL in column:
            raise _SignInText
        column = [_NULL if value is None else value for value in column]
    if QUOTE in "".join(column):  # type: ignore[arg-type]
        raise _SignInText
    return column  # type: ignore[return-value]


def _row(values: Iterable[SqlValue]) -> str:
    return _BETWEEN.join(map(_value, values))


def _value(value: SqlValue) -> str:
    return _NULL if value is None else f"{QUOTE}{str(value).replace(QUOTE, QUOTE * 2)}{QUOTE}"


# --- Events as a shipment ---


EVENT_COLUMNS = (*(name for name in COLUMNS if name not in ("run_id", "data")), "data")
"""The columns of events, except the run."""

SEQ, TOPIC, TS_US, SESSION = map(EVENT_COLUMNS.index, ("seq", "topic", "ts_us", "session_id"))
_TAGS, _DATA = map(EVENT_COLUMNS.index, ("tags", "data"))
_IDENTITY = tuple(map(EVENT_COLUMNS.index, IDENTITY))


def packed(
    read: Read,
    names: Mapping[int, str],
    between: tuple[Position, int],
    content: SessionContent | None = None,
    projection: Projection | None = None,
    *,
    is_all: bool = True,
    erased: int = 0,
    dead: Collection[str] = (),
) -> Shipment:
    runs, seqs, moments = read.runs, read.columns[SEQ], read.columns[TS_US]
    of_runs = ranges(runs, seqs)
    sessions = ranges(read.columns[SESSION], moments)
    projected = [place for place, topic in enumerate(read.columns[TOPIC]) if topic in PROJECTED_TOPICS]
    if projection is None:
        projection = projection_of(read, projected)
        projection.complete()
    after, last = between
    return Shipment(
        after=after,
        last=Position(last, names[runs[-1]], seqs[-1]),
        read=read,
        events=lines_of(EVENT_COLUMNS, runs, read.columns),
        runs={run: RunSpan(names[run], *times, of_runs[run][1]) for run, times in ranges(runs, moments).items()},
        first_seqs={run: first for run, (first, _) in of_runs.items()},
        sessions={name: times for name, times in sessions.items() if name not in dead},
        days=_days(moments),
        projected=projected,
        projection=projection,
        begun=[_started_rows(of.insert.columns, of.rows) for of in projection.calls if of.begin and of.rows],
        content=content,
        is_all=is_all,
        erased=erased,
        dead=dead,
    )


def _days(moments: Sequence[int]) -> set[int]:
    first, last = min(moments) // US_PER_DAY, max(moments) // US_PER_DAY
    return {first} if first == last else {moment // US_PER_DAY for moment in moments}


def sessions_of(shipment: Shipment, places: Iterable[int]) -> dict[str, tuple[int, int]]:
    """The times of the first and the last of some events, for each session that the shipment stores."""
    names, moments = shipment.read.columns[SESSION], shipment.read.columns[TS_US]
    some = list(places)
    found = ranges([names[place] for place in some], [moments[place] for place in some])
    return {name: times for name, times in found.items() if name in shipment.sessions}


def projection_of(read: Read, places: Iterable[int]) -> Projection:
    """The rows that are derived from some of the events, before `Projection.complete`.

    The rows have a run's number in the file, in place of its number on the server.
    """
    projection = Projection()
    topics, moments, all_tags, data = (read.columns[place] for place in (TOPIC, TS_US, _TAGS, _DATA))
    identities = [read.columns[place] for place in _IDENTITY]
    for place in places:
        tags = all_tags[place]
        projection.add(
            _event(topics[place], data[place]),
            read.runs[place],
            moments[place],
            [column[place] for column in identities],
            tags_of(tags) if tags else None,
        )
    return projection


class _Usage(TokenUsage, frozen=True, gc=False):
    raw: msgspec.Raw = msgspec.Raw(b"null")


class _Completed(LlmCallCompleted, frozen=True, kw_only=True, gc=True, tag=LlmCallCompleted.topic_of()):
    usage: _Usage


_completed = msgspec.json.Decoder(_Completed)


def _event(topic: str, data: str) -> Event:
    """Like `decode_event`, but the usage objects are not decoded, because decoding them is slow."""
    if topic == _Completed.topic_of() and _Completed.SCHEMA == 1 and data.startswith('{"type":'):
        try:
            event = _completed.decode(data)
        except msgspec.DecodeError:
            return decode_event(topic, data)
        if bytes(event.usage.raw) == b"null":
            msgspec.structs.force_setattr(event.usage, "raw", None)
        return event
    return decode_event(topic, data)


def are_new(
    shipment: Shipment, places: Iterable[int], numbers: Mapping[int, int], new: Collection[tuple[int, int]]
) -> list[int]:
    runs, seqs = shipment.read.runs, shipment.read.columns[SEQ]
    return [place for place in places if (numbers[runs[place]], seqs[place]) in new]


def cleaned(shipment: Shipment, clean: Callable[[str], str]) -> Shipment:
    """Replace texts in a shipment that a server would reject."""
    read = shipment.read
    columns = [[clean(value) if isinstance(value, str) else value for value in column] for column in read.columns]
    names = {number: clean(run.run_id) for number, run in shipment.runs.items()}
    return packed(
        *(Read(read.runs, columns), names, (shipment.after, shipment.last.event), shipment.content),
        is_all=shipment.is_all,
        erased=shipment.erased,
        dead={clean(name) for name in shipment.dead},
    )


def _started_rows(names: tuple[str, ...], rows: list[Values]) -> Lines:
    columns: list[Any] = list(zip(*rows, strict=True))
    runs = columns.pop(RUN)
    return lines_of((*names[:RUN], *names[RUN + 1 :]), runs, columns)
