"""The screens *Now*, *Supervision*, *Providers* and *Events*: the engine at work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import Envelope, ProviderAvailabilityChanged, topic_matches
from callboard.bus.subscription import check_pattern
from callboard.tracestore import CallFilter, CallRow, Store

from .access import EventStream, Refused, answer, as_json, body_of, frame
from .calls import attempt_in_brief, envelope_seen, moment_of
from .subject import LOOK_SECONDS, Subject, Tail

# --- The screen "Now" ---


LATEST = 100
"""The number of latest calls, by start, among which the most recently ended calls are searched."""

RECENT = 20

ROWS = 100
"""The maximum number of turns and calls that are described; others are only counted."""

MANY = 200
EVERY_SECONDS = 0.5
EVERY_SECONDS_OF_MANY = 1.0
SUM_SECONDS = 5.0
"""Seconds between two queries for the day's sums."""

_DAY_US = 24 * 3600 * 1_000_000


class _Cancel(msgspec.Struct, forbid_unknown_fields=True):
    id: str


async def now(subject: Subject, request: Request) -> Response:
    """A snapshot now, and after each possible change."""
    return EventStream(_snapshots(subject))


async def cancel(subject: Subject, request: Request) -> Response:
    cancel_request = await body_of(request, _Cancel)
    engine = await subject.started()
    if not await engine.cancel(cancel_request.id):
        raise Refused(409, "it has already ended, or it belongs to another process")
    return answer({"cancelled": cancel_request.id})


async def _snapshots(subject: Subject) -> AsyncGenerator[bytes]:
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
    work, counted = engine.in_progress(limit=ROWS), engine.statistics()
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
    """The parts of a snapshot that come from the trace, or without a trace from the latest events."""

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
    own_run = None if subject.engine is None else subject.engine.bus.run_id
    open_rows = await store.calls(CallFilter(status="started"), ROWS) if subject.shared else ()
    recent = [row for row in await store.calls(limit=LATEST) if row.status != "started"]
    recent.sort(key=ended_us, reverse=True)
    return {
        "today": sums[0] if sums else None,
        "others": [attempt_in_brief(row) for row in open_rows if row.run_id != own_run],
        "recent": [attempt_in_brief(row) for row in recent[:RECENT]],
    }


def ended_us(row: CallRow) -> int:
    """When an attempt ended, in microseconds since the epoch."""
    return row.finished_us or (row.started_us or 0) + (row.latency_ms or 0) * 1000


# --- The screens "Supervision" and "Providers" ---


STATISTICS_SECONDS = 1.0
STORED_EVENTS = 5000
ROUTED_CALLS = 300
REJECTIONS = 30
CALLS_SECONDS = 5.0


async def supervision(subject: Subject, request: Request) -> Response:
    """The supervision tree, now and after each possible change."""

    async def frames() -> AsyncGenerator[bytes]:
        async for _ in subject.changes(STATISTICS_SECONDS):
            yield frame("supervision", as_json({"ts_us": subject.clock.now_us(), **await _tree(subject)}))

    return EventStream(frames())


async def _tree(subject: Subject) -> dict[str, object]:
    if subject.engine is None:
        async with subject.reading() as store:
            found = await _latest(store, "actor.*", lambda each: getattr(each.data, "actor", ""))
        actors = [{"ts_us": each.ts_us, "run_id": each.run_id, **msgspec.to_builtins(each.data)} for each in found]
        return {"tree": None, "actors": actors}
    counted = subject.engine.statistics()
    return {
        "tree": counted.supervisor,
        "state": counted.state,
        "uptime_seconds": counted.uptime_seconds,
        "bus": counted.bus,
        "writer": counted.writer,
        "actors": (),
    }


async def _latest(store: Store, topic: str, key: Callable[[Envelope], object]) -> Sequence[Envelope]:
    """The latest event for each key, among the latest events of the trace."""
    after = max(await store.last_event_id() - STORED_EVENTS * 20, 0)
    found = await store.events(topic=topic, after_id=after, limit=None)
    return list({key(each): each for each in found[-STORED_EVENTS:]}.values())


async def providers(subject: Subject, request: Request) -> Response:
    """The providers and their states, now and after each possible change."""
    return EventStream(_providers(subject))


async def _providers(subject: Subject) -> AsyncGenerator[bytes]:
    looked: int | None = None
    rejected: Sequence[object] = ()
    async for _ in subject.changes(STATISTICS_SECONDS):
        ns = subject.clock.monotonic_ns()
        if subject.has_trace and (looked is None or ns - looked > CALLS_SECONDS * 1e9):
            looked = ns
            async with subject.reading() as store:
                rejected = rejections(await store.calls(limit=ROUTED_CALLS))
        state = {"ts_us": subject.clock.now_us(), "rejected": rejected, **await _availability(subject)}
        yield frame("providers", as_json(state))


async def _availability(subject: Subject) -> dict[str, object]:
    engine = subject.engine
    if engine is None:
        async with subject.reading() as store:
            found = await _latest(
                store,
                ProviderAvailabilityChanged.topic_of(),
                lambda each: (getattr(each.data, "provider", ""), getattr(each.data, "model", None)),
            )
        return {"configured": {}, "providers": (), "availability": [_availability_of(each) for each in found]}
    counted = engine.statistics()
    return {
        "configured": engine.providers,
        "default": engine.default_provider,
        "providers": counted.providers,
        "availability": counted.availability,
    }


def _availability_of(envelope: Envelope) -> dict[str, object]:
    event = envelope.data
    assert isinstance(event, ProviderAvailabilityChanged)
    return {
        "provider": event.provider,
        "model": event.model,
        "state": event.current,
        "reason": event.reason,
        "retry_at_us": event.retry_at_us,
        "ts_us": envelope.ts_us,
    }


def rejections(rows: Sequence[CallRow]) -> Sequence[object]:
    """The candidates that calls rejected, with the reasons, the latest first."""
    return [
        {
            "request_id": row.request_id,
            "started_us": row.started_us,
            "taken": row.routing.model,
            "model": candidate.model,
            "why": candidate.rejected,
        }
        for row in rows
        if row.routing is not None
        for candidate in row.routing.candidates
        if candidate.rejected is not None
    ][:REJECTIONS]


# --- The screen "Events" ---

HISTORY = 200
SCANNED = 2000
"""The number of the latest stored events that are searched for the history, if no time is requested."""
MOST_SCANNED = 20_000
"""The maximum number of stored events that one request reads, if a session or a time is requested."""
FIRST_WINDOW_US = 60 * 1_000_000
"""The time span that is searched first, back from the end of a time filter. Each next span is four times as
long.
"""
PAGE = 500
MOST_PATTERNS = 20

Wanted = Callable[[Envelope], bool]


class EventFilters(msgspec.Struct, frozen=True):
    """The filters of a page. A field that is None does not filter."""

    patterns: tuple[str, ...]
    session_id: str | None
    tag: tuple[str, str] | None
    since: int | None
    until: int | None

    def match(self, envelope: Envelope) -> bool:
        if self.patterns and not any(topic_matches(pattern, envelope.topic) for pattern in self.patterns):
            return False
        if self.session_id is not None and envelope.session_id != self.session_id:
            return False
        if self.tag is not None and (envelope.tags or {}).get(self.tag[0]) != self.tag[1]:
            return False
        if self.since is not None and envelope.ts_us < self.since:
            return False
        return self.until is None or envelope.ts_us < self.until


async def history(subject: Subject, request: Request) -> Response:
    """The latest stored events, the oldest first."""
    if not subject.has_trace:
        return answer([])
    filters = _filters_of(request)
    await subject.flush()
    async with subject.reading() as store:
        found = await _latest_matching(store, filters)
    return answer([envelope_seen(each) for each in found[-HISTORY:]])


async def _latest_matching(store: Store, filters: EventFilters) -> list[Envelope]:
    """The latest stored events that match a page's filters, the oldest first."""
    if filters.session_id is not None:
        events = await store.events(
            session_id=filters.session_id, since=filters.since, until=filters.until, limit=MOST_SCANNED
        )
        return [each for each in events if filters.match(each)]
    if filters.until is None:
        scanned = SCANNED if filters.since is None and filters.tag is None else MOST_SCANNED
        after = max(await store.last_event_id() - scanned, 0)
        latest = await store.events(after_id=after, since=filters.since, limit=None)
        return [each for each in latest if filters.match(each)]
    found: list[Envelope] = []
    end, window, remaining = filters.until, FIRST_WINDOW_US, MOST_SCANNED
    first = filters.since or 0
    while end > first and remaining > 0 and len(found) < HISTORY:
        start = max(end - window, first)
        some = await store.events(since=start, until=end, limit=remaining)
        found = [each for each in some if filters.match(each)] + found
        end, window, remaining = start, window * 4, remaining - len(some)
    return found


async def events(subject: Subject, request: Request) -> Response:
    """The events as they arrive, after the last event that the page has."""
    matches = _filters_of(request).match
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    if subject.tail is None:
        return EventStream(_stored(subject, last, matches))
    await subject.started()
    return EventStream(_live(subject.tail, _seq_of(last, subject), matches))


async def dead_letters(subject: Subject, request: Request) -> Response:
    """The latest messages to actors that had stopped or had a full mailbox, the newest first."""
    if subject.engine is None:
        return answer({"total": 0, "letters": ()})
    bus = subject.engine.bus
    return answer({"total": bus.statistics().dead_letters, "letters": bus.dead_letters[::-1][:HISTORY]})


def _filters_of(request: Request) -> EventFilters:
    patterns = [each for each in request.query_params.get("topics", "").split(",") if each.strip()]
    patterns = [each.strip() for each in patterns[:MOST_PATTERNS]]
    try:
        for pattern in patterns:
            check_pattern(pattern)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    since, until = (request.query_params.get(name) or None for name in ("since", "until"))
    key, colon, value = request.query_params.get("tag", "").partition(":")
    return EventFilters(
        patterns=tuple(patterns),
        session_id=request.query_params.get("session_id") or None,
        tag=(key, value) if colon else None,
        since=None if since is None else moment_of(since),
        until=None if until is None else moment_of(until),
    )


def _seq_of(last: str, subject: Subject) -> int | None:
    """The number of the last event that the page has; None if it has no event of this run."""
    assert subject.engine is not None
    run, _, seq = last.rpartition("-")
    return int(seq) if run == subject.engine.bus.run_id and seq.isdecimal() and len(seq) < 19 else None


async def _live(tail: Tail, seq: int | None, matches: Wanted) -> AsyncGenerator[bytes]:
    with tail.listening():
        yield frame("ready", b"{}")
        async for batch in tail.after(seq, matches):
            if batch.missed:
                yield frame("missed", as_json({"count": batch.missed}))
            if batch.events:
                yield _frame(batch.events, batch.events[-1].event_id)


async def _stored(subject: Subject, last: str, matches: Wanted) -> AsyncGenerator[bytes]:
    """The events of a trace that another process writes, by their numbers in the trace."""
    async with subject.reading() as store:
        after = int(last) if last.isdecimal() and len(last) < 19 else await store.last_event_id()
        yield frame("ready", b"{}")
        while True:
            numbered = await store.numbered_events(after_id=after, limit=PAGE)
            if numbered:
                after = numbered[-1][0]
                some = [each for _, each in numbered if matches(each)]
                yield _frame(some, str(after))
            if len(numbered) < PAGE:
                await anyio.sleep(LOOK_SECONDS)


def _frame(envelopes: Sequence[Envelope], frame_id: str) -> bytes:
    return frame("events", as_json([envelope_seen(each) for each in envelopes]), frame_id)
