"""What is stored of a job at a provider: how it began, and whether what it cost has been counted.

A job is created by a call of the operation ``video_create``, and what it comes to is a call of its own, ``video``,
when that is known. Both bear the job's id as the provider's response id.
"""

from __future__ import annotations

import msgspec

from bus.values.usage import Cost, CostSource

from ..sqlite.database import Database

JOBS = ("CREATE INDEX calls_of_jobs ON calls (response_id) WHERE operation IN ('video_create', 'video')",)
"""The migration: the trace of a busy host has millions of calls and few jobs."""

JOB_QUERY = """
    SELECT c.operation, c.request_id, c.cost_nano, c.cost_source, c.cost_version, e.data
      FROM calls AS c
      LEFT JOIN events AS e ON e.request_id = c.request_id AND e.topic = 'job.created'
     WHERE c.provider = ? AND c.response_id = ? AND c.operation IN ('video_create', 'video')
       AND c.status = 'completed'
     ORDER BY c.id DESC
"""

_COUNTED_BEFORE = "its cost was counted when its end was first seen"


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as far as it is stored; what isn't known is None.

    created_by: the request that created it. seconds, size, audio: what it makes. counted: what it cost, as soon as
    a call of its own says so.
    """

    created_by: str | None = None
    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None
    counted: Cost | None = None


class _Terms(msgspec.Struct):
    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None


async def job(database: Database, provider: str, job_id: str) -> StoredJob:
    """The query behind `TraceStore.job`."""
    created_by: str | None = None
    terms = _Terms()
    counted: Cost | None = None
    for operation, request_id, nano, source, version, data in await database.read(JOB_QUERY, (provider, job_id)):
        if operation == "video_create":
            created_by = request_id
            terms = _Terms() if data is None else msgspec.json.decode(data, type=_Terms)
        else:
            counted = Cost(nano, CostSource(source), version, _COUNTED_BEFORE)
    return StoredJob(
        created_by=created_by, seconds=terms.seconds, size=terms.size, audio=terms.audio, counted=counted
    )
