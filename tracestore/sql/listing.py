"""Calls one by one, sessions, and the statistics of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from ..call_columns import COLUMNS, CallFilter, CallRow, Column
from ..rows import ErrorRow, Percentiles, SessionRow, StatisticsRow
from .call_rows import (
    NOW_NANO,
    USAGE_COLUMNS,
    Grouping,
    condition,
    cost_columns,
    cost_of,
    cost_under,
    grouping,
    tags_of,
    usage_of,
    with_cost,
    with_nano,
)
from .connection import Database, Dialect, Row, Sql, at_most, greater
from .sums import current_runs, sums_of, whole

# --- Listing calls ---


_COLUMNS = ("id", *COLUMNS, *USAGE_COLUMNS, *cost_columns("cost"), *cost_columns("now"))
_USAGE_AT = 1 + len(COLUMNS)
_COST_AT = _USAGE_AT + len(USAGE_COLUMNS)
_NOW_AT = _COST_AT + len(cost_columns("cost"))


def _reader(column: Column) -> Callable[[Any], object] | None:
    """The conversion of a column's value to Python; None if it is the same there."""
    unset = column.default
    if column.kind == "json":
        decode = msgspec.json.Decoder(column.type).decode
        return lambda text: decode(text) if text else copy(unset)
    if column.kind == "bool":
        return lambda number: unset if number is None else bool(number)
    return None if unset is None else lambda value: unset if value is None else value


_READERS = [(name, read) for name, column in COLUMNS.items() if (read := _reader(column)) is not None]


def calls_query(where: CallFilter | None, under: str | None, limit: int | None, dialect: Dialect) -> Sql:
    """The query for calls, the newest first."""
    priced, values = with_cost(under, *condition(where or CallFilter(), dialect, NOW_NANO))
    limited, most = at_most(limit)
    sql = f"""
        WITH priced AS ({priced})
        SELECT {", ".join(_COLUMNS)}
          FROM priced
         ORDER BY ts_us DESC, id DESC
         {limited}
    """
    return sql, [*values, *most]


def calls_after_query(
    where: CallFilter | None, under: str | None, after_id: int, limit: int, dialect: Dialect
) -> Sql:
    """The query for calls in the order of `call_id`, which is the order of storing."""
    which, values = condition(where or CallFilter(), dialect)
    page = f"{which} AND c.id > ? ORDER BY c.id LIMIT ?"
    priced, values = with_cost(under, page, [*values, after_id, limit])
    return f"WITH priced AS ({priced}) SELECT {', '.join(_COLUMNS)} FROM priced ORDER BY id", values


def call_row(row: Row) -> CallRow:
    """A row of `calls_query` as a CallRow."""
    named: dict[str, Any] = dict(zip(COLUMNS, row[1:_USAGE_AT], strict=True))
    for name, read in _READERS:
        named[name] = read(named[name])
    return CallRow(
        call_id=row[0],
        usage=usage_of(row[_USAGE_AT:_COST_AT]),
        at_call_time=cost_of(row[_COST_AT:_NOW_AT]),
        cost=cost_of(row[_NOW_AT:]),
        **named,
    )


# --- Sessions and their sums ---


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
# A session without its system prompt is complete if the host has that prompt.

_SESSION = tuple(f"n.{name}" for name in ("session_id", "first_us", "last_us", "model", "tags", "name"))
_SUMS_OF_SESSION = sums_of("p")
_FIELDS = {
    **{column.removeprefix("n."): column for column in _SESSION},
    "turns": "count(DISTINCT p.turn_id)",
    "calls": "count(p.id)",
    **{name: _SUMS_OF_SESSION[name] for name in ("total_input_tokens", "output_tokens", "cost_nano_usd")},
    **{name: _SUMS_OF_SESSION[name] for name in ("unpriced", "estimated", "unknown")},
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
        named |= {name: whole(named[name]) for name in _SUMS_OF_SESSION if name in named}
        found.append(SessionRow(**named))
    return found


# --- Speed and failures ---
# A percentile is an actual value (nearest rank): p99 is the smallest value that at least 99 % of the calls don't
# exceed. The database counts each distinct value and adds up from the smallest. So memory grows with the distinct
# values, not with the calls, and the result is exact.


_SUMS = sums_of("keyed")
_COUNTS = {
    "attempts": "count(*)",
    "completed": "count(*) FILTER (WHERE status = 'completed')",
    "failed": "count(*) FILTER (WHERE status = 'failed')",
    "cancelled": "count(*) FILTER (WHERE status = 'cancelled')",
    "running": "count(*) FILTER (WHERE status = 'started')",
    "retried": "count(*) FILTER (WHERE will_retry = 1)",
    **{name: _SUMS[name] for name in ("total_input_tokens", "output_tokens", "cached_input_tokens")},
    **{name: _SUMS[name] for name in ("estimated", "unpriced", "unknown")},
}
"""The fields of a row that are counts or sums, and their expressions."""

_SPEED = "1000.0 * output_tokens / (latency_ms - first_token_ms)"
_MEASURES = (
    ("latency_ms", "status = 'completed' AND latency_ms IS NOT NULL"),
    ("first_token_ms", "first_token_ms IS NOT NULL"),
    (
        _SPEED,
        "status = 'completed' AND usage_source <> 'estimated' AND output_tokens > 1 AND streamed = 1"
        " AND latency_ms > first_token_ms",
    ),
)
"""Latency, first token and speed: the value, and the calls on which it is measured."""


async def statistics(database: Database, where: CallFilter, by: Sequence[str]) -> list[StatisticsRow]:
    """The statistics of each group, the one with the most attempts first."""
    group = grouping(by, "c", database.dialect)
    counts = await _counts(database, where, by)
    latency, first_token, speed = [await _percentiles(database, where, group, *each) for each in _MEASURES]
    size, nothing = len(by), Percentiles()
    found = [
        StatisticsRow(
            key=group.key(row),
            **dict(zip(_COUNTS, map(whole, row[size:]), strict=True)),
            latency_ms=latency.get(row[:size], nothing),
            first_token_ms=first_token.get(row[:size], nothing),
            tokens_per_second=speed.get(row[:size], nothing),
        )
        for row in counts
    ]
    return sorted(found, key=lambda row: (-row.attempts, row.key))


def _grouped(group: Grouping) -> str:
    return f"GROUP BY {group.listed()}" if group.by else "HAVING count(*) > 0"


async def _counts(database: Database, where: CallFilter, by: Sequence[str]) -> list[Row]:
    group = grouping(by, "p", database.dialect)
    cost = cost_under(await database.look(current_runs))
    priced, values = with_nano(cost, *condition(where, database.dialect, cost[1]))
    return await database.read(
        f"""
        WITH priced AS ({priced}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p)
        SELECT {group.listed(",")} {", ".join(_COUNTS.values())} FROM keyed {_grouped(group)}
        """,
        [*values, *group.values],
    )


async def _percentiles(
    database: Database, where: CallFilter, group: Grouping, value: str, measured_on: str
) -> dict[tuple[object, ...], Percentiles]:
    if value is _SPEED:
        value = database.dialect.rounded(_SPEED, 1)
    which, values = condition(where, database.dialect)
    same = f"PARTITION BY {group.listed()}" if group.by else ""
    rows = await database.read(
        f"""
        WITH keyed AS (SELECT c.*{group.columns} FROM calls AS c WHERE {which}),
        histogram AS (
            SELECT {group.listed(",")} {value} AS value, count(*) AS calls
              FROM keyed
             WHERE {measured_on}
             GROUP BY {group.listed(",")} {value}
        ),
        ranked AS (
            SELECT {group.listed(",")} value,
                   sum(calls) OVER ({same} ORDER BY value) AS place,
                   sum(calls) OVER ({same}) AS size
              FROM histogram
        )
        SELECT {group.listed(",")} size, {", ".join(_percentile(part) for part in (50, 90, 99))}
          FROM ranked
         GROUP BY {group.listed(",")} size
        """,
        [*group.values, *values],
    )
    size = len(group.by)
    return {row[:size]: Percentiles(*row[size:]) for row in rows}


def _percentile(part: int) -> str:
    """The smallest value that at least `part` per cent don't exceed."""
    return f"min(CASE WHEN 100 * place >= {part} * size THEN value END)"


_LATEST = ("error_type", "error_message", "provider_status", "provider_code", "request_id")


async def errors(database: Database, where: CallFilter) -> list[ErrorRow]:
    """Failed attempts by class and model, the most frequent first."""
    which, values = condition(where, database.dialect)
    fields = {
        "error_class": "error_class",
        "model": "model",
        "attempts": "count(*)",
        "ended": "count(*) FILTER (WHERE coalesce(will_retry, 0) = 0)",
        "calls": "count(DISTINCT request_id)",
        "first_us": "min(ts_us)",
        "last_us": "max(ts_us)",
        **{name: f"max({name}) FILTER (WHERE place = 1)" for name in _LATEST},
    }
    rows = await database.read(
        f"""
        WITH failed AS (
            SELECT c.*, row_number() OVER latest AS place
              FROM calls AS c
             WHERE c.error_class IS NOT NULL AND {which}
            WINDOW latest AS (PARTITION BY c.error_class, c.model ORDER BY c.ts_us DESC, c.id DESC)
        )
        SELECT {", ".join(fields.values())}
          FROM failed
         GROUP BY error_class, model
         ORDER BY count(*) DESC, error_class, model
        """,
        values,
    )
    return [ErrorRow(**dict(zip(fields, row, strict=True))) for row in rows]
