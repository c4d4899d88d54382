"""Jobs at a provider: how each began, and whether its cost has been counted.

A call of the operation ``video_create`` creates a job. When the cost of the job is known, a call of the operation
``video`` says it. Both bear the job's id as the provider's response id.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.usage import Cost, CostSource

from ..rows import StoredJob
from .connection import Database

JOB_QUERY = """
    SELECT c.operation, c.request_id, c.cost_nano, c.cost_source, c.cost_version, e.data
      FROM calls AS c
      LEFT JOIN events AS e ON e.request_id = c.request_id AND e.topic = 'job.created'
     WHERE c.provider = ? AND c.response_id = ? AND c.operation IN ('video_create', 'video')
       AND c.status = 'completed'
     ORDER BY c.id DESC
"""

_COUNTED_BEFORE = "its cost was counted when its end was first seen"


class _Terms(msgspec.Struct):
    seconds: int | None = None
    size: str | None = None
    audio: bool | None = None
    key: str | None = None


async def job(database: Database, provider: str, job_id: str) -> StoredJob:
    """A job as far as it is stored; a job without any field if nothing is."""
    found = StoredJob()
    for operation, request_id, nano, source, version, data in await database.read(JOB_QUERY, (provider, job_id)):
        if operation == "video_create":
            terms = _Terms() if data is None else msgspec.json.decode(data, type=_Terms)
            found = msgspec.structs.replace(found, created_by=request_id, **msgspec.structs.asdict(terms))
        else:
            cost = Cost(nano, CostSource(source), version, _COUNTED_BEFORE)
            found = msgspec.structs.replace(found, counted=cost)
    return found
