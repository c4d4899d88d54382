"""Costs of calls that were under way when a repricing came past them: they get their cost when they end.

A repricing covers the calls that had begun by its end. A call that ends later has no usage until then. So it is
priced in the transaction that stores its end, and nobody sees it with its usage and without that cost. The same
holds for a run that is not finished and has come past the call.

A repricing that was undone before the call ended doesn't cover the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ...calls import CallFilter
from ...prices.table import PriceTable
from ..calls.columns import USAGE_COLUMNS, usage_of
from ..calls.current_costs import nano_under
from ..calls.where import condition
from ..connection import Row, SqlValue, Statements, placeholders
from .prices import table_of
from .run_costs import add_repriced, current_runs
from .sums import Group, add_to_sums, session_of

_log = Log("tracestore.late_costs")

ROUNDED_US = 1_000_000
"""The tolerance for the begin of a call, in microseconds. An end tells the begin by its latency, which is rounded,
and clocks are set."""

_AT_ONCE = 500
"""Calls that one statement looks up."""

_RUNS = """
    SELECT id, version, filter, replaced, base, by_session, finished_us, done
      FROM reprice_run
     WHERE (finished_us > ? AND undone_us IS NULL) OR (finished_us IS NULL AND done > 0)
     ORDER BY finished_no IS NULL, finished_no, id
"""
_ENDED = """
    SELECT c.id
      FROM (VALUES {names}) AS j
      JOIN calls AS c ON c.request_id = j.column1 AND c.attempt = j.column2
"""
_LATE = f"""
    SELECT c.id, c.ts_us, c.day, c.provider, c.model, c.served_model, c.priced_as,
           {{session}}, c.cost_nano, {{before}}, {", ".join(f"c.{name}" for name in USAGE_COLUMNS)}
      FROM calls AS c
     WHERE c.id IN ({{ids}}) AND c.usage_source IS NOT NULL
       AND {{covered}}
       AND NOT EXISTS (SELECT 1 FROM call_cost AS own WHERE own.run = ? AND own.call_id = c.id)
       AND {{condition}}
"""


class _Run(NamedTuple):
    """A repricing that may cover a late call; the fields are those of `reprice_run`."""

    id: int
    version: str
    where: str
    replaced: str
    base: int | None
    by_session: int
    finished_us: int | None
    done: int


def add_late_costs(statements: Statements, ended: Sequence[tuple[str, int, int]]) -> None:
    """Price calls whose ends have just been stored, under every repricing that covers them.

    Args:
        statements: The connection, in the transaction that stored the ends.
        ended: The request of each call, its attempt, and its begin in microseconds UTC.
    """
    found = statements.run(_RUNS, (min(began_us for _, _, began_us in ended) - ROUNDED_US,))
    if not found:
        return
    names = [(request, attempt) for request, attempt, _ in ended]
    for place in range(0, len(names), _AT_ONCE):
        some = names[place : place + _AT_ONCE]
        sql = _ENDED.format(names=", ".join(["(?, ?)"] * len(some)))
        ids = [number for (number,) in statements.run(sql, [value for name in some for value in name])]
        for run in (_Run(*row) for row in found if ids):
            try:
                _add_costs_of(statements, run, ids)
            except StoreError as error:  # the end of a call is worth more than its cost
                _log.warning("not_repriced", repricing=run.id, error=str(error))


def _add_costs_of(statements: Statements, run: _Run, ids: Sequence[SqlValue]) -> None:
    lies_on = msgspec.json.decode(run.replaced or "[]", type=list[int])
    before = nano_under(current_runs(statements) if run.finished_us is None else lies_on)
    where = msgspec.json.decode(run.where, type=CallFilter)
    which, values = condition(where, statements.dialect, before)
    covered, end = ("c.id <= ?", run.done) if run.finished_us is None else ("c.ts_us < ?", run.finished_us)
    sql = _LATE.format(
        session=session_of(bool(run.by_session)),
        before=before,
        ids=placeholders(len(ids)),
        covered=covered,
        condition=which,
    )
    rows = statements.run(sql, [*ids, end, run.id, *values])
    if not rows:
        return
    table = table_of(statements, run.version)
    groups = [_priced(statements, run, table, row) for row in rows]
    add_repriced(
        statements,
        run.id,
        [
            (of.day, of.provider, of.model, 1, of.after - of.at_call, of.unpriced - of.unpriced_at_call)
            for of in groups
        ],
    )
    if run.finished_us is None:
        add_to_sums(statements, "reprice_sum", run.id, groups)
    for (above,) in statements.run("SELECT id FROM reprice_run WHERE base = ? AND finished_us IS NULL", (run.id,)):
        add_to_sums(statements, "reprice_sum", above, map(_of_base, groups))


def _priced(statements: Statements, run: _Run, table: PriceTable, row: Row) -> Group:
    """Store the cost of a call, and return what the call adds to the sums of the run."""
    call_id, ts_us, day, provider, model, served, priced_as, session, at_call, before, *counts = row
    usage = usage_of(counts)
    assert usage is not None  # the query asks for calls with usage only
    cost = table.price(model, usage, ts_us, served_model=served, priced_as=priced_as)
    after = cost.nano_usd
    statements.run(
        "INSERT INTO call_cost (run, call_id, cost_nano, reason) VALUES (?, ?, ?, ?)",
        (run.id, call_id, after, cost.reason),
    )
    added = at_call if run.base is not None else before  # with a base, the base's part is in the sums already
    return Group(
        provider=provider,
        model=model,
        day=day,
        session=session,
        calls=1,
        unpriced=int(after is None),
        after=after or 0,
        unpriced_at_call=int(at_call is None),
        at_call=at_call or 0,
        unpriced_before=int(added is None),
        before=added or 0,
        newly_priced=int(before is None and after is not None),
        newly_priced_nano=(after or 0) if before is None else 0,
        no_longer_priced=int(after is None and before is not None),
        no_longer_priced_nano=(before or 0) if after is None else 0,
    )


def _of_base(of: Group) -> Group:
    """The change that a late cost of a base makes to the runs over it: only their costs before."""
    return Group(
        provider=of.provider,
        model=of.model,
        day=of.day,
        session="",
        calls=0,
        unpriced=0,
        after=0,
        unpriced_at_call=0,
        at_call=0,
        unpriced_before=of.unpriced - of.unpriced_at_call,
        before=of.after - of.at_call,
    )
