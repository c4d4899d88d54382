"""The speed of calls, how often they failed, and how well they used the cache; all of it exact.

A percentile is a value that occurred (nearest rank): p99 is the smallest value that at least 99 % of the calls
don't exceed. The database counts how often each value occurs and adds up from the smallest. So it keeps as much as
there are different values, not calls; nothing is sampled and nothing estimated.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...calls import CallFilter
from ...rows import ErrorRow, Percentiles, StatisticsRow
from ..connection import Database, Row
from ..repricing.run_costs import current_runs
from .current_costs import cost_under, with_nano
from .dimensions import Grouping, grouping
from .sums import sums_of, whole
from .where import condition

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
    """The statistics of each group, the one with the most attempts first.

    Raises:
        ValueError: A dimension does not exist.
    """
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
    """The percentiles of one measure, by the values of the groups."""
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
