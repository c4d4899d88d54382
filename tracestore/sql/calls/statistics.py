"""How fast calls were, how often they failed and how well they used the cache; all of it exact.

A percentile is a value that occurred (nearest rank): p99 is the smallest one that at least 99 % of the calls don't
exceed. SQLite counts how often each value occurs and adds up from the smallest, so what it has to keep is bounded
by the number of different values, not of calls; nothing is sampled and nothing estimated.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...queries import NOW_NANO, CallFilter, with_cost
from ...sqlite.database import Database, Row
from ...sqlite.insert import SqlValue
from .dimensions import Grouping, grouping
from .unknown import usage_unknown


class Percentiles(msgspec.Struct, frozen=True):
    """How values are spread. count: of the attempts behind them; p50, p90, p99: the value that so many percent of
    them don't exceed, one that occurred; None if there are none.
    """

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class StatisticsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group of attempts. key: its values, in the order asked for; days are ISO dates (UTC).

    attempts: all of them; completed, failed, cancelled, running: how they stand. retried: failed ones after which
    the call went on. estimated, unpriced, unknown: how many are so, as in `CostRow`. total_input_tokens,
    output_tokens, cached_input_tokens: as there.
    latency_ms: of completed attempts, from the call's begin to its end; waiting for a slot and earlier attempts
    are in it. first_token_ms: of all that had a first token, from the call's begin.
    tokens_per_second: output tokens over the time from the first token to the end, to a tenth, of completed
    streamed attempts with at least two output tokens and a usage that is no estimate.
    """

    key: tuple[str, ...]
    attempts: int
    completed: int
    failed: int
    cancelled: int
    running: int
    retried: int
    total_input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    estimated: int = 0
    unpriced: int = 0
    unknown: int = 0
    latency_ms: Percentiles = Percentiles()
    first_token_ms: Percentiles = Percentiles()
    tokens_per_second: Percentiles = Percentiles()

    @property
    def cache_hit_rate(self) -> float | None:
        """The part of all input tokens that came from the cache, 0 to 1; None without input."""
        return self.cached_input_tokens / self.total_input_tokens if self.total_input_tokens else None


class ErrorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Failed attempts with the same class of error on the same model.

    model: ``provider:name`` as routed. attempts: how many; ended: after how many of them the call was over; the
    others were retried. calls: how many calls they belong to. first_us, last_us: when, microseconds UTC.
    error_type, error_message, provider_status, provider_code, request_id: of the latest one; the status is of
    HTTP, None if there was no answer.
    """

    error_class: str
    model: str
    attempts: int
    ended: int
    calls: int
    first_us: int
    last_us: int
    error_type: str | None
    error_message: str | None
    provider_status: int | None
    provider_code: str | None
    request_id: str


_COUNTS = f"""
    count(*),
    sum(status = 'completed'), sum(status = 'failed'), sum(status = 'cancelled'), sum(status = 'started'),
    coalesce(sum(will_retry), 0),
    coalesce(sum(input_tokens + cached_input_tokens + cache_creation_input_tokens), 0),
    coalesce(sum(output_tokens), 0),
    coalesce(sum(cached_input_tokens), 0),
    coalesce(sum(usage_source = 'estimated'), 0),
    coalesce(sum(usage_source IS NOT NULL AND now_nano IS NULL), 0),
    coalesce(sum({usage_unknown("keyed")}), 0)
"""
_COUNTED = StatisticsRow.__struct_fields__[1:13]

# What is measured, and on which calls.
_MEASURES = {
    "latency_ms": ("latency_ms", "status = 'completed' AND latency_ms IS NOT NULL"),
    "first_token_ms": ("first_token_ms", "first_token_ms IS NOT NULL"),
    "tokens_per_second": (
        "round(1000.0 * output_tokens / (latency_ms - first_token_ms), 1)",
        "status = 'completed' AND usage_source <> 'estimated' AND output_tokens > 1 AND streamed"
        " AND latency_ms > first_token_ms",
    ),
}


async def statistics(database: Database, where: CallFilter, by: Sequence[str]) -> list[StatisticsRow]:
    """The group with the most attempts first. Raises ValueError for a dimension that there isn't."""
    group, of_priced = grouping(by, "c"), grouping(by, "p")
    condition, values = where.condition()
    parameters: list[SqlValue] = [*group.values, *values]
    keyed = f"WITH keyed AS (SELECT c.*{group.columns} FROM calls AS c WHERE {condition})"
    grouped = f"GROUP BY {group.listed()}" if by else "HAVING count(*) > 0"
    counts = await _counts(database, where, of_priced, grouped)
    size = len(by)
    measured: dict[str, dict[tuple[object, ...], Percentiles]] = {}
    same = f"PARTITION BY {group.listed()}" if by else ""
    for name, (value, fits) in _MEASURES.items():
        rows = await database.read(
            f"""
            {keyed},
            histogram AS (
                SELECT {group.listed(",")} {value} AS value, count(*) AS calls
                  FROM keyed
                 WHERE {fits}
                 GROUP BY {group.listed(",")} value
            ),
            ranked AS (
                SELECT {group.listed(",")} value,
                       sum(calls) OVER ({same} ORDER BY value) AS place,
                       sum(calls) OVER ({same}) AS size
                  FROM histogram
            )
            SELECT {group.listed(",")} size, {", ".join(_percentile(part) for part in (50, 90, 99))}
              FROM ranked {grouped}
            """,
            parameters,
        )
        measured[name] = {row[:size]: Percentiles(*row[size:]) for row in rows}
    found = []
    for row in counts:
        key = row[:size]
        latency, first_token, speed = (measured[name].get(key, Percentiles()) for name in _MEASURES)
        found.append(
            StatisticsRow(
                key=group.key(row),
                **dict(zip(_COUNTED, row[size:], strict=True)),
                latency_ms=latency,
                first_token_ms=first_token,
                tokens_per_second=speed,
            )
        )
    return sorted(found, key=lambda row: (-row.attempts, row.key))


async def _counts(database: Database, where: CallFilter, group: Grouping, grouped: str) -> list[Row]:
    priced, values = with_cost(None, *where.condition(NOW_NANO))
    return await database.read(
        f"""
        WITH priced AS ({priced}),
             keyed AS (SELECT p.*{group.columns} FROM priced AS p)
        SELECT {group.listed(",")} {_COUNTS} FROM keyed {grouped}
        """,
        [*values, *group.values],
    )


def _percentile(part: int) -> str:
    """The smallest value that at least `part` per cent don't exceed."""
    return f"min(CASE WHEN 100 * place >= {part} * size THEN value END)"


async def errors(database: Database, where: CallFilter) -> list[ErrorRow]:
    """Failed attempts by class and model, the most frequent first."""
    condition, values = where.condition()
    # Where max() is the only one of its kind, SQLite takes the other columns from the row that has the maximum.
    rows = await database.read(
        f"""
        WITH failed AS (
            SELECT c.*, first_value(c.ts_us) OVER same AS first_us
              FROM calls AS c
             WHERE c.error_class IS NOT NULL AND {condition}
            WINDOW same AS (PARTITION BY c.error_class, c.model ORDER BY c.ts_us)
        )
        SELECT error_class, model, count(*), sum(NOT coalesce(will_retry, 0)), count(DISTINCT request_id),
               first_us, max(ts_us), error_type, error_message, provider_status, provider_code, request_id
          FROM failed
         GROUP BY error_class, model
         ORDER BY count(*) DESC, error_class, model
        """,
        values,
    )
    return [ErrorRow(**dict(zip(ErrorRow.__struct_fields__, row, strict=True))) for row in rows]
