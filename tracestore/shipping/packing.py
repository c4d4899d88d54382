"""How events that were read in a trace file become a shipment, without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter

from bus.events.codec import decode_event

from ..sql.call_rows import IDENTITY, RUN
from ..sql.calls.columns import tags_of
from ..sql.connection import Row, SqlValue
from ..sql.events import COLUMNS
from ..sql.projection import PROJECTED_TOPICS, Projection
from ..sql.run_numbers import RunSpan, ranges
from ..timestamps import US_PER_DAY
from .shipment import Position, Read, SessionContent, Shipment
from .text import Lines, lines_of

EVENT_COLUMNS = (*(name for name in COLUMNS if name not in ("run_id", "data")), "data")
"""The columns of events, besides the run."""

SEQ, TOPIC, TS_US, SESSION = map(EVENT_COLUMNS.index, ("seq", "topic", "ts_us", "session_id"))
_TAGS, _DATA = map(EVENT_COLUMNS.index, ("tags", "data"))
_identity = itemgetter(*map(EVENT_COLUMNS.index, IDENTITY))


def packed(
    read: Sequence[Read],
    names: Mapping[int, str],
    after: Position,
    content: SessionContent | None = None,
    *,
    is_all: bool = True,
    erased: int = 0,
    dead: Collection[str] = (),
) -> Shipment:
    """A shipment of events that follow one another.

    Args:
        read: The events, one at least.
        names: The names of their runs, by the numbers in the file.
        after: The place behind which they lie.
        content: The content that was captured with them.
        is_all: Whether nothing lay behind them when they were read.
        erased: The number of the last deletion in the file when they were read.
        dead: The sessions that were deleted after all that is said of them here.
    """
    numbers, runs, rows = zip(*read, strict=True)
    columns = list(zip(*rows, strict=True))
    moments = columns[TS_US]
    seqs = ranges(runs, columns[SEQ])
    projected = [each for each in read if each[2][TOPIC] in PROJECTED_TOPICS]
    projection = projection_of(projected)
    projection.complete()
    return Shipment(
        after=after,
        last=Position(numbers[-1], names[runs[-1]], rows[-1][SEQ]),
        read=read,
        events=lines_of(EVENT_COLUMNS, runs, rows),
        runs={run: RunSpan(names[run], *times, seqs[run][1]) for run, times in ranges(runs, moments).items()},
        first_seqs={run: first for run, (first, _) in seqs.items()},
        sessions={name: times for name, times in ranges(columns[SESSION], moments).items() if name not in dead},
        days={moment // US_PER_DAY for moment in moments},
        projected=projected,
        projection=projection,
        begun=[_begun(of.insert.columns, of.rows) for of in projection.calls if of.begin and of.rows],
        content=content,
        is_all=is_all,
        erased=erased,
        dead=dead,
    )


def sessions_of(read: Sequence[Read], shipment: Shipment) -> dict[str, tuple[int, int]]:
    """The times of the first and the last of some of a shipment's events, by those sessions that it enters."""
    found = ranges([row[SESSION] for _, _, row in read], [row[TS_US] for _, _, row in read])
    return {name: times for name, times in found.items() if name in shipment.sessions}


def projection_of(read: Iterable[Read]) -> Projection:
    """What follows from events, not yet complete. The number of a run in the file stands for the server's."""
    projection = Projection()
    for _, run, row in read:
        tags = row[_TAGS]
        event = decode_event(row[TOPIC], row[_DATA])
        projection.add(event, run, row[TS_US], list(_identity(row)), tags_of(tags) if tags else None)
    return projection


def is_new(event: Read, numbers: Mapping[int, int], new: Collection[tuple[int, int]]) -> bool:
    """Whether an event is among those that are new to the server: the server's number of its run, and its own."""
    return (numbers[event[1]], event[2][SEQ]) in new


def cleaned(shipment: Shipment, clean: Callable[[str], str]) -> Shipment:
    """A shipment whose texts a server takes.

    Args:
        shipment: The shipment.
        clean: Makes a text that the server takes of one that it doesn't.
    """

    def row(values: Row) -> Row:
        return tuple(clean(value) if isinstance(value, str) else value for value in values)

    names = {number: clean(run.run_id) for number, run in shipment.runs.items()}
    read = [(number, run, row(values)) for number, run, values in shipment.read]
    return packed(
        *(read, names, shipment.after, shipment.content),
        is_all=shipment.is_all,
        erased=shipment.erased,
        dead={clean(name) for name in shipment.dead},
    )


def _begun(columns: tuple[str, ...], rows: list[list[SqlValue]]) -> Lines:
    runs: list[int] = [row[RUN] for row in rows]  # type: ignore[misc]
    values = [(*row[:RUN], *row[RUN + 1 :]) for row in rows]
    return lines_of((*columns[:RUN], *columns[RUN + 1 :]), runs, values)
