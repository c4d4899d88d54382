"""Replies that a provider makes in the background, and that nobody has read to their end.

The call of such a reply has no end in the trace, and none is made up for it when its process is lost.
"""

from __future__ import annotations

import msgspec

from ...rows import OpenReply
from ..connection import Database
from .columns import tags_of

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


_decode = msgspec.json.Decoder(_Accepted).decode


async def open_replies(database: Database, session_id: str | None, *, owned: bool) -> list[OpenReply]:
    """The replies whose process has ended, in the order of their calls.

    Args:
        database: The trace.
        session_id: A session; None is all.
        owned: Whether the session belongs to whoever asks, so that nobody else reads its replies.
    """
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
            response_id=_decode(data).response_id,
        )
        for request_id, attempt, session, turn_id, message_id, model, key, tags, started_us, data in rows
        if data is not None
    ]
