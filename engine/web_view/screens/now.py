"""*Now*: what is under way, what it costs, and what has just ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.tracestore import CallFilter, CallRow, Store

from ..access import body_of
from ..answers import EventStream, Refused, answer, as_json, frame
from ..subject import Subject
from .rows import attempt_in_brief

LATEST = 100
"""The number of calls, the latest that began, among which those are found that ended last."""

RECENT = 20

ROWS = 100
"""The number of turns and calls that are described; the others are only counted."""

MANY = 200
EVERY_SECONDS = 0.5
EVERY_SECONDS_OF_MANY = 1.0
SUM_SECONDS = 5.0
"""The time between two questions for the sums of the day."""

_DAY_US = 24 * 3600 * 1_000_000


class _Cancel(msgspec.Struct, forbid_unknown_fields=True):
    id: str


async def now(subject: Subject, request: Request) -> Response:
    """A snapshot at once, and then whenever it may have changed."""
    return EventStream(_snapshots(subject))


async def cancel(subject: Subject, request: Request) -> Response:
    """Cancel a turn.

    Raises:
        Refused: It is not under way here.
    """
    asked = await body_of(request, _Cancel)
    engine = await subject.started()
    if not await engine.cancel(asked.id):
        raise Refused(409, "it is over already, or belongs to another process")
    return answer({"cancelled": asked.id})


async def _snapshots(subject: Subject) -> AsyncIterator[bytes]:
    sums = _Sums(subject)
    last, many = 0, False
    async for _ in subject.changes(EVERY_SECONDS):
        ns = subject.clock.monotonic_ns()
        if many and ns - last < EVERY_SECONDS_OF_MANY * 0.9e9:
            continue
        last = ns
        await sums.look(ns)
        found = _of_engine(subject)
        many = found["total"] > MANY  # type: ignore[operator]
        yield frame("now", as_json({"ts_us": subject.clock.now_us(), **found, **sums.found}))


def _of_engine(subject: Subject) -> dict[str, object]:
    engine = subject.engine
    if engine is None:
        return {"state": "trace", "items": (), "total": 0, "characters": 0}
    work, counted = engine.under_way(limit=ROWS), engine.statistics()
    return {
        "state": counted.state,
        "uptime_seconds": counted.uptime_seconds,
        "items": work.items,
        "total": work.total,
        "characters": work.characters,
        "turns_waiting": counted.turns_waiting,
        "calls_waiting": sum(each.waiting for each in counted.providers),
        "budget_waiting": counted.budget_waiting,
        "sessions": counted.sessions,
        "streams": counted.streams,
        "writer": None if counted.writer is None else counted.writer.state,
        "prices_version": counted.prices_version,
    }


class _Sums:
    """The parts of a snapshot that come from the trace, or else from the latest events."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._looked: int | None = None
        self.found: dict[str, object] = {"today": None, "others": (), "recent": ()}

    async def look(self, now_ns: int) -> None:
        if not self._subject.has_trace:
            return
        if self._looked is not None and now_ns - self._looked < SUM_SECONDS * 1e9:
            return
        self._looked = now_ns
        async with self._subject.reading() as store:
            self.found = await _from_trace(self._subject, store)


async def _from_trace(subject: Subject, store: Store) -> dict[str, object]:
    midnight = subject.clock.now_us() // _DAY_US * _DAY_US
    sums = await store.costs(CallFilter(since=midnight), ())
    own = None if subject.engine is None else subject.engine.bus.run_id
    begun = await store.calls(CallFilter(status="started"), ROWS) if subject.shared else ()
    recent = [row for row in await store.calls(limit=LATEST) if row.status != "started"]
    recent.sort(key=ended_us, reverse=True)
    return {
        "today": sums[0] if sums else None,
        "others": [attempt_in_brief(row) for row in begun if row.run_id != own],
        "recent": [attempt_in_brief(row) for row in recent[:RECENT]],
    }


def ended_us(row: CallRow) -> int:
    """When an attempt ended, in microseconds since the epoch."""
    return row.finished_us or (row.started_us or 0) + (row.latency_ms or 0) * 1000
