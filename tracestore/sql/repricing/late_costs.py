"""Costs of calls that were under way when a repricing came past them: they get them when they end.

A repricing covers the calls that had begun by its end. One that ends later has no usage until then, so it is
priced in the transaction that stores its end: nobody sees it with its usage and without that cost. So it is with a
run that isn't finished and has come past the call.

A repricing that was undone before the call ended doesn't cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bus.errors import StoreError
from bus.log import Log
from bus.values.usage import Cost

from ...prices.table import PriceTable
from ...queries import CallFilter, nano_under, usage_of
from ...sqlite.database import Row, Statements
from ...sqlite.repricing.sums import Group, add_to_sums
from .prices import table_of
from .run_costs import add_repriced, current_runs

_log = Log("tracestore.late_costs")

ROUNDED_US = 1_000_000
"""An end says when the call began by its latency, which is rounded, and clocks are set."""

_RUNS = """
    SELECT id, version, filter, replaced, base, by_session, finished_us, done
      FROM reprice_run
     WHERE (finished_us > ? AND undone_us IS NULL) OR (finished_us IS NULL AND done > 0)
     ORDER BY finished_no IS NULL, finished_no, id
"""
_ENDED = """
    SELECT json_group_array(c.id)
      FROM json_each(?) AS j
      JOIN calls AS c ON c.request_id = json_extract(j.value, '$[0]') AND c.attempt = json_extract(j.value, '$[1]')
"""
_USAGE = (
    *("input_tokens", "output_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "reasoning_tokens", "usage_source", "usage_raw", "usage_details"),
    "service_tier",
)
_LATE = f"""
    SELECT c.id, c.ts_us, c.day, c.provider, c.model, c.served_model, c.priced_as,
           CASE WHEN ? THEN coalesce(c.session_id, '') ELSE '' END, c.cost_nano, {{before}},
           {", ".join(f"c.{name}" for name in _USAGE)}
      FROM calls AS c
     WHERE c.id IN (SELECT value FROM json_each(?)) AND c.usage_source IS NOT NULL
       AND CASE WHEN ? IS NULL THEN c.id <= ? ELSE c.ts_us < ? END
       AND NOT EXISTS (SELECT 1 FROM call_cost AS own WHERE own.run = ? AND own.call_id = c.id)
       AND {{condition}}
"""


class _Run(NamedTuple):
    """A repricing that may cover a late call; as in `reprice_run`."""

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

    ended: of each call its request, its attempt and when it began, in microseconds.
    """
    oldest = min(began_us for _, _, began_us in ended)
    found = statements.run(_RUNS, (oldest - ROUNDED_US,))
    if not found:
        return
    names = msgspec.json.encode([(request, attempt) for request, attempt, _ in ended]).decode()
    ((ids,),) = statements.run(_ENDED, (names,))
    for row in found:
        run = _Run(*row)
        try:
            _add_costs_of(statements, run, ids)
        except StoreError as error:  # what was said is worth more than what it costs
            _log.warning("not_repriced", repricing=run.id, error=str(error))


def _add_costs_of(statements: Statements, run: _Run, ids: str) -> None:
    lies_on = msgspec.json.decode(run.replaced or "[]", type=list[int])
    before = nano_under(current_runs(statements) if run.finished_us is None else lies_on)
    condition, values = msgspec.json.decode(run.where, type=CallFilter).condition(before)
    rows = statements.run(
        _LATE.format(before=before, condition=condition),
        [run.by_session, ids, run.finished_us, run.done, run.finished_us, run.id, *values],
    )
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
        add_to_sums(statements, "main.reprice_sum", run.id, groups)
    for (above,) in statements.run("SELECT id FROM reprice_run WHERE base = ? AND finished_us IS NULL", (run.id,)):
        add_to_sums(statements, "main.reprice_sum", above, map(_of_base, groups))


def _priced(statements: Statements, run: _Run, table: PriceTable, row: Row) -> Group:
    """Store what a call costs, and say what it adds to the sums of the run."""
    call_id, ts_us, day, provider, model, served, priced_as, session, at_call, before, *counts = row
    usage = usage_of(dict(zip(_USAGE, counts, strict=True)))
    assert usage is not None  # the query asks for calls with usage only
    cost: Cost = table.price(model, usage, ts_us, served_model=served, priced_as=priced_as)
    after = cost.nano_usd
    statements.run(
        "INSERT INTO call_cost (run, call_id, cost_nano, reason) VALUES (?, ?, ?, ?)",
        (run.id, call_id, after, cost.reason),
    )
    added = at_call if run.base is not None else before  # with a base, the base's part is in the sums already
    return Group(
        *(provider, model, day, session, 1, int(after is None), after or 0, int(at_call is None), at_call or 0),
        *(int(added is None), added or 0),
        newly_priced=int(before is None and after is not None),
        newly_priced_nano=(after or 0) if before is None else 0,
        no_longer_priced=int(after is None and before is not None),
        no_longer_priced_nano=(before or 0) if after is None else 0,
    )


def _of_base(of: Group) -> Group:
    """What a cost that a base gets late changes for runs over it: only what its call cost before."""
    return Group(
        *(of.provider, of.model, of.day, "", 0, 0, 0, 0, 0),
        *(of.unpriced - of.unpriced_at_call, of.after - of.at_call),
    )
