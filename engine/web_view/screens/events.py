"""*Events*: the bus as it goes by, and the messages that no actor will ever see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import Envelope, topic_matches
from callboard.bus.events.codec import fields_of
from callboard.bus.observable import check_pattern
from callboard.tracestore.codec import encode_event

from ...cli.look.events import describe
from ..answers import EventStream, Refused, answer, as_json, frame
from ..subject import LOOK_SECONDS, Subject
from ..tail import Tail

HISTORY = 200
PAGE = 500
MOST_PATTERNS = 20

Wanted = Callable[[Envelope], bool]


def envelope_seen(envelope: Envelope) -> dict[str, object]:
    """An envelope as a page may see it: without any content, and with a few words about it."""
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
    wanted = _wanted(request)
    await subject.flush()
    async with subject.reading() as store:
        after = max(await store.last_event_id() - 2000, 0)
        found = [each for each in await store.events(after_id=after, limit=None) if wanted(each)]
    return answer([envelope_seen(each) for each in found[-HISTORY:]])


async def events(subject: Subject, request: Request) -> Response:
    """The events as they come, from behind the last one that the page has."""
    wanted = _wanted(request)
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    if subject.tail is None:
        return EventStream(_stored(subject, last, wanted))
    await subject.started()
    return EventStream(_live(subject.tail, _seq_of(last, subject), wanted))


async def dead_letters(subject: Subject, request: Request) -> Response:
    """The latest messages to actors that had stopped or were full, the newest first."""
    if subject.engine is None:
        return answer({"total": 0, "letters": ()})
    bus = subject.engine.bus
    return answer({"total": bus.statistics().dead_letters, "letters": bus.dead_letters[::-1][:HISTORY]})


def _wanted(request: Request) -> Wanted:
    """Whether an event is of the topics that the page asks for.

    Raises:
        Refused: A pattern could match nothing.
    """
    patterns = [each for each in request.query_params.get("topics", "").split(",") if each.strip()]
    patterns = [each.strip() for each in patterns[:MOST_PATTERNS]]
    try:
        for pattern in patterns:
            check_pattern(pattern)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    if not patterns:
        return lambda envelope: True
    return lambda envelope: any(topic_matches(pattern, envelope.topic) for pattern in patterns)


def _seq_of(last: str, subject: Subject) -> int | None:
    """The number of the last event that the page has; None if it has none of this run."""
    assert subject.engine is not None
    run, _, seq = last.rpartition("-")
    return int(seq) if run == subject.engine.bus.run_id and seq.isdecimal() and len(seq) < 19 else None


async def _live(tail: Tail, seq: int | None, wanted: Wanted) -> AsyncIterator[bytes]:
    with tail.listening():
        yield frame("ready", b"{}")
        async for lot in tail.after(seq, wanted):
            if lot.missed:
                yield frame("missed", as_json({"count": lot.missed}))
            if lot.events:
                yield _lot(lot.events, lot.events[-1].event_id)


async def _stored(subject: Subject, last: str, wanted: Wanted) -> AsyncIterator[bytes]:
    """The events of a trace that another process writes, by their numbers there."""
    async with subject.reading() as store:
        after = int(last) if last.isdecimal() and len(last) < 19 else await store.last_event_id()
        yield frame("ready", b"{}")
        while True:
            numbered = await store.numbered_events(after_id=after, limit=PAGE)
            if numbered:
                after = numbered[-1][0]
                some = [each for _, each in numbered if wanted(each)]
                yield _lot(some, str(after))
            if len(numbered) < PAGE:
                await anyio.sleep(LOOK_SECONDS)


def _lot(envelopes: Sequence[Envelope], frame_id: str) -> bytes:
    return frame("events", as_json([envelope_seen(each) for each in envelopes]), frame_id)
