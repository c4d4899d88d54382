"""Batches at a provider: how each was planned and sent, and which of their requests have been counted.

A batch's events have its id as their request. The end of a part has the id of the call that created the part. Each
request is a call of its own, of the operation ``batch``, which is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from ..rows import CountedCall, StoredBatch, StoredSubmission
from .calls.columns import USAGE_COLUMNS, cost_columns, cost_of, usage_of
from .connection import Database

_TOPICS = "('batch.planned', 'batch.submitting', 'batch.submitted', 'batch.progress', 'batch.completed')"
BATCH_EVENTS = (
    f"SELECT topic, ts_us, tags, data FROM events WHERE request_id = ? AND topic IN {_TOPICS} ORDER BY id"
)
PART_ENDED = "SELECT 1 FROM events WHERE request_id = ? AND topic = 'batch.part_ended' LIMIT 1"
LATEST_BATCHES = "SELECT request_id FROM events WHERE topic = 'batch.planned' ORDER BY id DESC LIMIT ?"
_CHUNK = 500


class _Told(msgspec.Struct):
    """The fields of a batch's events, as far as they are looked at."""

    provider: str
    model: str
    parts: tuple[int, ...] = ()
    digest: str = ""
    request_ids: tuple[str, ...] = ()
    key: str | None = None
    part: int = 0
    call_id: str = ""
    began_at: int = 0
    job_id: str | None = None
    certain: bool = True
    status: str | None = None
    succeeded: int = 0
    failed: int = 0


_decode = msgspec.json.Decoder(_Told).decode
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode


async def batch(database: Database, batch_id: str) -> StoredBatch | None:
    """A batch as far as it is stored; None if nothing is."""
    found: StoredBatch | None = None
    for topic, ts_us, tags, data in await database.read(BATCH_EVENTS, (batch_id,)):
        told = _decode(data)
        if topic == "batch.planned" and found is None:
            found = StoredBatch(
                batch_id=batch_id,
                provider=told.provider,
                model=told.model,
                parts=told.parts,
                digest=told.digest,
                planned_us=ts_us,
                request_ids=told.request_ids,
                key=told.key,
                tags=None if tags is None else _decode_tags(tags),
            )
        elif found is not None:
            found = _with_event(found, topic, told)
    return None if found is None else await _with_ends(database, found)


def _with_event(found: StoredBatch, topic: str, told: _Told) -> StoredBatch:
    if topic == "batch.submitting":
        sent = StoredSubmission(call_id=told.call_id, began_at=told.began_at)
        return msgspec.structs.replace(found, submissions={**found.submissions, told.part: sent})
    if topic == "batch.submitted":
        before = found.submissions.get(told.part) or StoredSubmission(call_id=told.call_id, began_at=0)
        sent = msgspec.structs.replace(
            before, call_id=told.call_id, job_id=told.job_id, key=told.key, certain=told.certain
        )
        return msgspec.structs.replace(found, submissions={**found.submissions, told.part: sent})
    return msgspec.structs.replace(
        found,
        status=told.status,
        succeeded=told.succeeded,
        failed=told.failed,
        completed=found.completed or topic == "batch.completed",
    )


async def _with_ends(database: Database, found: StoredBatch) -> StoredBatch:
    submissions = {}
    for part, sent in found.submissions.items():
        ended = bool(await database.read(PART_ENDED, (sent.call_id,)))
        submissions[part] = msgspec.structs.replace(sent, ended=ended)
    return msgspec.structs.replace(found, submissions=submissions)


async def batches(database: Database, limit: int) -> list[StoredBatch]:
    """The latest batches, the latest first."""
    found = [await batch(database, str(row[0])) for row in await database.read(LATEST_BATCHES, (limit,))]
    return [each for each in found if each is not None]


async def counted_calls(database: Database, request_ids: Sequence[str]) -> dict[str, CountedCall]:
    """Those of some calls that have an end, by their ids."""
    columns = ", ".join([*USAGE_COLUMNS, *cost_columns("cost")])
    counted: dict[str, CountedCall] = {}
    for chunk in _chunks(request_ids):
        marks = ", ".join("?" * len(chunk))
        sql = (
            f"SELECT request_id, error_type, {columns} FROM calls"
            f" WHERE request_id IN ({marks}) AND status <> 'started' ORDER BY attempt"
        )
        for request_id, error_type, *values in await database.read(sql, chunk):
            width = len(USAGE_COLUMNS)
            cost, usage = cost_of(tuple(values[width:])), usage_of(values[:width])
            counted[request_id] = CountedCall(cost, usage, error_type)
    return counted


def _chunks(values: Sequence[str]) -> Iterable[list[str]]:
    rest = iter(values)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk
