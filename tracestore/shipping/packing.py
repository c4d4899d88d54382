"""How events that were read in a trace file become a shipment, without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from callboard.bus.events.calls import LlmCallCompleted
from callboard.bus.events.codec import decode_event
from callboard.bus.events.envelope import Event
from callboard.bus.values.usage import TokenUsage

from ..sql.call_rows import IDENTITY, RUN, Values
from ..sql.calls.columns import tags_of
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
    """A shipment of events that follow one another.

    Args:
        read: The events, one at least.
        names: The names of their runs, by the numbers in the file.
        between: The place behind which they lie, and the number of the last one in the file.
        content: The content that was captured with them.
        projection: What follows from them; None is to find out.
        is_all: Whether nothing lay behind them when they were read.
        erased: The number of the last deletion in the file when they were read.
        dead: The sessions that were deleted after all that is said of them here.
    """
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
        begun=[_begun(of.insert.columns, of.rows) for of in projection.calls if of.begin and of.rows],
        content=content,
        is_all=is_all,
        erased=erased,
        dead=dead,
    )


def _days(moments: Sequence[int]) -> set[int]:
    first, last = min(moments) // US_PER_DAY, max(moments) // US_PER_DAY
    return {first} if first == last else {moment // US_PER_DAY for moment in moments}


def sessions_of(shipment: Shipment, places: Iterable[int]) -> dict[str, tuple[int, int]]:
    """The times of the first and the last of some of a shipment's events, by those sessions that it enters."""
    names, moments = shipment.read.columns[SESSION], shipment.read.columns[TS_US]
    some = list(places)
    found = ranges([names[place] for place in some], [moments[place] for place in some])
    return {name: times for name, times in found.items() if name in shipment.sessions}


def projection_of(read: Read, places: Iterable[int]) -> Projection:
    """What follows from some of the events that were read, not yet complete.

    The number of a run in the file stands for the server's.
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
    """An event as `decode_event` gives it, but for its type: there, a usage object as it came takes long."""
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
    """The places of those events that are new to a server.

    Args:
        shipment: The shipment.
        places: The places of the events that are asked about.
        numbers: The server's numbers of the runs, by their numbers in the file.
        new: The events that are new, each by the server's number of its run and by its own.
    """
    runs, seqs = shipment.read.runs, shipment.read.columns[SEQ]
    return [place for place in places if (numbers[runs[place]], seqs[place]) in new]


def cleaned(shipment: Shipment, clean: Callable[[str], str]) -> Shipment:
    """A shipment whose texts a server takes.

    Args:
        shipment: The shipment.
        clean: Makes a text that the server takes of one that it doesn't.
    """
    read = shipment.read
    columns = [[clean(value) if isinstance(value, str) else value for value in column] for column in read.columns]
    names = {number: clean(run.run_id) for number, run in shipment.runs.items()}
    return packed(
        *(Read(read.runs, columns), names, (shipment.after, shipment.last.event), shipment.content),
        is_all=shipment.is_all,
        erased=shipment.erased,
        dead={clean(name) for name in shipment.dead},
    )


def _begun(names: tuple[str, ...], rows: list[Values]) -> Lines:
    columns: list[Any] = list(zip(*rows, strict=True))
    runs = columns.pop(RUN)
    return lines_of((*names[:RUN], *names[RUN + 1 :]), runs, columns)
