"""Sums of calls: the expressions for them, and the tables that keep them by day, provider and model.

`call_sums` holds the sums over the calls up to number `summed_calls.up_to`. The few calls that came later are
added by whoever asks, so a batch of events costs nothing more. Now and then `sum_up` takes the new calls in, all
at once. When a call that is summed already changes or goes, the database changes the sums in the same transaction.

`repriced_sums` says, for each repricing, by how much its costs differ from those at call time.

A count so absurd that a sum would leave 64 bits makes that sum a floating-point number, and so inexact. That is
better than a batch that is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..connection import Dialect, Statements, greater
from .unknown import usage_unknown

SUM_UP_AFTER = 5_000
"""New calls, after which it is time to `sum_up`."""

KEY = ("day", "provider", "model")

SUMMED = (
    *("calls", "total_input_tokens", "output_tokens", "cost_nano", "unpriced", "estimated"),
    *("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens", "unknown"),
)
"""The columns of `call_sums` that are sums. Costs are those at call time."""

REPRICED = ("calls", "cost_nano", "unpriced")
"""The columns of `repriced_sums` that are sums."""

_ABSURD = 1 << 53


def flag(condition: str) -> str:
    """A condition as 1 or 0."""
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def total_input(row: str) -> str:
    """All input tokens of a call. The sum of absurd counts is no error: elsewhere than in SQLite, numeric has no
    bounds.
    """
    return f"(CAST({row}.input_tokens AS numeric) + {row}.cached_input_tokens + {row}.cache_creation_input_tokens)"


def sums_of(row: str) -> dict[str, str]:
    """The sums over calls that `with_nano` gives, by the names that rows of answers have for them."""
    tokens = ("output_tokens", "cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens")
    return {
        "total_input_tokens": sum_of(total_input(row)),
        **{name: sum_of(f"{row}.{name}") for name in tokens},
        "cost_nano_usd": sum_of(f"{row}.now_nano"),
        "unpriced": f"count(*) FILTER (WHERE {row}.usage_source IS NOT NULL AND {row}.now_nano IS NULL)",
        "estimated": f"count(*) FILTER (WHERE {row}.usage_source = 'estimated')",
        "unknown": f"count(*) FILTER (WHERE {usage_unknown(row)})",
    }


def sum_of(count: str) -> str:
    """The sum of counts, which absurd ones make inexact."""
    return f"coalesce(sum({_count(count)}), 0)"


def whole(total: float) -> int:
    """A sum as the number that it is. An inexact one comes as a floating-point number."""
    return int(total)


# -- The tables


def summands(row: str) -> dict[str, str]:
    """The values that one row of `calls` adds to `SUMMED`."""
    values = (
        "1",
        _count(total_input(row)),
        _count(f"{row}.output_tokens"),
        f"coalesce({row}.cost_nano, 0)",
        flag(f"{row}.usage_source IS NOT NULL AND {row}.cost_nano IS NULL"),
        flag(f"{row}.usage_source = 'estimated'"),
        _count(f"{row}.cached_input_tokens"),
        _count(f"{row}.cache_creation_input_tokens"),
        _count(f"{row}.reasoning_tokens"),
        flag(usage_unknown(row)),
    )
    return dict(zip(SUMMED, values, strict=True))


def _count(tokens: str) -> str:
    # sum() fails where integers leave 64 bits, but not with a floating-point number among them.
    return (
        f"CASE WHEN {tokens} BETWEEN -{_ABSURD} AND {_ABSURD} THEN {tokens} ELSE coalesce({tokens} * 1.0, 0) END"
    )


def repriced_summands(cost: str, call: str) -> tuple[str, ...]:
    """The values that one row of `call_cost` adds to `REPRICED`."""
    unpriced = flag(f"{cost}.cost_nano IS NULL")
    unpriced_at_call = flag(f"{call}.usage_source IS NOT NULL AND {call}.cost_nano IS NULL")
    return (
        "1",
        f"(coalesce({cost}.cost_nano, 0) - coalesce({call}.cost_nano, 0))",
        f"({unpriced} - {unpriced_at_call})",
    )


def changes(table: str, names: Iterable[str], by: Iterable[str], sign: str) -> str:
    """The SET list that adds values to columns, or with the sign ``-`` takes them off."""
    return ", ".join(f"{name} = {table}.{name} {sign} {value}" for name, value in zip(names, by, strict=True))


def added(table: str, key: Iterable[str], names: Iterable[str], select: str) -> str:
    """An INSERT that adds the sums of a SELECT to those of the table."""
    more = changes(table, names, (f"excluded.{name}" for name in names), "+")
    columns, unique = ", ".join([*key, *names]), ", ".join(key)
    return f"INSERT INTO {table} ({columns}) {select} ON CONFLICT ({unique}) DO UPDATE SET {more}"


def sums(values: Iterable[str]) -> str:
    """The sums of these values, as a list of columns."""
    return ", ".join(f"sum({value})" for value in values)


def keys(row: str) -> str:
    """The columns of `KEY`, as a list."""
    return ", ".join(f"{row}.{name}" for name in KEY)


def sum_up_sql(names: Sequence[str], dialect: Dialect) -> str:
    """The statement that takes the new calls into the sums of these names."""
    # In the order of ids: along the index on days, nothing would need to be sorted, and all calls would be read.
    values = summands("c")
    return added(
        *("call_sums", KEY, names),
        f"""
        SELECT {keys("c")}, {sums(values[name] for name in names)}
          FROM {dialect.by_number("calls", "c")}
         WHERE c.id > (SELECT up_to FROM summed_calls)
         GROUP BY {keys("c")}
        """,
    )


_LAST_CALL = "(SELECT coalesce(max(id), 0) FROM calls)"
SUMMED_UP = f"UPDATE summed_calls SET up_to = {greater('up_to', _LAST_CALL)}"


def sum_up(statements: Statements) -> None:
    """Take the new calls into the sums."""
    statements.run(sum_up_sql(SUMMED, statements.dialect))
    statements.run(SUMMED_UP)


def not_summed_up(statements: Statements) -> int:
    """The number of calls that wait for `sum_up`, or a few more."""
    ((waiting,),) = statements.run("SELECT coalesce((SELECT max(id) FROM calls), 0) - up_to FROM summed_calls")
    return max(0, int(waiting))
