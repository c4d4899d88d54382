"""The costs of each repricing, which of them are current, and the sums that are kept of them.

A repricing is an act: its costs are its own, in `call_cost` by run. Another run of the same price version has
costs of its own, too. So the calls that one run covers never depend on another run, and taking a run back takes
back what it did and nothing else.

`current_run` lists the runs whose costs are current, the first of them first. The cost of a call is that of the
first run that covers it, else the one at call time. A repricing of all calls is alone in the list; one of some
calls lies on what was there.

`repriced_sums` says by how much the costs of a run differ from those at call time, in sums over all calls that it
covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ..calls.sums import KEY, REPRICED, added, repriced_summands
from ..connection import SqlValue, Statements, placeholders

RepricedGroup: TypeAlias = tuple[int, str, str, int, int, int]
"""Day, provider and model; the calls that got a cost; the difference to their sum at call time, in nano-USD; and
the number by which more of them are unpriced."""

RUN_KEY = ("run", *KEY)
_ADD_REPRICED = added("repriced_sums", RUN_KEY, REPRICED, f"VALUES ({placeholders(len((*RUN_KEY, *REPRICED)))})")


class Difference(NamedTuple):
    """The difference between some costs and those at call time, over all calls."""

    nano_usd: int
    """The difference of the sums, in nano-USD."""
    unpriced: int
    """The number by which more calls are unpriced."""


def add_repriced(statements: Statements, run_id: int, groups: Iterable[RepricedGroup]) -> None:
    """Add new costs of a run to its sums, in the transaction that writes the costs."""
    rows: list[list[SqlValue]] = [[run_id, *group] for group in groups]
    statements.run_many(_ADD_REPRICED, rows)


def current_runs(statements: Statements) -> list[int]:
    """The runs whose costs are current, the first of them first."""
    return [int(run) for (run,) in statements.run("SELECT run FROM current_run ORDER BY position")]


def make_current(statements: Statements, runs: Iterable[int]) -> None:
    """Let these runs be the current ones, the first of them first."""
    statements.run("DELETE FROM current_run")
    statements.run_many("INSERT INTO current_run (position, run) VALUES (?, ?)", enumerate(runs))


def runs_of(statements: Statements, version: str) -> list[int]:
    """The finished runs of a price version whose costs go before one another, the latest first.

    The list ends with a run that covers whatever the earlier runs cover. That is a run of all calls, unless it was
    undone: a call that ended after the undoing may be covered by an earlier run alone. By a clock that was set
    back, the earlier run may also cover calls that began after the end of the later one.
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
"""The filter that lets all calls pass, as it is stored."""

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
    """The difference between the costs at call time and the costs if these runs were the current ones.

    It comes from the sums that are kept. Only calls are looked at that a run covers and other runs cover above it.
    """
    nano = unpriced = 0
    for place, run_id in enumerate(runs):
        ((more, more_unpriced),) = statements.run(_KEPT, (run_id,))
        nano, unpriced = nano + more, unpriced + more_unpriced
        if place:
            sql = _COVERED_ABOVE.format(above=placeholders(place))
            ((hidden, hidden_unpriced),) = statements.run(sql, (*runs[:place], run_id))
            nano, unpriced = nano - hidden, unpriced - hidden_unpriced
    return Difference(nano, unpriced)
