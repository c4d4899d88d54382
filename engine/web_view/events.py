"""The screen "Events": the events of the bus, and messages that no actor will receive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import Envelope, topic_matches
from callboard.bus.events.codec import fields_of
from callboard.bus.subscription import check_pattern
from callboard.tracestore import Store
from callboard.tracestore.codec import encode_event

from ..cli.replay import describe
from .access import EventStream, Refused, answer, as_json, frame
from .subject import LOOK_SECONDS, Subject, Tail

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


def envelope_seen(envelope: Envelope) -> dict[str, object]:
    """An envelope for a page: without content, with a short description."""
    fields = {name: value for name, value in fields_of(envelope).items() if value is not None}
    return {
        **fields,
        "event_id": envelope.event_id,
        "words": describe(envelope),
        "data": msgspec.Raw(encode_event(envelope.data)),
    }


async def history(subject: Subject, request: Request) -> Response:
    """The latest stored events, the oldest first."""
    if not subject.has_trace:
        return answer([])
    filters = _filters_of(request)
    await subject.flush()
    async with subject.reading() as store:
        found = await _latest(store, filters)
    return answer([envelope_seen(each) for each in found[-HISTORY:]])


async def _latest(store: Store, filters: EventFilters) -> list[Envelope]:
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


def moment_of(text: str) -> int:
    """Convert a text to a time in microseconds since the epoch."""
    if not text.isdecimal() or len(text) > 18:
        raise Refused(400, "a time must be a number of microseconds since the epoch")
    return int(text)


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


async def _live(tail: Tail, seq: int | None, matches: Wanted) -> AsyncIterator[bytes]:
    with tail.listening():
        yield frame("ready", b"{}")
        async for batch in tail.after(seq, matches):
            if batch.missed:
                yield frame("missed", as_json({"count": batch.missed}))
            if batch.events:
                yield _frame(batch.events, batch.events[-1].event_id)


async def _stored(subject: Subject, last: str, matches: Wanted) -> AsyncIterator[bytes]:
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
