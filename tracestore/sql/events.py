"""Stored events, and the replies, jobs and batches at a provider that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice

import msgspec

from callboard.bus.events.codec import decode_event
from callboard.bus.events.envelope import Envelope
from callboard.bus.values.usage import Cost, CostSource

from ..rows import CountedCall, OpenReply, StoredBatch, StoredJob, StoredSubmission
from ..timestamps import to_us
from .call_rows import USAGE_COLUMNS, cost_columns, cost_of, tags_of, usage_of
from .connection import Database, Dialect, Row, Sql, SqlValue, at_most

# --- Reading events ---


COLUMNS = {name: f"e.{name}" for name in Envelope.__struct_fields__ if name not in ("run_id", "data")} | {
    "run_id": "r.run_id",
    "topic": "e.topic",
    "data": "e.data",
}
"""The columns of an envelope by its fields, and the topic, without which the event can't be read."""

_tags = msgspec.json.Decoder(dict[str, str])


def events_query(
    dialect: Dialect,
    *,
    run_id: str | None,
    session_id: str | None,
    request_id: str | None,
    topic: str | None,
    since: int | datetime | None,
    until: int | datetime | None,
    after_id: int,
    limit: int | None,
) -> Sql:
    """The query for stored events: the event's number, then the columns that `envelope` takes."""
    conditions: list[tuple[str, SqlValue]] = [("e.id > ?", after_id)]
    wanted = {"r.run_id = ?": run_id, "e.session_id = ?": session_id, "e.request_id = ?": request_id}
    conditions += [(sql, value) for sql, value in wanted.items() if value is not None]
    if topic is not None:
        conditions.append(dialect.like_topic("e.topic", topic))
    if since is not None:
        conditions.append(("e.ts_us >= ?", to_us(since)))
    if until is not None:
        conditions.append(("e.ts_us < ?", to_us(until)))
    limited, most = at_most(limit)
    sql = f"""
        SELECT e.id, {", ".join(COLUMNS.values())}
          FROM events AS e
          JOIN runs AS r ON r.id = e.run
         WHERE {" AND ".join(sql for sql, _ in conditions)}
         ORDER BY e.id
         {limited}
    """
    return sql, [*(value for _, value in conditions), *most]


RUN_EVENTS = f"""
    SELECT {", ".join(COLUMNS.values())}
      FROM events AS e
      JOIN runs AS r ON r.id = e.run
     WHERE r.run_id = ? AND e.seq > ?
     ORDER BY e.seq
     LIMIT ?
"""
"""Some events of one run behind a number, as the columns that `envelope` takes."""

RUN_POSITIONS = "SELECT run_id, committed_seq FROM runs WHERE ended_us IS NULL OR last_us >= ?"
"""How far the runs are that are going on, or were at a moment."""


def envelope(row: Row) -> Envelope:
    """A row of `events_query`, without its number. One of an unknown topic bears an `UnknownEvent`."""
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["data"] = decode_event(fields.pop("topic"), fields["data"])
    if fields["tags"] is not None:
        fields["tags"] = _tags.decode(fields["tags"])
    return Envelope(**fields)


# --- Background replies ---
# The call of such a reply has no end in the trace. None is made for it when its process is lost.


_OPEN = """
    SELECT c.request_id, c.attempt, c.session_id, c.turn_id, c.message_id, c.model, c.key, c.tags, c.started_us,
           (SELECT e.data FROM events AS e
             WHERE e.request_id = c.request_id AND e.attempt = c.attempt AND e.topic = 'llm.call_accepted'
             ORDER BY e.id LIMIT 1)
      FROM calls AS c
      JOIN runs AS r ON r.id = c.run
     WHERE c.status = 'started'
"""


class _Accepted(msgspec.Struct):
    response_id: str


_decode_reply = msgspec.json.Decoder(_Accepted).decode


async def open_replies(database: Database, session_id: str | None, *, owned: bool) -> list[OpenReply]:
    """The background replies of ended processes, in the order of their calls."""
    of_session = "" if session_id is None else " AND c.session_id = ?"
    of_ended = "" if owned else " AND r.ended_us IS NOT NULL"
    sql = f"{_OPEN}{of_session}{of_ended} ORDER BY c.id"
    rows = await database.read(sql, [] if session_id is None else [session_id])
    return [
        OpenReply(
            request_id=request_id,
            attempt=attempt,
            session_id=session,
            turn_id=turn_id,
            message_id=message_id or "",
            model=model,
            key=key,
            tags=tags_of(tags) or None,
            started_us=started_us or 0,
            response_id=_decode_reply(data).response_id,
        )
        for request_id, attempt, session, turn_id, message_id, model, key, tags, started_us, data in rows
        if data is not None
    ]


# --- Jobs ---
# A call of the operation ``video_create`` creates a job. A call of the operation ``video`` records its cost. Both
# have the job's id as the provider's response id.


JOB_QUERY = """
    SELECT c.operation, c.request_id, c.cost_nano, c.cost_source, c.cost_version, e.data
      FROM calls AS c
      LEFT JOIN events AS e ON e.request_id = c.request_id AND e.topic = 'job.created'
     WHERE c.provider = ? AND c.response_id = ? AND c.operation IN ('video_create', 'video')
       AND c.status = 'completed'
     ORDER BY c.id DESC
"""

_COUNTED_BEFORE = "its cost was counted when its end was first recorded"


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


# --- Batches ---
# A batch's events have its id as their request. The end of a part has the id of the call that created the part.
# Each request is a call of its own, of the operation ``batch``, which is counted once.


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
    """The given calls that have an end, by their ids."""
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
