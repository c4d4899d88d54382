"""What calls used and cost, summed by group.

By day, provider and model, the file keeps sums (`call_sums`), from which whole days are answered; the calls of
days that a filter cuts, and those that are in no sum yet, are added one by one. Everything else is summed from the
calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...prices.rows import MAX_INT64
from ...queries import NOW_NANO, CallFilter, with_cost
from ...sqlite.database import Database
from ...sqlite.insert import SqlValue
from ...timestamps import US_PER_DAY, to_us
from ..repricing.run_costs import current_runs, runs_of
from .dimensions import grouping
from .sums import SUMMED, summands
from .unknown import usage_unknown


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a group of calls. key: its values, in the order asked for; days are ISO dates (UTC).

    calls: attempts that have ended or not, as rows of the trace. total_input_tokens: with those read from
    and written to the provider's cache, which are also given apart (`cached_input_tokens`,
    `cache_creation_input_tokens`). output_tokens: `reasoning_tokens` included. cost_nano_usd: over the calls that
    have a cost, the current one or the one under the version asked for. at_call_time_nano_usd: the same of the
    costs when they were called. unpriced: calls with usage, but without a current cost; they are in no amount.
    at_call_time_unpriced: the same of the costs at call time. estimated: how many of the calls have usage that was
    estimated. unknown: of how many not even the usage is known, as they got no answer or have no end yet; they are
    in no amount either.
    """

    key: tuple[str, ...]
    calls: int
    total_input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    at_call_time_nano_usd: int
    unpriced: int
    estimated: int
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    reasoning_tokens: int = 0
    unknown: int = 0
    at_call_time_unpriced: int = 0

    @property
    def cache_hit_rate(self) -> float | None:
        """The part of all input tokens that came from the cache, 0 to 1; None without input."""
        return self.cached_input_tokens / self.total_input_tokens if self.total_input_tokens else None


async def costs(database: Database, where: CallFilter, by: Sequence[str], under: str | None) -> list[CostRow]:
    """The dearest group first. Raises ValueError for a dimension that there isn't."""
    group = grouping(by, "p")
    kept = await _from_sums(database, where, by, under)
    if kept is None:
        condition, values = where.condition(NOW_NANO)
        (sql, values), sums = with_cost(under, condition, values), _SUMS
    else:
        (sql, values), sums = kept, _SUMS_OF_SUMS
    rows = await database.read(
        f"""
        WITH priced AS ({sql}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p)
        SELECT {group.listed(",")} {sums}
          FROM keyed
         {"GROUP BY " if by else ""}{group.listed()}
         ORDER BY cost {"DESC, " if by else ""}{group.listed()}
        """,
        [*values, *group.values],
    )
    return [
        CostRow(key=group.key(row), **dict(zip(_SUMMED, row[len(by) :], strict=True)))  # the rest of the fields
        for row in rows
    ]


async def _from_sums(
    database: Database, where: CallFilter, by: Sequence[str], under: str | None
) -> tuple[str, list[SqlValue]] | None:
    """A query for sums of calls, and its parameters; None where the sums that are kept don't tell.

    They don't tell which calls of a group a run has priced, and so not what calls cost of which some were repriced
    on top of another repricing.
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
    runs = await database.look(
        lambda statements: current_runs(statements) if under is None else runs_of(statements, under)
    )
    if first >= end or len(runs) > 1:
        return None
    parts, values = [], []
    condition, of_filter = anywhen.condition()
    whole = (f"{condition} AND c.day >= ? AND c.day < ?", [*of_filter, first, end])
    for sql, parameters in ((_KEPT, []), (_REPRICED, [runs[0] if runs else None]), (_NOT_YET_KEPT, [])):
        parts.append(sql.format(condition=whole[0]))
        values += [*parameters, *whole[1]]
    edges = ((since, first * US_PER_DAY), (end * US_PER_DAY, until))
    for begin, stop in edges:
        if begin is not None and stop is not None and begin < stop:
            edge = msgspec.structs.replace(where, since=begin, until=stop).condition(NOW_NANO)
            calls, of_calls = with_cost(under, *edge)
            parts.append(_OF_CUT_DAY.format(calls=calls))
            values += of_calls
    return " UNION ALL ".join(parts), values


_SUMMANDS = dict(zip(SUMMED, summands("p"), strict=True))
_LISTED = ", ".join(SUMMED)
_UNPRICED_THEN = "({0}.usage_source IS NOT NULL AND {0}.cost_nano IS NULL)"

# All with the columns of the first. What was repriced differs from the cost at call time by its own sums. The last
# calls are found by their numbers, and by no index.
_KEPT = f"""
    SELECT day, provider, model, {_LISTED}, cost_nano AS now_nano, unpriced AS then_unpriced
      FROM call_sums AS c
     WHERE {{condition}}
"""
_REPRICED = f"""
    SELECT day, provider, model, {", ".join(name if name == "unpriced" else "0" for name in SUMMED)}, cost_nano, 0
      FROM repriced_sums AS c
     WHERE run = ? AND {{condition}}
"""
_NOT_YET_KEPT = f"""
    SELECT day, provider, model, {", ".join(summands("c"))}, coalesce(cost_nano, 0), {_UNPRICED_THEN.format("c")}
      FROM calls AS c NOT INDEXED
     WHERE c.id > (SELECT up_to FROM summed_calls) AND {{condition}}
"""
_OF_CUT_DAY = f"""
    SELECT day, provider, model,
           {", ".join((_SUMMANDS | {"unpriced": "(p.usage_source IS NOT NULL AND p.now_nano IS NULL)"}).values())},
           coalesce(now_nano, 0), {_UNPRICED_THEN.format("p")}
      FROM ({{calls}}) AS p
"""

_SUMMED = CostRow.__struct_fields__[1:]
_SUMS = f"""
    count(*),
    coalesce(sum(input_tokens + cached_input_tokens + cache_creation_input_tokens), 0),
    coalesce(sum(output_tokens), 0),
    coalesce(sum(now_nano), 0) AS cost,
    coalesce(sum(cost_nano), 0),
    coalesce(sum(usage_source IS NOT NULL AND now_nano IS NULL), 0),
    coalesce(sum(usage_source = 'estimated'), 0),
    coalesce(sum(cached_input_tokens), 0),
    coalesce(sum(cache_creation_input_tokens), 0),
    coalesce(sum(reasoning_tokens), 0),
    coalesce(sum({usage_unknown("keyed")}), 0),
    coalesce(sum(usage_source IS NOT NULL AND cost_nano IS NULL), 0)
"""

_SUMS_OF_SUMS = ", ".join(
    f"coalesce(sum({name}), 0){' AS cost' if name == 'now_nano' else ''}"
    for name in ("calls", "total_input_tokens", "output_tokens", "now_nano", *SUMMED[3:], "then_unpriced")
)
