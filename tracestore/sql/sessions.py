"""Sessions, and what they used and cost."""

from __future__ import annotations

import msgspec

from ..queries import tags_of, with_cost
from ..sqlite.database import Database
from .calls.unknown import usage_unknown
from .content import RESUMABLE, STORED_MESSAGES


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session and what it used so far, all attempts of all its calls together.

    first_us, last_us: of its first and last event, microseconds UTC. model: the current one. turns: begun so far.
    calls: attempts. total_input_tokens: cached ones included. cost_nano_usd: the sum over those that have a cost
    under the current prices; estimated, unpriced, unknown: how many calls are so, as in `CostRow`. messages: how
    many of its messages are stored; resumable: whether that is the whole session.
    """

    session_id: str
    first_us: int
    last_us: int
    model: str | None
    tags: dict[str, str]
    turns: int
    calls: int
    total_input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    unpriced: int
    estimated: int = 0
    unknown: int = 0
    messages: int = 0
    resumable: bool = False
    name: str | None = None


async def sessions(database: Database, limit: int | None) -> list[SessionRow]:
    """The query behind `TraceStore.sessions`: the one with the latest event first."""
    priced, _ = with_cost(None, "c.session_id IN (SELECT session_id FROM newest)")
    rows = await database.read(
        f"""
        WITH newest AS (
            SELECT * FROM sessions ORDER BY last_us DESC, session_id DESC LIMIT ?
        ),
        priced AS ({priced})
        SELECT n.session_id, n.first_us, n.last_us, n.model, n.tags,
               count(DISTINCT p.turn_id),
               count(p.id),
               coalesce(sum(p.input_tokens + p.cached_input_tokens + p.cache_creation_input_tokens), 0),
               coalesce(sum(p.output_tokens), 0),
               coalesce(sum(p.now_nano), 0),
               coalesce(sum(p.usage_source IS NOT NULL AND p.now_nano IS NULL), 0),
               coalesce(sum(p.usage_source = 'estimated'), 0),
               coalesce(sum({usage_unknown("p")}), 0),
               {STORED_MESSAGES}, {RESUMABLE}, n.name
          FROM newest AS n
          LEFT JOIN priced AS p ON p.session_id = n.session_id
         GROUP BY n.session_id
         ORDER BY n.last_us DESC, n.session_id DESC
        """,
        [-1 if limit is None else limit],
    )
    return [
        SessionRow(
            session_id=row[0],
            first_us=row[1],
            last_us=row[2],
            model=row[3],
            tags=tags_of(row[4]),
            turns=row[5],
            calls=row[6],
            total_input_tokens=row[7],
            output_tokens=row[8],
            cost_nano_usd=row[9],
            unpriced=row[10],
            estimated=row[11],
            unknown=row[12],
            messages=row[13],
            resumable=bool(row[14]),
            name=row[15],
        )
        for row in rows
    ]
