"""What the trace knows of a job: how it began, and whether its cost is counted."""

from __future__ import annotations

import msgspec

from adapters.video import VideoTerms
from bus import Cost, CostSource
from tracestore import TraceStore

_CREATED = """
    SELECT c.request_id, e.data
      FROM calls AS c LEFT JOIN events AS e ON e.request_id = c.request_id AND e.topic = 'job.created'
     WHERE c.provider = ? AND c.response_id = ? AND c.operation = 'video_create'
     LIMIT 1
"""
_COUNTED = """
    SELECT cost_nano, cost_version
      FROM calls
     WHERE provider = ? AND response_id = ? AND operation = 'video' AND status = 'completed'
     LIMIT 1
"""
COUNTED_BEFORE = "its cost was counted when its end was first seen"


class _Terms(msgspec.Struct):
    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None


async def created_terms(store: TraceStore | None, provider: str, job_id: str) -> tuple[VideoTerms, str | None]:
    """What a job makes, and which request created it, as far as the trace knows. Raises StoreError."""
    found = await _row(store, _CREATED, provider, job_id)
    if found is None:
        return VideoTerms(), None
    request_id, data = found
    terms = msgspec.json.decode(str(data), type=_Terms) if data is not None else _Terms()
    return VideoTerms(terms.seconds, terms.size, terms.audio), str(request_id)


async def counted_cost(store: TraceStore | None, provider: str, job_id: str) -> Cost | None:
    """What a completed job was counted with; None if it was not. Raises StoreError."""
    found = await _row(store, _COUNTED, provider, job_id)
    if found is None:
        return None
    nano, version = found
    source = CostSource.UNPRICED if nano is None else CostSource.COMPUTED
    return Cost(
        nano if isinstance(nano, int) else None,
        source,
        None if version is None else str(version),
        COUNTED_BEFORE,
    )


async def _row(store: TraceStore | None, sql: str, provider: str, job_id: str) -> tuple[object, ...] | None:
    if store is None or not store.is_open:
        return None
    result = await store.sql(sql, (provider, job_id))
    return tuple(result.rows[0]) if result.rows else None
