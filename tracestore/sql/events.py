"""Runs, their stored events, and the replies, jobs and batches that are derived from events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from callboard.bus.events import Envelope
from callboard.bus.events.codec import decode_event
from callboard.bus.log import Log
from callboard.bus.values.usage import Cost, CostSource

from ..rows import CountedCall, OpenReply, StoredBatch, StoredJob, StoredSubmission
from .call_rows import USAGE_COLUMNS, cost_columns, cost_of, tags_of, usage_of
from .connection import Database, Row, SqlValue, Statements, greater, in_parts, lesser, placeholders

# --- Numbers of runs ---


_KNOWN_RUNS = 256

_Name = TypeVar("_Name", int, str)


class RunSpan(msgspec.Struct):
    """The events of one run in a batch."""

    run_id: str
    first_us: int
    """The time of the run's first event in the batch, in microseconds UTC."""
    last_us: int
    """The time of the run's last event in the batch, in microseconds UTC."""
    seq: int
    """The highest `seq` of the run's events in the batch."""


class RunNumbers:
    """A writer's cache of the numbers of runs, so that most batches need no query.

    A number is cached only after its transaction is committed, because otherwise it might not exist.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def remember(self, numbers: dict[str, int]) -> None:
        """Cache committed numbers of runs, by the runs' ids."""
        if len(self._numbers) + len(numbers) > _KNOWN_RUNS:
            self._numbers.clear()
        self._numbers.update(numbers)

    def forget(self) -> None:
        """Drop all numbers, because the file has changed, or rows of runs were deleted or marked as ended."""
        self._numbers.clear()

    def note(self, statements: Statements, run: RunSpan) -> int:
        """Record the position of a run, and return the run's number. Call this in a transaction."""
        span: dict[str, SqlValue] = {"run_id": run.run_id, "first": run.first_us}
        span |= {"last": run.last_us, "seq": run.seq}
        stored = self._numbers.get(run.run_id)
        if stored is not None:
            statements.run(_MOVE_ON, {**span, "id": stored})
            return stored
        ((number,),) = statements.run(_ENTER, span)
        return int(number)


_MOVE_ON = f"""
    UPDATE runs
       SET first_us = {lesser("first_us", ":first")},
           last_us = {greater("last_us", ":last")},
           committed_seq = {greater("committed_seq", ":seq")}
     WHERE id = :id
"""
_ENTER = f"""
    INSERT INTO runs (run_id, first_us, last_us, committed_seq)
    VALUES (:run_id, :first, :last, :seq)
    ON CONFLICT (run_id) DO UPDATE SET
        first_us = {lesser("runs.first_us", "excluded.first_us")},
        last_us = {greater("runs.last_us", "excluded.last_us")},
        committed_seq = {greater("runs.committed_seq", "excluded.committed_seq")},
        ended_us = NULL,
        ending = NULL
    RETURNING id
"""


def ranges(names: Sequence[_Name | None], values: Sequence[int]) -> dict[_Name, tuple[int, int]]:
    """The smallest and the largest of the values of each name. A name of None is skipped."""
    if len(set(names)) == 1 and names[0] is not None:
        return {names[0]: (min(values), max(values))}
    found: dict[_Name, list[int]] = {}
    for name, value in zip(names, values, strict=True):
        if name is not None:
            between = found.get(name)
            if between is None:
                found[name] = [value, value]
            elif value > between[1]:
                between[1] = value
            elif value < between[0]:
                between[0] = value
    return {name: (least, greatest) for name, (least, greatest) in found.items()}


# --- Owners of stored sessions ---
#
# A run that creates, restarts or resumes a session (`claim`) owns it from then on. Another run may still write to
# the session, for example the rest of a turn in progress. The other run's messages are stored under another name,
# ``SESSION.RUN``: a session with the common history at its start. So if two hosts resume one session at the same
# time, the result is two sessions, and no message is lost.
#
# In a cluster each claim of a session has a number, its epoch. Each message has the epoch in which it was written.
# A message with a lower epoch than the store's is too late, even if its run owns the session now. A message that
# the next owner has restored from frames does not conflict with the original.


_log = Log("tracestore.ownership")


def belongs(run: int, epoch: int, *, begins: bool, owner: tuple[int, int] | None, claimed: int) -> bool:
    """Whether an event of a run belongs to the session's current owner."""
    if epoch:
        if epoch < claimed or (owner is not None and epoch < owner[1]):
            return False
        return owner is None or epoch > owner[1] or run == owner[0]
    return owner is None or run == owner[0] or (begins and not claimed)


def is_anothers(statements: Statements, session_id: str, run: int, epoch: int, *, begins: bool = False) -> bool:
    """Whether another run owns the session. The owner cannot change until the transaction ends."""
    found = statements.run("SELECT run, epoch FROM session_setups WHERE session_id = ?", (session_id,))
    owner = (int(found[0][0]), int(found[0][1])) if found else None
    query = statements.dialect.latest_claim
    claims = statements.run(query, (session_id,)) if query else []
    claimed = int(claims[0][0]) if claims else 0
    return not belongs(run, epoch, begins=begins, owner=owner, claimed=claimed)


def is_recorded(
    statements: Statements, session_id: str, position: int, message_id: str | None, digest: bytes | None
) -> bool:
    """Whether the session has exactly this message at this position."""
    return bool(
        statements.run(
            """
            SELECT 1 FROM session_messages
             WHERE session_id = ? AND position = ? AND message_id = ? AND hash = ?
            """,
            (session_id, position, message_id, digest),
        )
    )


def branch(
    statements: Statements, session_id: str, name: str, moment: tuple[int, int, int], history: int, epoch: int
) -> str:
    """Create a session for a run's own continuation (a branch), and return its id. The branch starts with the
    messages before the run's first message. If the owner wrote the last of these messages, the owner may have
    restarted the session, and the messages might not be the run's. The branch then starts empty. In a cluster, it
    starts empty only if that message belongs to a later claim.
    """
    names: dict[str, SqlValue] = {
        "session": session_id,
        "branch": name,
        "run": moment[0],
        "ts": moment[2],
        "history": history,
        "epoch": epoch,
    }
    statements.run(
        f"""
        INSERT INTO sessions (session_id, first_us, last_us, model, tags, name)
        SELECT :branch, first_us, :ts, model, tags, name FROM sessions WHERE session_id = :session
        ON CONFLICT (session_id) DO UPDATE SET last_us = {greater("sessions.last_us", "excluded.last_us")}
        """,
        names,
    )
    if statements.run("SELECT 1 FROM session_setups WHERE session_id = ?", (name,)):
        return name
    statements.run(
        """
        INSERT INTO session_messages
               (session_id, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch)
        SELECT :branch, position, run, seq, ts_us, hash, message_id, metadata, withheld, epoch
          FROM session_messages
         WHERE session_id = :session AND position < :history
           AND (SELECT CASE WHEN :epoch > 0 THEN m.epoch <= :epoch ELSE m.run <> s.run END
                  FROM session_setups AS s JOIN session_messages AS m USING (session_id)
                 WHERE session_id = :session AND m.position = :history - 1)
        """,
        names,
    )
    statements.run(
        """
        INSERT INTO session_setups (session_id, run, seq, ts_us, history, hash, withheld)
        SELECT :branch, :run, 0, ts_us, :history, hash, withheld FROM session_setups WHERE session_id = :session
        """,
        names,
    )
    _log.warning("session_branched", session_id=session_id, branch=name)
    return name


def claim(statements: Statements, session_id: str, run: int, seq: int, history: int) -> bool:
    """Make a run the owner of a stored session. Call this in a transaction."""
    return bool(
        statements.change(
            """
            UPDATE session_setups SET run = ?, seq = ?, history = ?
             WHERE session_id = ? AND (SELECT count(*) FROM session_messages WHERE session_id = ?) = ?
            """,
            (run, seq, history, session_id, session_id, history),
        )
    )


# --- Reading events ---


COLUMNS = {name: f"e.{name}" for name in Envelope.__struct_fields__ if name not in ("run_id", "data")} | {
    "run_id": "r.run_id",
    "topic": "e.topic",
    "data": "e.data",
}
"""The columns for the fields of an envelope, and for the topic, which is needed to decode the event."""


def envelope(row: Row) -> Envelope:
    """The event in the values of `COLUMNS`. An event of an unknown topic is an `UnknownEvent`."""
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["data"] = decode_event(fields.pop("topic"), fields["data"])
    if fields["tags"] is not None:
        fields["tags"] = tags_of(fields["tags"])
    return Envelope(**fields)


# --- Background replies ---
#
# The call of a background reply has no end in the trace. Even the loss of its process does not end it.


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


async def open_replies(database: Database, session_id: str | None, *, owned: bool) -> list[OpenReply]:
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
            response_id=msgspec.json.decode(data, type=_Accepted).response_id,
        )
        for request_id, attempt, session, turn_id, message_id, model, key, tags, started_us, data in rows
        if data is not None
    ]


# --- Jobs ---
#
# A call of the operation ``video_create`` creates a job. A call of the operation ``video`` records the job's cost.
# In both, the provider's response id is the job's id.


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
    """The stored data of a job; a job without any field if nothing is stored."""
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
#
# A batch's events have the batch's id as their request. The end of a part has the id of the call that created the
# part. Each request is a separate call of the operation ``batch``, which is counted once.


_TOPICS = "('batch.planned', 'batch.submitting', 'batch.submitted', 'batch.progress', 'batch.completed')"
BATCH_EVENTS = (
    f"SELECT topic, ts_us, tags, data FROM events WHERE request_id = ? AND topic IN {_TOPICS} ORDER BY id"
)
PART_ENDED = "SELECT 1 FROM events WHERE request_id = ? AND topic = 'batch.part_ended' LIMIT 1"
LATEST_BATCHES = "SELECT request_id FROM events WHERE topic = 'batch.planned' ORDER BY id DESC LIMIT ?"


class _BatchFields(msgspec.Struct):
    """The fields of a batch's events that are read."""

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


_decode = msgspec.json.Decoder(_BatchFields).decode


async def batch(database: Database, batch_id: str) -> StoredBatch | None:
    found: StoredBatch | None = None
    for topic, ts_us, tags, data in await database.read(BATCH_EVENTS, (batch_id,)):
        parsed = _decode(data)
        if topic == "batch.planned" and found is None:
            found = StoredBatch(
                batch_id=batch_id,
                provider=parsed.provider,
                model=parsed.model,
                parts=parsed.parts,
                digest=parsed.digest,
                planned_us=ts_us,
                request_ids=parsed.request_ids,
                key=parsed.key,
                tags=None if tags is None else tags_of(tags),
            )
        elif found is not None:
            found = _with_event(found, topic, parsed)
    return None if found is None else await _with_ends(database, found)


def _with_event(found: StoredBatch, topic: str, parsed: _BatchFields) -> StoredBatch:
    if topic == "batch.submitting":
        sent = StoredSubmission(call_id=parsed.call_id, began_at=parsed.began_at)
        return msgspec.structs.replace(found, submissions={**found.submissions, parsed.part: sent})
    if topic == "batch.submitted":
        before = found.submissions.get(parsed.part) or StoredSubmission(call_id=parsed.call_id, began_at=0)
        sent = msgspec.structs.replace(
            before, call_id=parsed.call_id, job_id=parsed.job_id, key=parsed.key, certain=parsed.certain
        )
        return msgspec.structs.replace(found, submissions={**found.submissions, parsed.part: sent})
    return msgspec.structs.replace(
        found,
        status=parsed.status,
        succeeded=parsed.succeeded,
        failed=parsed.failed,
        completed=found.completed or topic == "batch.completed",
    )


async def _with_ends(database: Database, found: StoredBatch) -> StoredBatch:
    submissions = {}
    for part, sent in found.submissions.items():
        ended = bool(await database.read(PART_ENDED, (sent.call_id,)))
        submissions[part] = msgspec.structs.replace(sent, ended=ended)
    return msgspec.structs.replace(found, submissions=submissions)


async def batches(database: Database, limit: int) -> list[StoredBatch]:
    found = [await batch(database, str(row[0])) for row in await database.read(LATEST_BATCHES, (limit,))]
    return [each for each in found if each is not None]


async def counted_calls(database: Database, request_ids: Sequence[str]) -> dict[str, CountedCall]:
    columns = ", ".join([*USAGE_COLUMNS, *cost_columns("cost")])
    counted: dict[str, CountedCall] = {}
    for some in in_parts(request_ids):
        sql = (
            f"SELECT request_id, error_type, {columns} FROM calls"
            f" WHERE request_id IN ({placeholders(len(some))}) AND status <> 'started' ORDER BY attempt"
        )
        for request_id, error_type, *values in await database.read(sql, some):
            width = len(USAGE_COLUMNS)
            cost, usage = cost_of(tuple(values[width:])), usage_of(values[:width])
            counted[request_id] = CountedCall(cost, usage, error_type)
    return counted
