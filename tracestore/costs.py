"""What calls used and cost, summed by group."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .database import Database
from .dimensions import grouping
from .queries import NOW_NANO, WITH_CURRENT_COST, CallFilter


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a group of calls. key: its values, in the order asked for; days are ISO dates (UTC).

    Tokens: `total_input_tokens` includes those read from and written to the provider's cache, which are also
    given apart. Costs: nano-USD over the calls that have one; `cost_nano_usd` is the current one, or the one under
    the version asked for. unpriced: calls with usage, but without a current cost; they are in no sum.
    at_call_time_unpriced: the same of the costs at call time.
    estimated: how many of the calls have usage that was estimated.
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
    at_call_time_unpriced: int = 0

    @property
    def cache_hit_rate(self) -> float | None:
        """The part of all input tokens that came from the cache, 0 to 1; None without input."""
        return self.cached_input_tokens / self.total_input_tokens if self.total_input_tokens else None


async def costs(database: Database, where: CallFilter, by: Sequence[str], under: str | None) -> list[CostRow]:
    """The dearest group first. Raises ValueError for a dimension that there isn't."""
    group = grouping(by, "p")
    condition, values = where.condition(NOW_NANO)
    rows = await database.read(
        f"""
        WITH priced AS ({WITH_CURRENT_COST} WHERE {condition}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p)
        SELECT {group.listed(",")} {_SUMS}
          FROM keyed
         {"GROUP BY " if by else ""}{group.listed()}
         ORDER BY cost {"DESC, " if by else ""}{group.listed()}
        """,
        [under, *values, *group.values],
    )
    return [
        CostRow(key=group.key(row), **dict(zip(_SUMMED, row[len(by) :], strict=True)))  # the rest of the fields
        for row in rows
    ]


_SUMMED = CostRow.__struct_fields__[1:]
_SUMS = """
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
    coalesce(sum(usage_source IS NOT NULL AND cost_nano IS NULL), 0)
"""
