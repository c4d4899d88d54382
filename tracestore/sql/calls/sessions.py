"""Sessions, and the sums that they used and cost."""

from __future__ import annotations

from collections.abc import Mapping

from ...rows import SessionRow
from ..connection import Database, at_most, greater
from ..repricing.run_costs import current_runs
from .columns import tags_of
from .current_costs import cost_under, with_nano
from .sums import sums_of, whole

_MESSAGES = "(SELECT count(*) FROM session_messages AS m WHERE m.session_id = n.session_id)"

_IS_WHOLE = f"""
    EXISTS (
        SELECT 1 FROM session_setups AS s
         WHERE s.session_id = n.session_id AND s.hash IS NOT NULL
           AND (SELECT count(m.hash) FROM session_messages AS m WHERE m.session_id = s.session_id)
               = (SELECT {greater("coalesce(max(m.position) + 1, 0)", "s.history")}
                    FROM session_messages AS m WHERE m.session_id = s.session_id)
    )
"""
# A session whose system prompt was withheld is whole, if the host has that prompt.

_SESSION = tuple(f"n.{name}" for name in ("session_id", "first_us", "last_us", "model", "tags", "name"))
_SUMS = sums_of("p")
_FIELDS = {
    **{column.removeprefix("n."): column for column in _SESSION},
    "turns": "count(DISTINCT p.turn_id)",
    "calls": "count(p.id)",
    **{name: _SUMS[name] for name in ("total_input_tokens", "output_tokens", "cost_nano_usd")},
    **{name: _SUMS[name] for name in ("unpriced", "estimated", "unknown")},
    "messages": _MESSAGES,
    "resumable": _IS_WHOLE,
}
"""Each field of a row, and its expression."""


async def sessions(
    database: Database, limit: int | None, tags: Mapping[str, str] | None = None
) -> list[SessionRow]:
    """Sessions that have all these tags, the one with the latest event first."""
    runs = await database.look(current_runs)
    priced, _ = with_nano(cost_under(runs), "c.session_id IN (SELECT session_id FROM newest)")
    limited, most = at_most(limit)
    tag = f"{database.dialect.tag('tags')} = ?"
    tagged = f"WHERE {' AND '.join([tag] * len(tags))}" if tags else ""
    rows = await database.read(
        f"""
        WITH newest AS (SELECT * FROM sessions {tagged} ORDER BY last_us DESC, session_id DESC {limited}),
             priced AS ({priced})
        SELECT {", ".join(_FIELDS.values())}
          FROM newest AS n
          LEFT JOIN priced AS p ON p.session_id = n.session_id
         GROUP BY {", ".join(_SESSION)}
         ORDER BY n.last_us DESC, n.session_id DESC
        """,
        [*(part for pair in (tags or {}).items() for part in pair), *most],
    )
    found = []
    for row in rows:
        named = dict(zip(_FIELDS, row, strict=True))
        named["tags"], named["resumable"] = tags_of(named["tags"]), bool(named["resumable"])
        named |= {name: whole(named[name]) for name in _SUMS if name in named}
        found.append(SessionRow(**named))
    return found
