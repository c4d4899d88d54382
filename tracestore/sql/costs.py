"""The costs of calls by group, and the sums that budgets count."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..call_columns import CallFilter
from ..prices.rows import MAX_INT64
from ..rows import CostRow, Spending, SpendingQuery, SpendingRow
from ..timestamps import US_PER_DAY, to_us
from .call_rows import condition, cost_under, grouping, usage_unknown, with_nano
from .connection import Database, Dialect, Sql, SqlValue, Statements
from .sums import SUMMED, current_runs, flag, runs_of, sum_of, summands, sums_of, total_input, whole

# --- Usage and costs by group ---
# The trace keeps sums by day, provider and model (`call_sums`), which cover whole days. The calls of partial days,
# and those that are in no sum yet, are added one by one. Everything else is summed from the calls.


_UNPRICED_THEN = "{0}.usage_source IS NOT NULL AND {0}.cost_nano IS NULL"

_OF_CALLS = {
    "calls": "count(*)",
    **sums_of("keyed"),
    "at_call_time_nano_usd": sum_of("keyed.cost_nano"),
    "at_call_time_unpriced": f"count(*) FILTER (WHERE {_UNPRICED_THEN.format('keyed')})",
}
"""Each field of a row, as a sum over calls."""

_KEPT_AS = {
    "cost_nano_usd": "now_nano",
    "at_call_time_nano_usd": "cost_nano",
    "at_call_time_unpriced": "then_unpriced",
}
_OF_SUMS = {name: f"coalesce(sum(keyed.{_KEPT_AS.get(name, name)}), 0)" for name in _OF_CALLS}
"""Each field of a row, as a sum over the sums that are kept."""


async def costs(database: Database, where: CallFilter, by: Sequence[str], under: str | None) -> list[CostRow]:
    """The sums of each group, the dearest first. Raises ValueError for a dimension that does not exist."""
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
        CostRow(key=group.key(row), by=named, **dict(zip(fields, map(whole, row[len(by) :]), strict=True)))
        for row in rows
    ]


def _from_sums(dialect: Dialect, where: CallFilter, by: Sequence[str], runs: Sequence[int]) -> Sql | None:
    """A query for sums of calls; None if the kept sums are not enough.

    The sums don't show which calls of a group a run has priced. So they can't give the costs if one repricing lies
    on top of another.
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
    # The day of a call as an expression: the index on days would lead to more calls than their numbers do.
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


# All parts have the columns of the first. A repricing's sums are the differences to the costs at call time.
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
# They are grouped by account, by slot of the window, and by whether the usage is known.


_ENDED_BADLY = "('failed', 'cancelled')"


def spending(
    statements: Statements, queries: Sequence[SpendingQuery], run_id: str, *, without: Sequence[str] = ()
) -> Spending:
    """The sums, and how far the trace had come, from one snapshot."""
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
    if without:
        conditions.append(f"r.run_id NOT IN ({', '.join('?' for _ in without)})")
        values += without
    if query.since_us is not None:
        conditions.append("c.ts_us >= ?")
        values.append(query.since_us)
    priced, bound = with_nano(cost_under(current_runs(statements)), " AND ".join(conditions), values)
    value = f"coalesce({group.names[0]}, '')" if group.names else "''"
    unknown = f"({usage_unknown('keyed')} OR {_output_unknown('keyed')} OR {_under_way('keyed')})"
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


def _under_way(row: str) -> str:
    """The condition that a call has created a job without a stored end."""
    return (
        f"({row}.operation = 'video_create' AND {row}.status = 'completed' AND NOT EXISTS"
        " (SELECT 1 FROM calls AS e WHERE e.operation IN ('video_create', 'video') AND e.operation = 'video'"
        f" AND e.provider = {row}.provider AND e.response_id = {row}.response_id)"
        f" OR {row}.operation = 'batch_create' AND {row}.status = 'completed' AND NOT EXISTS"
        f" (SELECT 1 FROM events AS e WHERE e.request_id = {row}.request_id AND e.topic = 'batch.part_ended'))"
    )


def _output_unknown(row: str) -> str:
    """The condition that an attempt failed after it was sent and before anything of a reply was heard."""
    return (
        f"({row}.status IN {_ENDED_BADLY} AND coalesce({row}.usage_source, '') = 'estimated'"
        f" AND coalesce({total_input(row)}, 0) > 0 AND coalesce({row}.output_tokens, 0) = 0)"
    )
