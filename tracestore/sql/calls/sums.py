"""Sums of calls by day, provider and model, so that what they cost needn't be added up call by call.

`call_sums` has the sums over the calls up to number `summed_calls.up_to`; what came later is few, and whoever asks
adds it. So a batch of events costs nothing more: now and then `sum_up` takes the new calls in, all at once. When a
call that is summed already changes, or goes, triggers change the sums in the same transaction.

What calls cost under a repricing has sums of its own, see `run_costs`.

A count so absurd that a sum leaves 64 bits makes that sum a REAL and so inexact: better than a batch refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...sqlite.database import Statements
from .unknown import NEW_INDEXES, usage_unknown

SUM_UP_AFTER = 5_000
"""New calls, after which it is time to `sum_up`."""

_SUMMED_AT_FIRST = (
    *("calls", "total_input_tokens", "output_tokens", "cost_nano", "unpriced", "estimated"),
    *("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens"),
)
SUMMED = (*_SUMMED_AT_FIRST, "unknown")
"""The sums; costs are those at call time."""

KEY = ("day", "provider", "model")
_ABSURD = 1 << 53


def summands(row: str) -> tuple[str, ...]:
    """What one row of `calls` adds to each of `SUMMED`, as SQL."""
    return (
        "1",
        _count(f"({row}.input_tokens + {row}.cached_input_tokens + {row}.cache_creation_input_tokens)"),
        _count(f"{row}.output_tokens"),
        f"coalesce({row}.cost_nano, 0)",
        f"({row}.usage_source IS NOT NULL AND {row}.cost_nano IS NULL)",
        f"coalesce({row}.usage_source = 'estimated', 0)",
        _count(f"{row}.cached_input_tokens"),
        _count(f"{row}.cache_creation_input_tokens"),
        _count(f"{row}.reasoning_tokens"),
        usage_unknown(row),
    )


def _count(tokens: str) -> str:
    # sum() fails where integers leave 64 bits, but not with a REAL among them.
    return (
        f"CASE WHEN {tokens} BETWEEN -{_ABSURD} AND {_ABSURD} THEN {tokens} ELSE coalesce({tokens} * 1.0, 0) END"
    )


REPRICED = ("calls", "cost_nano", "unpriced")


def repriced_summands(cost: str, call: str) -> tuple[str, ...]:
    """What one row of `call_cost` adds to each of `REPRICED`."""
    return (
        "1",
        f"(coalesce({cost}.cost_nano, 0) - coalesce({call}.cost_nano, 0))",
        f"(({cost}.cost_nano IS NULL) - ({call}.usage_source IS NOT NULL AND {call}.cost_nano IS NULL))",
    )


def changes(table: str, names: Iterable[str], by: Iterable[str], sign: str) -> str:
    return ", ".join(f"{name} = {table}.{name} {sign} {value}" for name, value in zip(names, by, strict=True))


def added(table: str, key: Iterable[str], names: Iterable[str], select: str) -> str:
    """An INSERT of what a SELECT gives, added to what is there."""
    more = changes(table, names, (f"excluded.{name}" for name in names), "+")
    columns, unique = ", ".join([*key, *names]), ", ".join(key)
    return f"INSERT INTO {table} ({columns}) {select} ON CONFLICT ({unique}) DO UPDATE SET {more}"


def sums(values: Iterable[str]) -> str:
    return ", ".join(f"sum({value})" for value in values)


def of_key(row: str) -> str:
    return " AND ".join(f"{name} = {row}.{name}" for name in KEY)


def keys(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in KEY)


def _sum_up(names: Sequence[str]) -> str:
    # Without an index: the one on days would be walked from end to end, so that nothing needs to be sorted.
    return added(
        *("call_sums", KEY, names),
        f"""
        SELECT {keys("c")}, {sums(_values("c", names))}
          FROM calls AS c NOT INDEXED
         WHERE c.id > (SELECT up_to FROM summed_calls)
         GROUP BY {keys("c")}
        """,
    )


def _values(row: str, names: Sequence[str]) -> tuple[str, ...]:
    """The summands of some of `SUMMED`, from its beginning."""
    return summands(row)[: len(names)]


_SUM_UP = _sum_up(SUMMED)
_SUMMED_UP = "UPDATE summed_calls SET up_to = max(up_to, (SELECT coalesce(max(id), 0) FROM calls))"

_REPRICED_KEY = ("price_version", *KEY)


def _out_of_sums(names: Sequence[str]) -> str:
    return f"""
        UPDATE call_sums SET {changes("call_sums", names, _values("OLD", names), "-")} WHERE {of_key("OLD")};
        DELETE FROM call_sums WHERE {of_key("OLD")} AND calls = 0;
    """


def _sums_follow(names: Sequence[str], also: str = "") -> tuple[str, str]:
    """The triggers that keep the sums in step with the calls. also: more columns that they depend on."""
    new = f"VALUES ({keys('NEW')}, {', '.join(_values('NEW', names))})"
    return (
        f"""
        CREATE TRIGGER summed_call_changes
        AFTER UPDATE OF day, provider, model, usage_source, cost_nano, {_COUNTED}{also} ON calls
        WHEN OLD.id <= (SELECT up_to FROM summed_calls)
        BEGIN
            {_out_of_sums(names)}
            {added("call_sums", KEY, names, new)};
        END
        """,
        f"""
        CREATE TRIGGER summed_call_goes AFTER DELETE ON calls
        WHEN OLD.id <= (SELECT up_to FROM summed_calls)
        BEGIN {_out_of_sums(names)} END
        """,
    )


_EVERY_VERSION = "(SELECT version FROM price_version)"
_SAID_BEFORE = (
    "OLD.usage_source IS NOT NULL AND (OLD.day, OLD.provider, OLD.model, OLD.cost_nano, OLD.usage_source)"
)
_COUNTED = "input_tokens, output_tokens, cached_input_tokens, cache_creation_input_tokens, reasoning_tokens"

CALL_SUMS = (
    f"""
    CREATE TABLE call_sums (
        day       INTEGER NOT NULL,
        provider  TEXT NOT NULL,
        model     TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL" for name in _SUMMED_AT_FIRST)},
        PRIMARY KEY (day, provider, model)
    ) WITHOUT ROWID
    """,
    "CREATE TABLE summed_calls (up_to INTEGER NOT NULL) STRICT",
    "INSERT INTO summed_calls (up_to) VALUES (0)",
    f"""
    CREATE TABLE repriced_sums (
        price_version  TEXT NOT NULL,
        day            INTEGER NOT NULL,
        provider       TEXT NOT NULL,
        model          TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL" for name in REPRICED)},
        PRIMARY KEY (price_version, day, provider, model)
    ) WITHOUT ROWID
    """,
    _sum_up(_SUMMED_AT_FIRST),
    _SUMMED_UP,
    added(
        *("repriced_sums", _REPRICED_KEY, REPRICED),
        f"""
        SELECT k.price_version, {keys("c")}, {sums(repriced_summands("k", "c"))}
          FROM call_cost AS k
          JOIN calls AS c ON c.id = k.call_id
         GROUP BY k.price_version, {keys("c")}
        """,
    ),
    *_sums_follow(_SUMMED_AT_FIRST),
    f"""
    CREATE TRIGGER repriced_call_changes
    AFTER UPDATE OF day, provider, model, usage_source, cost_nano ON calls
    WHEN {_SAID_BEFORE} IS NOT (NEW.day, NEW.provider, NEW.model, NEW.cost_nano, NEW.usage_source)
    BEGIN
        UPDATE repriced_sums SET {changes("repriced_sums", REPRICED, repriced_summands("k", "OLD"), "-")}
          FROM call_cost AS k
         WHERE k.price_version = repriced_sums.price_version AND k.call_id = OLD.id
           AND ({keys("repriced_sums")}) = ({keys("OLD")});
        {
        added(
            *("repriced_sums", _REPRICED_KEY, REPRICED),
            f"SELECT k.price_version, {keys('NEW')}, {', '.join(repriced_summands('k', 'NEW'))}"
            f"  FROM call_cost AS k WHERE k.price_version IN {_EVERY_VERSION} AND k.call_id = NEW.id",
        )
    };
        DELETE FROM repriced_sums WHERE {of_key("OLD")} AND calls = 0;
    END
    """,
    f"""
    CREATE TRIGGER repriced_call_goes AFTER DELETE ON call_cost
    BEGIN
        UPDATE repriced_sums SET {changes("repriced_sums", REPRICED, repriced_summands("OLD", "c"), "-")}
          FROM calls AS c
         WHERE c.id = OLD.call_id AND repriced_sums.price_version = OLD.price_version
           AND ({keys("repriced_sums")}) = ({keys("c")});
        DELETE FROM repriced_sums WHERE price_version = OLD.price_version AND calls = 0;
    END
    """,
)
"""The tables, filled with what a file has already, and the triggers that keep them in step."""

UNKNOWN_SUMS = (
    *NEW_INDEXES,
    "DROP TRIGGER IF EXISTS summed_call_changes",
    "DROP TRIGGER IF EXISTS summed_call_goes",
    "ALTER TABLE call_sums ADD COLUMN unknown INTEGER NOT NULL DEFAULT 0",
    "DELETE FROM call_sums",
    "UPDATE summed_calls SET up_to = 0",
    _SUM_UP,
    _SUMMED_UP,
    *_sums_follow(SUMMED, ", status, error_class, provider_status"),
)
"""The sums made anew, with the calls of unknown cost among them."""


def sum_up(statements: Statements) -> None:
    """Take the new calls into the sums."""
    statements.run(_SUM_UP)
    statements.run(_SUMMED_UP)


def not_summed_up(statements: Statements) -> int:
    """About how many calls are waiting for `sum_up`: never fewer than are."""
    ((waiting,),) = statements.run("SELECT coalesce((SELECT max(id) FROM calls), 0) - up_to FROM summed_calls")
    return max(0, int(waiting))
