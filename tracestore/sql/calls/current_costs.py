"""The cost of a call, as it was when it was called and as it is now, in one SELECT.

Both costs are kept apart by name. The cost at call time never changes. The current cost is that of the first of
the current runs that covers the call, or of the latest run of a price version that is asked for; a call that no
such run covers keeps the cost at call time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..connection import Sql, SqlValue

# NULL where the cost at call time holds.
_CURRENT_RUN_OF_CALL = """(
        SELECT cr.run
          FROM current_run AS cr
          JOIN call_cost AS k ON k.run = cr.run AND k.call_id = c.id
         ORDER BY cr.position
         LIMIT 1
    )"""

_RUN_OF_CALL_UNDER = """(
        SELECT v.id
          FROM reprice_run AS v
          JOIN call_cost AS k ON k.run = v.id AND k.call_id = c.id
         WHERE v.version = ? AND v.finished_no IS NOT NULL
         ORDER BY v.finished_no DESC
         LIMIT 1
    )"""

CURRENT_NANO = f"""(
        CASE WHEN {_CURRENT_RUN_OF_CALL} IS NULL THEN c.cost_nano
             ELSE (SELECT k.cost_nano FROM call_cost AS k
                    WHERE k.call_id = c.id AND k.run = {_CURRENT_RUN_OF_CALL})
        END)"""
"""The current cost of a call ``c``, looked up."""

NOW_NANO = "(CASE WHEN cc.call_id IS NULL THEN c.cost_nano ELSE cc.cost_nano END)"
"""The current cost of a call ``c`` where `with_cost` has joined it."""

_WITH_COST = f"""
    SELECT c.*, r.run_id,
           CASE WHEN cc.call_id IS NULL THEN c.cost_version
                ELSE (SELECT v.version FROM reprice_run AS v WHERE v.id = cc.run)
           END AS now_version,
           {NOW_NANO} AS now_nano,
           CASE WHEN cc.call_id IS NULL THEN c.cost_reason ELSE cc.reason END AS now_reason,
           CASE WHEN cc.call_id IS NULL THEN c.cost_source
                WHEN cc.cost_nano IS NULL THEN 'unpriced'
                ELSE 'computed'
           END AS now_source,
           CASE WHEN cc.call_id IS NULL THEN c.cost_computed_nano END AS now_computed_nano
      FROM calls AS c
      JOIN runs AS r ON r.id = c.run
      LEFT JOIN call_cost AS cc
        ON cc.call_id = c.id
       AND cc.run = {{run}}
"""


def with_cost(under: str | None, condition: str = "TRUE", values: Sequence[SqlValue] = ()) -> Sql:
    """A SELECT of calls with both of their costs.

    Args:
        under: The price version of the second cost. None stands for the current cost.
        condition: Which calls ``c``, and whatever follows the condition.
        values: The parameters of the condition.
    """
    run, asked = (_CURRENT_RUN_OF_CALL, []) if under is None else (_RUN_OF_CALL_UNDER, [under])
    return f"{_WITH_COST.format(run=run)} WHERE {condition}", [*asked, *values]


_MOST_JOINED = 8
"""The number of runs up to which their costs are joined, for all calls at once."""


def cost_under(runs: Sequence[int]) -> tuple[str, str]:
    """The cost of many calls ``c`` as it would be if these runs were the current ones, the first of them first.

    Returns:
        The joins behind ``calls AS c``, and the expression for a call's nano-USD.
    """
    if len(runs) > _MOST_JOINED:
        return "", nano_under(runs)
    names = [f"cost_{place}" for place in range(len(runs))]
    joins = "".join(
        f" LEFT JOIN call_cost AS {name} ON {name}.run = {run:d} AND {name}.call_id = c.id"
        for name, run in zip(names, runs, strict=True)
    )
    cases = "".join(f" WHEN {name}.call_id IS NOT NULL THEN {name}.cost_nano" for name in names)
    return joins, f"(CASE{cases} ELSE c.cost_nano END)" if cases else "c.cost_nano"


def with_nano(priced: tuple[str, str], condition: str = "TRUE", values: Sequence[SqlValue] = ()) -> Sql:
    """A SELECT of calls, to be added up, with their cost as ``now_nano``.

    Args:
        priced: What `cost_under` says.
        condition: Which calls ``c``.
        values: The parameters of the condition.
    """
    joins, nano = priced
    sql = f"SELECT c.*, r.run_id, {nano} AS now_nano FROM calls AS c JOIN runs AS r ON r.id = c.run{joins}"
    return f"{sql} WHERE {condition}", list(values)


def nano_under(runs: Iterable[int]) -> str:
    """The cost of a call ``c`` as it would be if these runs were the current ones, the first of them first."""
    of_run = "FROM call_cost AS k WHERE k.run = {:d} AND k.call_id = c.id"
    cases = "".join(
        f" WHEN EXISTS (SELECT 1 {of_run.format(run)}) THEN (SELECT k.cost_nano {of_run.format(run)})"
        for run in runs
    )
    return f"(CASE{cases} ELSE c.cost_nano END)" if cases else "c.cost_nano"
