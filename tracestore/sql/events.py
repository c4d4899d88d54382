"""How stored events are found, and how they come back."""

from __future__ import annotations

from datetime import datetime

import msgspec

from bus.events.envelope import Envelope

from ..codec import decode_event
from ..sqlite.database import Row
from ..sqlite.insert import SqlValue
from ..timestamps import to_us


def events_query(
    *,
    run_id: str | None,
    session_id: str | None,
    request_id: str | None,
    topic: str | None,
    since: int | datetime | None,
    until: int | datetime | None,
    after_id: int,
    limit: int | None,
) -> tuple[str, list[SqlValue]]:
    """The query behind `TraceStore.numbered_events`: the event's number, then what `envelope` takes."""
    conditions: list[tuple[str, SqlValue]] = [("e.id > ?", after_id)]
    if run_id is not None:
        conditions.append(("r.run_id = ?", run_id))
    if session_id is not None:
        conditions.append(("e.session_id = ?", session_id))
    if request_id is not None:
        conditions.append(("e.request_id = ?", request_id))
    if topic is not None:
        conditions.append(("e.topic GLOB ?", topic))
    if since is not None:
        conditions.append(("e.ts_us >= ?", to_us(since)))
    if until is not None:
        conditions.append(("e.ts_us < ?", to_us(until)))
    sql = f"""
        SELECT e.id, e.seq, r.run_id, e.ts_us, e.mono_ns, e.topic, e.data, e.session_id, e.turn_id,
               e.request_id, e.attempt, e.message_id, e.caused_by, e.tags
          FROM events AS e
          JOIN runs AS r ON r.id = e.run
         WHERE {" AND ".join(sql for sql, _ in conditions)}
         ORDER BY e.id
         LIMIT ?
    """
    return sql, [*(value for _, value in conditions), -1 if limit is None else limit]


def envelope(row: Row) -> Envelope:
    """A row of `events_query`, without its number. One of an unknown topic bears an `UnknownEvent`."""
    seq, run_id, ts_us, mono_ns, topic, data, session_id, turn_id, request_id, attempt, *rest = row
    message_id, caused_by, tags = rest
    return Envelope(
        seq=seq,
        run_id=run_id,
        ts_us=ts_us,
        mono_ns=mono_ns,
        data=decode_event(topic, data),
        session_id=session_id,
        turn_id=turn_id,
        request_id=request_id,
        attempt=attempt,
        message_id=message_id,
        caused_by=caused_by,
        tags=None if tags is None else msgspec.json.decode(tags, type=dict[str, str]),
    )
