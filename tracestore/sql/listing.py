"""Calls one by one, sessions, statistics of calls, and their costs by group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from callboard.bus.clock import US_PER_DAY, to_us

from ..call_columns import COLUMNS, CallFilter, CallRow, Column
from ..prices.rows import MAX_INT64
from ..rows import CostRow, ErrorRow, Percentiles, SessionRow, Spending, SpendingQuery, SpendingRow, StatisticsRow
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
    usage_unknown,
    with_cost,
    with_nano,
)
from .connection import Database, Dialect, Row, Sql, SqlValue, Statements, at_most, greater
from .sums import SUMMED, current_runs, flag, runs_of, sum_of, summands, sums_of, total_input, whole_number

# --- Usage and costs by group ---
#
# The trace stores sums by day, provider and model (`call_sums`), which cover whole days. The calls of partial
# days, and calls that are in no sum yet, are added one by one. All other groups are summed from the calls.


_UNPRICED_THEN = "{0}.usage_source IS NOT NULL AND {0}.cost_nano IS NULL"

_OF_CALLS = {
    "calls": "count(*)",
    **sums_of("keyed"),
    "at_call_time_nano_usd": sum_of("keyed.cost_nano"),
    "at_call_time_unpriced": f"count(*) FILTER (WHERE {_UNPRICED_THEN.format('keyed')})",
}
"""The expression for each field of a row, as a sum over calls."""

_KEPT_AS = {
    "cost_nano_usd": "now_nano",
    "at_call_time_nano_usd": "cost_nano",
    "at_call_time_unpriced": "then_unpriced",
}
_OF_SUMS = {name: f"coalesce(sum(keyed.{_KEPT_AS.get(name, name)}), 0)" for name in _OF_CALLS}
"""The expression for each field of a row, as a sum over the stored sums."""


async def costs(database: Database, where: CallFilter, by: Sequence[str], under: str | None) -> list[CostRow]:
    """The sums of each group, the most expensive first. Raises ValueError for a dimension that does not exist."""
    dialect = database.dialect
    group = grouping(by, "p", dialect)
    fields = _OF_SUMS
    runs = await database.look(
        lambda statements: current_runs(statements) if under is None else runs_of(statements, under)
    )
    priced = _from_sums(dialect, where, by, runs)
    if priced is None:
        cost = cost_under(runs)
        fields, priced = _OF_CALLS, with_nano(cost, *condition(where, dialect, cost[1]))
    sql, values = priced
    rows = await database.read(
        f"""
        WITH priced AS ({sql}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p)
        SELECT {group.listed(",")} {", ".join(f"{total} AS {name}" for name, total in fields.items())}
          FROM keyed
         {"GROUP BY " if by else ""}{group.listed()}
         ORDER BY {", ".join(["cost_nano_usd DESC", *(f"{name} NULLS FIRST" for name in group.names)])}
        """,
        [*values, *group.values],
    )
    named = tuple(by)
    return [
        CostRow(key=group.key(row), by=named, **dict(zip(fields, map(whole_number, row[len(by) :]), strict=True)))
        for row in rows
    ]


def _from_sums(dialect: Dialect, where: CallFilter, by: Sequence[str], runs: Sequence[int]) -> Sql | None:
    """A query for sums of calls; None if the stored sums are not enough.

    The sums don't show which calls of a group a run has priced, so they are not enough if several repricings
    overlap.
    """
    anywhen = msgspec.structs.replace(where, since=None, until=None)
    if (
        not {*by} <= {"day", "provider", "model"}
        or msgspec.structs.replace(anywhen, provider=None, model=None) != CallFilter()
    ):
        return None
    since, until = (None if moment is None else to_us(moment) for moment in (where.since, where.until))
    first = -MAX_INT64 if since is None else -(-since // US_PER_DAY)
    end = MAX_INT64 if until is None else until // US_PER_DAY
    if first >= end or len(runs) > 1:
        return None
    which, of_filter = condition(anywhen, dialect)
    latest = _NOT_YET_KEPT.format(calls=dialect.by_number("calls", "c"))
    parts: list[str] = []
    values: list[SqlValue] = []
    # The day is an expression, so that its index is not used: selecting by number reads fewer calls.
    sources: tuple[tuple[str, str, list[SqlValue]], ...] = (
        (_KEPT, "c.day", []),
        (_REPRICED, "c.day", [runs[0] if runs else None]),
        (latest, "c.day + 0", []),
    )
    for sql, day, run in sources:
        parts.append(f"{sql} AND {which} AND {day} >= ? AND {day} < ?")
        values += [*run, *of_filter, first, end]
    for begin, stop in ((since, first * US_PER_DAY), (end * US_PER_DAY, until)):
        if begin is not None and stop is not None and begin < stop:
            edge = msgspec.structs.replace(where, since=begin, until=stop)
            cost = cost_under(runs)
            calls, of_calls = with_nano(cost, *condition(edge, dialect, cost[1]))
            parts.append(_OF_CUT_DAY.format(calls=calls))
            values += of_calls
    return " UNION ALL ".join(parts), values


# All parts of the union have the columns of the first. A repricing's sums are differences to the costs at call
# time.
_KEPT = f"""
    SELECT day, provider, model, {", ".join(SUMMED)}, cost_nano AS now_nano, unpriced AS then_unpriced
      FROM call_sums AS c
     WHERE TRUE
"""
_REPRICED = f"""
    SELECT day, provider, model, {", ".join(name if name == "unpriced" else "0" for name in SUMMED)}, cost_nano, 0
      FROM repriced_sums AS c
     WHERE run = ?
"""
_NOT_YET_KEPT = f"""
    SELECT day, provider, model, {", ".join(summands("c").values())}, coalesce(cost_nano, 0),
           {flag(_UNPRICED_THEN.format("c"))}
      FROM {{calls}}
     WHERE c.id > (SELECT up_to FROM summed_calls)
"""
_UNPRICED_NOW = flag("p.usage_source IS NOT NULL AND p.now_nano IS NULL")
_OF_CUT_DAY = f"""
    SELECT day, provider, model, {", ".join((summands("p") | {"unpriced": _UNPRICED_NOW}).values())},
           coalesce(now_nano, 0), {flag(_UNPRICED_THEN.format("p"))}
      FROM ({{calls}}) AS p
"""


# --- Sums for budgets ---
#
# Calls are grouped by account, by slot of the window, and by whether the usage is known.


_ENDED_BADLY = "('failed', 'cancelled')"


def spending(
    statements: Statements, queries: Sequence[SpendingQuery], run_id: str, *, without: Sequence[str] = ()
) -> Spending:
    ((committed,),) = statements.run(
        "SELECT coalesce((SELECT committed_seq FROM runs WHERE run_id = ?), 0)", (run_id,)
    )
    return Spending([_rows(statements, query, run_id, without) for query in queries], int(committed))


def _rows(statements: Statements, query: SpendingQuery, run_id: str, without: Sequence[str]) -> list[SpendingRow]:
    sql, values = _query(statements, query, run_id, without)
    return [
        SpendingRow(
            value=str(value),
            slot=int(slot),
            unknown=bool(unknown),
            calls=int(calls),
            nano_usd=int(nano),
            tokens=int(tokens),
        )
        for value, slot, unknown, calls, nano, tokens in statements.run(sql, values)
    ]


def _query(statements: Statements, query: SpendingQuery, run_id: str, without: Sequence[str]) -> Sql:
    by: Sequence[str] = () if query.by is None else (query.by,)
    group = grouping(by, "p", statements.dialect)
    conditions = ["NOT (r.run_id = ? AND c.status = 'started')"]
    values: list[SqlValue] = [run_id]
    if not query.imported:
        conditions.append("c.origin IS NULL")
    if without:
        conditions.append(f"r.run_id NOT IN ({', '.join('?' for _ in without)})")
        values += without
    if query.run_id is not None:
        conditions.append("r.run_id = ?")
        values.append(query.run_id)
    if query.since_us is not None:
        conditions.append("c.ts_us >= ?")
        values.append(query.since_us)
    priced, bound = with_nano(cost_under(current_runs(statements)), " AND ".join(conditions), values)
    value = f"coalesce({group.names[0]}, '')" if group.names else "''"
    unknown = f"({usage_unknown('keyed')} OR {_output_unknown('keyed')} OR {_in_progress('keyed')})"
    cost = "keyed.now_nano" if query.current else "keyed.cost_nano"
    used = f"({total_input('keyed')} + keyed.output_tokens)"
    slot = "0" if query.slot_us is None else "(keyed.ts_us - ?) / ?"
    slots: list[SqlValue] = [] if query.slot_us is None else [query.since_us or 0, query.slot_us]
    return (
        f"""
        WITH priced AS ({priced}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p),
             counted AS (
                 SELECT {value} AS value, {slot} AS slot, {flag(unknown)} AS unknown,
                        CASE WHEN {unknown} THEN coalesce(keyed.reserved_nano, 0)
                             ELSE coalesce({cost}, 0) END AS nano,
                        CASE WHEN {unknown}
                             THEN coalesce(keyed.reserved_tokens, keyed.estimated_input_tokens, 0)
                             ELSE coalesce({used}, 0) END AS tokens
                   FROM keyed
             )
        SELECT value, slot, unknown, count(*), {sum_of("nano")}, {sum_of("tokens")}
          FROM counted
         {"WHERE value = ?" if query.value is not None else ""}
         GROUP BY value, slot, unknown
         ORDER BY value, slot, unknown
        """,
        [*bound, *group.values, *slots, *([] if query.value is None else [query.value])],
    )


def _in_progress(row: str) -> str:
    """The SQL condition that a call has created a job without a stored end."""
    return (
        f"({row}.operation = 'video_create' AND {row}.status = 'completed' AND NOT EXISTS"
        " (SELECT 1 FROM calls AS e WHERE e.operation IN ('video_create', 'video') AND e.operation = 'video'"
        f" AND e.provider = {row}.provider AND e.response_id = {row}.response_id)"
        f" OR {row}.operation = 'batch_create' AND {row}.status = 'completed' AND NOT EXISTS"
        f" (SELECT 1 FROM events AS e WHERE e.request_id = {row}.request_id AND e.topic = 'batch.part_ended'))"
    )


def _output_unknown(row: str) -> str:
    """The SQL condition that an attempt failed after it was sent and before any part of a reply arrived."""
    return (
        f"({row}.status IN {_ENDED_BADLY} AND coalesce({row}.usage_source, '') = 'estimated'"
        f" AND coalesce({total_input(row)}, 0) > 0 AND coalesce({row}.output_tokens, 0) = 0)"
    )


# --- Listing calls ---


_COLUMNS = ("id", *COLUMNS, *USAGE_COLUMNS, *cost_columns("cost"), *cost_columns("now"))
_USAGE_AT = 1 + len(COLUMNS)
_COST_AT = _USAGE_AT + len(USAGE_COLUMNS)
_NOW_AT = _COST_AT + len(cost_columns("cost"))


def _reader(column: Column) -> Callable[[Any], object] | None:
    """The conversion of a column's value to Python; None if no conversion is needed."""
    unset = column.default
    if column.kind == "json":
        decode = msgspec.json.Decoder(column.type).decode
        return lambda text: decode(text) if text else copy(unset)
    if column.kind == "bool":
        return lambda number: unset if number is None else bool(number)
    return None if unset is None else lambda value: unset if value is None else value


_READERS = [(name, read) for name, column in COLUMNS.items() if (read := _reader(column)) is not None]


def calls_query(where: CallFilter | None, under: str | None, limit: int | None, dialect: Dialect) -> Sql:
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
# A session counts as complete without its system prompt, because the host has the prompt.

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
"""The expression for each field of a row."""


async def sessions(
    database: Database, limit: int | None, tags: Mapping[str, str] | None = None
) -> list[SessionRow]:
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
        named |= {name: whole_number(named[name]) for name in _SUMS_OF_SESSION if name in named}
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
"""The expressions for the fields of a row that are counts or sums."""

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
"""Latency, first token and speed: for each, the SQL of the value and the condition of the calls to measure."""


async def statistics(database: Database, where: CallFilter, by: Sequence[str]) -> list[StatisticsRow]:
    group = grouping(by, "c", database.dialect)
    counts = await _counts(database, where, by)
    latency, first_token, speed = [await _percentiles(database, where, group, *each) for each in _MEASURES]
    size, nothing = len(by), Percentiles()
    found = [
        StatisticsRow(
            key=group.key(row),
            **dict(zip(_COUNTS, map(whole_number, row[size:]), strict=True)),
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
    """The SQL for the smallest value that at least `part` per cent of the values don't exceed."""
    return f"min(CASE WHEN 100 * place >= {part} * size THEN value END)"


_LATEST = ("error_type", "error_message", "provider_status", "provider_code", "request_id")


async def errors(database: Database, where: CallFilter) -> list[ErrorRow]:
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
