"""The sums that calls used and cost, by group.

By day, provider and model the trace keeps sums (`call_sums`), which answer for whole days. The calls of days that
a filter cuts, and those that are in no sum yet, are added one by one. Everything else is summed from the calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...calls import CallFilter
from ...prices.rows import MAX_INT64
from ...rows import CostRow
from ...timestamps import US_PER_DAY, to_us
from ..connection import Database, Dialect, Sql, SqlValue
from ..repricing.run_costs import current_runs, runs_of
from .current_costs import cost_under, with_nano
from .dimensions import grouping
from .sums import SUMMED, flag, sum_of, summands, sums_of, whole
from .where import condition

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
    """A query for sums of calls; None where the sums that are kept don't tell.

    They don't tell which calls of a group a run has priced. So they don't tell what calls cost of which some were
    repriced on top of another repricing.
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


# All with the columns of the first. The costs of a repricing differ from those at call time by its own sums.
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
