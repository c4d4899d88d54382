"""Stored events: how they are found, and how they come back."""

from __future__ import annotations

from datetime import datetime

import msgspec

from callboard.bus.events.codec import decode_event
from callboard.bus.events.envelope import Envelope

from ..timestamps import to_us
from .connection import Dialect, Row, Sql, SqlValue, at_most

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
