"""The tables of sums, filled with the calls that a file has already, and the triggers that keep them in step."""

from __future__ import annotations

from collections.abc import Sequence

from ...sql.calls.sums import (
    KEY,
    REPRICED,
    SUMMED,
    SUMMED_UP,
    added,
    changes,
    keys,
    of_key,
    repriced_summands,
    sum_up_sql,
    summands,
    sums,
)
from ..dialect import SQLITE

_SUMMED_AT_FIRST = SUMMED[:-1]
"""The sums before calls of unknown cost were counted."""


def _values(row: str, names: Sequence[str]) -> list[str]:
    values = summands(row)
    return [values[name] for name in names]


_REPRICED_KEY = ("price_version", *KEY)


def _out_of_sums(names: Sequence[str]) -> str:
    return f"""
        UPDATE call_sums SET {changes("call_sums", names, _values("OLD", names), "-")} WHERE {of_key("OLD")};
        DELETE FROM call_sums WHERE {of_key("OLD")} AND calls = 0;
    """


def _sums_follow(names: Sequence[str], also: str = "") -> tuple[str, str]:
    """The triggers that keep the sums in step with the calls.

    Args:
        names: The sums.
        also: More columns that the sums depend on, each of them after a comma.
    """
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
    sum_up_sql(_SUMMED_AT_FIRST, SQLITE),
    SUMMED_UP,
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
    "CREATE INDEX calls_without_usage ON calls (model, day) WHERE usage_source IS NULL",
    "CREATE INDEX calls_estimated ON calls (model, day) WHERE usage_source = 'estimated'",
    "DROP TRIGGER IF EXISTS summed_call_changes",
    "DROP TRIGGER IF EXISTS summed_call_goes",
    "ALTER TABLE call_sums ADD COLUMN unknown INTEGER NOT NULL DEFAULT 0",
    "DELETE FROM call_sums",
    "UPDATE summed_calls SET up_to = 0",
    sum_up_sql(SUMMED, SQLITE),
    SUMMED_UP,
    *_sums_follow(SUMMED, ", status, error_class, provider_status"),
)
"""The sums made anew, with the calls of unknown cost among them; and indexes by which a repricing counts the calls
beside its sums without reading all calls."""
