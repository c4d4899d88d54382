"""*Stage*, the tree of supervision; and *Providers*, who can be asked, and why one was not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import Envelope, ProviderAvailabilityChanged
from callboard.tracestore import CallRow, Store

from ..answers import EventStream, as_json, frame
from ..subject import Subject

EVERY_SECONDS = 1.0
STORED_EVENTS = 5000
ROUTED_CALLS = 300
REJECTIONS = 30
CALLS_SECONDS = 5.0


async def stage(subject: Subject, request: Request) -> Response:
    """The tree of supervision, at once and whenever it may have changed."""
    return EventStream(_stage(subject))


async def _stage(subject: Subject) -> AsyncIterator[bytes]:
    async for _ in subject.changes(EVERY_SECONDS):
        yield frame("stage", as_json({"ts_us": subject.clock.now_us(), **await _tree(subject)}))


async def _tree(subject: Subject) -> dict[str, object]:
    if subject.engine is None:
        async with subject.reading() as store:
            found = await _latest(store, "actor.*", lambda each: getattr(each.data, "actor", ""))
        return {"tree": None, "actors": [_actor(each) for each in found]}
    counted = subject.engine.statistics()
    return {
        "tree": counted.supervisor,
        "state": counted.state,
        "uptime_seconds": counted.uptime_seconds,
        "bus": counted.bus,
        "writer": counted.writer,
        "actors": (),
    }


def _actor(envelope: Envelope) -> dict[str, object]:
    return {"ts_us": envelope.ts_us, "run_id": envelope.run_id, **msgspec.to_builtins(envelope.data)}


async def _latest(store: Store, topic: str, key: Callable[[Envelope], object]) -> Sequence[Envelope]:
    """The latest event of each key, among the last events of the trace."""
    after = max(await store.last_event_id() - STORED_EVENTS * 20, 0)
    found = await store.events(topic=topic, after_id=after, limit=None)
    return list({key(each): each for each in found[-STORED_EVENTS:]}.values())


async def providers(subject: Subject, request: Request) -> Response:
    """The providers and their states, at once and whenever they may have changed."""
    return EventStream(_providers(subject))


async def _providers(subject: Subject) -> AsyncIterator[bytes]:
    looked: int | None = None
    rejected: Sequence[object] = ()
    async for _ in subject.changes(EVERY_SECONDS):
        ns = subject.clock.monotonic_ns()
        if subject.has_trace and (looked is None or ns - looked > CALLS_SECONDS * 1e9):
            looked = ns
            async with subject.reading() as store:
                rejected = rejections(await store.calls(limit=ROUTED_CALLS))
        state = {"ts_us": subject.clock.now_us(), "rejected": rejected, **await _standing(subject)}
        yield frame("providers", as_json(state))


async def _standing(subject: Subject) -> dict[str, object]:
    engine = subject.engine
    if engine is None:
        async with subject.reading() as store:
            found = await _latest(
                store,
                ProviderAvailabilityChanged.topic_of(),
                lambda each: (getattr(each.data, "provider", ""), getattr(each.data, "model", None)),
            )
        return {"configured": {}, "providers": (), "availability": [_told(each) for each in found]}
    counted = engine.statistics()
    return {
        "configured": engine.providers,
        "default": engine.default_provider,
        "providers": counted.providers,
        "availability": counted.availability,
    }


def _told(envelope: Envelope) -> dict[str, object]:
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
    """The candidates that calls did not go to, with the reasons, the latest first."""
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
