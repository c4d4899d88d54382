"""The sums of calls and how they are kept, and the costs of each repricing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from .call_rows import usage_unknown
from .connection import Database, Statements, greater, placeholders

# --- Sums of calls ---
#
# `call_sums` contains the sums over the calls up to number `summed_calls.up_to`, by day, provider and model. A
# query adds the few later calls itself, so storing a batch of events has no extra cost. From time to time,
# `sum_up` adds all new calls. If a summed call changes or is deleted, the database changes the sums in the same
# transaction.
#
# `repriced_sums` has the difference of each repricing to the costs at call time. A count that would exceed 64 bits
# turns its sum into an inexact float. That is better than rejecting the batch.


SUM_UP_AFTER = 5_000
"""The number of new calls after which `sum_up` runs."""

KEY = ("day", "provider", "model")

SUMMED = (
    *("calls", "total_input_tokens", "output_tokens", "cost_nano", "unpriced", "estimated"),
    *("cached_input_tokens", "cache_creation_input_tokens", "reasoning_tokens", "unknown"),
)
"""The columns of `call_sums` that are sums. Costs are the costs at call time."""

REPRICED = ("calls", "cost_nano", "unpriced")
"""The columns of `repriced_sums` that are sums."""

_ABSURD = 1 << 53


def flag(condition: str) -> str:
    """Convert a condition to 1 or 0."""
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def total_input(row: str) -> str:
    """The SQL for all input tokens of a call. Outside of SQLite, numeric has no bounds, so no sum is an error."""
    return f"(CAST({row}.input_tokens AS numeric) + {row}.cached_input_tokens + {row}.cache_creation_input_tokens)"


def sums_of(row: str) -> dict[str, str]:
    """The sums over calls of `with_nano`, by their names in result rows."""
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
    """The sum of counts. Counts beyond 64 bits make the sum inexact."""
    return f"coalesce(sum({_count(count)}), 0)"


def whole_number(total: float) -> int:
    """A sum as an integer. The database returns an inexact sum as a floating-point number."""
    return int(total)


# --- Tables of sums ---


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
    # sum() fails if a sum of integers exceeds 64 bits, but not if one of the values is a float.
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
    """A SET list that adds values to columns, or subtracts them if the sign is ``-``."""
    return ", ".join(f"{name} = {table}.{name} {sign} {value}" for name, value in zip(names, by, strict=True))


def added(table: str, key: Iterable[str], names: Iterable[str], select: str) -> str:
    """An INSERT that adds the sums of a SELECT to the sums in a table."""
    more = changes(table, names, (f"excluded.{name}" for name in names), "+")
    columns, unique = ", ".join([*key, *names]), ", ".join(key)
    return f"INSERT INTO {table} ({columns}) {select} ON CONFLICT ({unique}) DO UPDATE SET {more}"


def sums(values: Iterable[str]) -> str:
    """The SQL of a column list: the sum of each of `values`."""
    return ", ".join(f"sum({value})" for value in values)


def keys(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in KEY)


_LAST_CALL = "(SELECT coalesce(max(id), 0) FROM calls)"


def sum_up(statements: Statements) -> None:
    # Read in the order of ids. The index on days would avoid sorting, but would read all calls.
    values = summands("c")
    statements.run(
        added(
            *("call_sums", KEY, SUMMED),
            f"""
            SELECT {keys("c")}, {sums(values[name] for name in SUMMED)}
              FROM {statements.dialect.by_number("calls", "c")}
             WHERE c.id > (SELECT up_to FROM summed_calls)
             GROUP BY {keys("c")}
            """,
        )
    )
    statements.run(f"UPDATE summed_calls SET up_to = {greater('up_to', _LAST_CALL)}")


def not_summed_up(statements: Statements) -> int:
    """An upper bound of the number of calls that `sum_up` has not added yet."""
    ((waiting,),) = statements.run("SELECT coalesce((SELECT max(id) FROM calls), 0) - up_to FROM summed_calls")
    return max(0, int(waiting))


_log = Log("tracestore.sums")


class SumKeeper:
    """Adds the calls that one writer has stored to the sums. Other writers of the trace do the same."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._new = SUM_UP_AFTER  # an upper bound of the calls that are in no sum; the first check corrects it

    async def stored(self, events: int) -> None:
        """Count stored events, and run `sum_up` after enough of them. Errors are only logged."""
        self._new += events
        if self._new < SUM_UP_AFTER:
            return
        try:
            self._new = await self._database.look(not_summed_up)
            if self._new >= SUM_UP_AFTER:
                await self._database.write(sum_up)
                self._new = 0
        except StoreError as error:
            self._new = 0
            _log.warning("not_summed_up", store=self._database.name, error=str(error))


# --- The costs of repricings ---
#
# Each repricing has its own costs, in `call_cost` by run, also if another run has the same price version. So no
# run depends on another, and undoing a run reverts exactly its own effect.
#
# `current_run` lists, in order, the runs that set the current costs. The current cost of a call is the cost under
# the first run that covers it, or else the cost at call time. A repricing of all calls is alone in the list. A
# repricing of some calls is added before the others.
#
# `repriced_sums` has the differences of a run to the costs at call time, in sums over all its calls.


class Difference(NamedTuple):
    """The difference between some costs and the costs at call time, over all calls."""

    nano_usd: int
    """The difference of the sums, in nano-USD."""
    unpriced: int
    """The increase of the number of unpriced calls."""


def current_runs(statements: Statements) -> list[int]:
    return [int(run) for (run,) in statements.run("SELECT run FROM current_run ORDER BY position")]


def make_current(statements: Statements, runs: Iterable[int]) -> None:
    statements.run("DELETE FROM current_run")
    statements.run_many("INSERT INTO current_run (position, run) VALUES (?, ?)", enumerate(runs))


def runs_of(statements: Statements, version: str) -> list[int]:
    """The finished runs of a price version in order of precedence, the latest first.

    The list ends with a run that covers all calls of earlier runs. Usually this is a run of all calls. If that run
    was undone, an earlier run alone may cover a call that ended later. If the clock was set back, the earlier run
    may also cover calls that started after the end of the later one.
    """
    found = statements.run(
        """
        SELECT id, filter, undone_us, finished_us FROM reprice_run
         WHERE version = ? AND finished_no IS NOT NULL
         ORDER BY finished_no DESC
        """,
        (version,),
    )
    runs = []
    for place, (run_id, where, undone_us, finished_us) in enumerate(found):
        runs.append(int(run_id))
        if where == _OF_ALL_CALLS and undone_us is None and finished_us >= max(row[3] for row in found[place:]):
            break
    return runs


_OF_ALL_CALLS = "{}"
"""The stored form of the filter that selects all calls."""

_, _NANO, _UNPRICED = repriced_summands("k", "c")
_KEPT = "SELECT coalesce(sum(cost_nano), 0), coalesce(sum(unpriced), 0) FROM repriced_sums WHERE run = ?"
_COVERED_ABOVE = f"""
    SELECT coalesce(sum({_NANO}), 0), coalesce(sum({_UNPRICED}), 0)
      FROM (SELECT DISTINCT call_id FROM call_cost WHERE run IN ({{above}})) AS above
     CROSS JOIN call_cost AS k
      JOIN calls AS c ON c.id = k.call_id
     WHERE k.run = ? AND k.call_id = above.call_id
"""


def difference(statements: Statements, runs: Sequence[int]) -> Difference:
    """The difference between the costs at call time and the costs under these runs."""
    nano = unpriced = 0
    for place, run_id in enumerate(runs):
        ((more, more_unpriced),) = statements.run(_KEPT, (run_id,))
        nano, unpriced = nano + more, unpriced + more_unpriced
        if place:
            sql = _COVERED_ABOVE.format(above=placeholders(place))
            ((hidden, hidden_unpriced),) = statements.run(sql, (*runs[:place], run_id))
            nano, unpriced = nano - hidden, unpriced - hidden_unpriced
    return Difference(nano, unpriced)
