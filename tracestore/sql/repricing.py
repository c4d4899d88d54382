"""The repricing of stored calls and its history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import StoreError

from ..call_columns import CallFilter
from ..prices.table import PriceTable
from ..reports import CurrentPrices, OnProgress, RepriceReport, RepriceRun, RepriceSums
from .call_rows import condition
from .comparison import (
    SumTable,
    UncountedCalls,
    add_repriced,
    add_to_sums,
    add_up_again,
    change_of,
    compared,
    count_uncounted,
    prepare,
    start_from_base,
    sums_of_run,
    total_of,
    with_counts,
)
from .connection import Database, Statements, greater
from .pricing import Pricer, current_version, save_table
from .sums import Difference, current_runs, difference, make_current

# --- Repricing stored calls ---
#
# A repricing works on sets of calls, and only adds rows.
#
# 1. Each distinct name of a model is resolved once, in Python, into segments in a temporary table (see `pricing`).
# 2. 10,000 calls at a time are joined with segments. Their costs, or the reasons why they have none, are stored in
#    a temporary table and copied from there into the trace. The costs are summed at the same time (`comparison`),
#    so the large rows of the calls are read once. Other writers work between these transactions.
# 3. Calls that started during the run are also priced. The transaction that prices the last of them also makes the
#    costs of this run the current costs. Until then no visible cost changes. Each transaction also stores the
#    progress of the run, so `resume` continues there and ends with the same report.
# 4. A call that started before the end of the run, and ends later, gets its cost in the transaction of its end.
#
# Events, costs at call time, and the costs of a run are never changed. The SQL follows `PriceTable.explain` case
# by case. A property test compares the two to the nano-dollar. A repricing of *some* calls changes only their
# costs: the other calls keep their current cost.


_T = TypeVar("_T")

CHUNK = 10_000
"""The number of calls in one transaction, which takes about 30 ms. The rows of these calls fit into the
processor's cache.
"""

_KEEP = """
    INSERT INTO call_cost (run, call_id, cost_nano, reason)
    SELECT ?, a.id, a.nano, a.reason FROM reprice_cost AS a
"""
_LAST_CALL = "SELECT coalesce(max(id), 0) FROM calls"


_SAME_IN_REPORTS = {*RepriceSums.__struct_fields__} & {*RepriceReport.__struct_fields__}


def _sum_table(dry: bool) -> SumTable:
    return "reprice_trial" if dry else "reprice_sum"


class Repricing:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        table: PriceTable,
        where: CallFilter,
        as_model: str | None,
        *,
        by_session: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._table = table
        self._where = where
        self._as_model = as_model
        self._by_session = by_session
        self._progress = progress
        self._pricer = Pricer(
            *(table, database.dialect.pricing, condition(where, database.dialect), as_model), by_session=by_session
        )

    async def run(self, *, dry: bool) -> RepriceReport:
        """Price all calls up to now. With `dry` nothing is written."""
        run_id, last = await self._either(dry, lambda statements: self._begin(statements, dry))
        return await self._continue(run_id, 0, last, dry)

    async def resume(self, run: RepriceRun) -> RepriceReport:
        """Continue an interrupted run from the first chunk that was not committed."""
        return await self._continue(run.id, run.done, run.last_call or 0, False)

    async def _continue(self, run_id: int, done: int, last: int, dry: bool) -> RepriceReport:
        await self._either(dry, self._prepare)
        while done < last:
            for low in range(done, last, CHUNK):
                done = min(low + CHUNK, last)
                price = partial(self._price, run_id=run_id, low=low, high=done, dry=dry)
                await self._either(dry, price)
                if self._progress is not None:
                    self._progress(done, last)
            last = await self._either(True, _last_call)
        uncounted, previous = await self._either(dry, lambda statements: self._end(statements, run_id, done, dry))
        sums = await sums_of_run(self._database, _sum_table(dry), run_id)
        total = {name: getattr(sums.total, name) for name in _SAME_IN_REPORTS}
        report = RepriceReport(
            version=self._table.version,
            label=self._table.label,
            dry_run=dry,
            as_model=self._as_model,
            previous_version=previous,
            run_id=run_id or None,
            sum_before_nano_usd=sums.total.before_nano_usd,
            sum_after_nano_usd=sums.total.after_nano_usd,
            models=sums.models,
            days=sums.days,
            sessions=sums.sessions,
            **total,
        )
        return with_counts(report, uncounted)

    async def _either(self, dry: bool, work: Callable[[Statements], _T]) -> _T:
        return await (self._database.look(work) if dry else self._database.write(work))

    def _prepare(self, statements: Statements) -> None:
        self._pricer.prepare(statements)
        prepare(statements)

    def _begin(self, statements: Statements, dry: bool) -> tuple[int, int]:
        """Store a new run. Return its number (0 for a dry run) and the number of the last call."""
        last = _last_call(statements)
        if dry:
            return 0, last
        table, where, now = self._table, self._where, self._clock.now_us()
        save_table(statements, table, now)
        ((run_id,),) = statements.run(
            """
            INSERT INTO reprice_run (version, filter, started_us, last_call, by_session, replaced)
            VALUES (?, ?, ?, ?, ?, ?)
            RETURNING id
            """,
            (
                *(table.version, msgspec.json.encode(where).decode(), now, last, int(self._by_session)),
                _encoded(current_runs(statements)),
            ),
        )
        if where == CallFilter() and not self._by_session:
            start_from_base(statements, run_id)
        return int(run_id), last

    def _price(self, statements: Statements, run_id: int, low: int, high: int, dry: bool) -> None:
        """Price one chunk of calls, and add its costs to the sums. Unless `dry`, store the new costs."""
        self._pricer.price(statements, low, high)
        groups = compared(statements, self._pricer, run_id, low, high)
        add_to_sums(statements, _sum_table(dry), run_id, groups)
        if dry:
            return
        statements.run(_KEEP, [run_id])
        add_repriced(statements, run_id, groups)
        if not statements.change(
            f"""
            UPDATE reprice_run
               SET done = :high, last_call = {greater("last_call", ":high")}
             WHERE id = :run AND done = :low AND finished_us IS NULL
            """,
            {"run": run_id, "low": low, "high": high},
        ):
            raise StoreError(f"repricing {run_id} is being continued by another process. Nothing was changed")

    def _end(self, statements: Statements, run_id: int, done: int, dry: bool) -> tuple[UncountedCalls, str | None]:
        """Price the calls that were stored after `done`, and finish the run."""
        last = _last_call(statements)
        if done < last:
            self._price(statements, run_id, done, last, dry)
        uncounted = count_uncounted(statements, self._where, by_session=self._by_session)
        previous = current_version(statements)
        if not dry:
            finish(statements, run_id, uncounted, self._clock.now_us())
        return uncounted, previous


def _last_call(statements: Statements) -> int:
    return int(statements.run(_LAST_CALL)[0][0])


# --- The history of repricings ---
#
# A run is stored before its first cost. The transaction that finishes the run makes its costs the current costs.
# In between, the run stores its progress. An unfinished run was interrupted, or is in progress.


def finish(statements: Statements, run_id: int, uncounted: UncountedCalls, now_us: int) -> None:
    """Record a run's result and make its costs current, in the transaction of its last calls."""
    (run,) = _runs(statements, "WHERE r.id = ?", (run_id,))
    replaced = tuple(current_runs(statements))
    after = run.current_after(replaced)
    is_stale = bool(statements.run("SELECT 1 FROM reprice_run WHERE id = ? AND add_up_again = 1", (run_id,)))
    _check(
        statements, run_id, _changed(statements, replaced, after), recounts=replaced != run.replaced or is_stale
    )
    sums = total_of(statements, "reprice_sum", run_id)
    statements.run(
        """
        UPDATE reprice_run
           SET finished_us = ?, calls = ?, unpriced = ?, sum_before = ?, sum_after = ?, replaced = ?,
               in_flight = ?, estimated = ?, unknown = ?,
               finished_no = 1 + (SELECT coalesce(max(finished_no), 0) FROM reprice_run)
         WHERE id = ?
        """,
        (
            *(now_us, sums.calls, sums.unpriced, sums.before_nano_usd, sums.after_nano_usd),
            *(_encoded(replaced), uncounted.in_flight, uncounted.estimated, uncounted.unknown, run_id),
        ),
    )
    make_current(statements, after)


def _changed(statements: Statements, before: tuple[int, ...], after: list[int]) -> Difference:
    """The change of all current costs if other runs become current."""
    old, new = difference(statements, before), difference(statements, after)
    return Difference(new.nano_usd - old.nano_usd, new.unpriced - old.unpriced)


def _check(statements: Statements, run_id: int, changed: Difference, *, recounts: bool) -> None:
    """Check the sums of a run, or recalculate them: other processes may have changed the trace meanwhile."""
    if not recounts and change_of(statements, run_id) == changed:
        return
    add_up_again(statements, run_id)
    reported = change_of(statements, run_id)
    if reported != changed:
        raise StoreError(
            f"repricing {run_id} would change the current costs by {changed.nano_usd} nano-USD and"
            f" {changed.unpriced} unpriced calls, but reports {reported.nano_usd} and "
            f"{reported.unpriced}. Nothing was changed"
        )


async def undo(database: Database, now_us: int) -> RepriceRun:
    """Undo the latest repricing, and return its run. The run's costs stay in the trace."""
    return await database.write(lambda statements: _undo(statements, database.name, now_us))


def _undo(statements: Statements, trace: str, now_us: int) -> RepriceRun:
    run = next((run for run in _in_order_of_finish(statements) if run.state == "finished"), None)
    if run is None or run.replaced is None:
        raise StoreError(f"{trace}: there is no repricing to undo")
    if current_runs(statements) != run.current_after(run.replaced):
        raise StoreError(
            f"{trace}: other costs were chosen after repricing {run.id}, so undoing it does not restore "
            f"them. Choose a version, or the costs at call time"
        )
    make_current(statements, run.replaced)
    statements.run("UPDATE reprice_run SET undone_us = ? WHERE id = ?", (now_us, run.id))
    return msgspec.structs.replace(run, undone_us=now_us)


async def interrupted(database: Database, run_id: int | None) -> RepriceRun:
    """The unfinished run with a number, or the latest unfinished run. Raises StoreError if there is none."""
    open_runs = [
        run for run in await history(database) if run.state == "interrupted" and run.last_call is not None
    ]
    for run in open_runs:
        if run_id is None or run.id == run_id:
            return run
    there = ", ".join(str(run.id) for run in open_runs) or "none"
    which = "" if run_id is None else f" with the number {run_id}"
    raise StoreError(f"{database.name}: no interrupted repricing{which}. Interrupted: {there}")


async def history(database: Database) -> list[RepriceRun]:
    return await database.look(lambda statements: _runs(statements, "ORDER BY r.id DESC"))


async def current_prices(database: Database) -> CurrentPrices:
    """The runs that set the current costs. Only tables with a few rows are read."""

    def work(statements: Statements) -> CurrentPrices:
        runs = tuple(current_runs(statements))
        versions = {run.id: run.version for run in _runs(statements)} if runs else {}
        run = next(iter(_in_order_of_finish(statements)), None)
        return CurrentPrices(runs, tuple(versions[run_id] for run_id in runs), run)

    return await database.look(work)


_RENAMED = {
    "where": "r.filter",
    "sum_before_nano_usd": "r.sum_before",
    "sum_after_nano_usd": "r.sum_after",
    "label": "coalesce(v.label, '')",
}
_COLUMNS = {name: _RENAMED.get(name, f"r.{name}") for name in RepriceRun.__struct_fields__}
"""The expression for each field of a run."""


def _runs(statements: Statements, which: str = "", values: Sequence[int] = ()) -> list[RepriceRun]:
    """Runs of the history. `which` follows the FROM clause, and `values` are its parameters."""
    rows = statements.run(
        f"""
        SELECT {", ".join(_COLUMNS.values())}
          FROM reprice_run AS r
          LEFT JOIN price_version AS v ON v.version = r.version
          {which}
        """,
        values,
    )
    found = []
    for row in rows:
        named = dict(zip(_COLUMNS, row, strict=True))
        named["where"] = msgspec.json.decode(named["where"], type=CallFilter)
        named["by_session"] = bool(named["by_session"])
        if named["replaced"] is not None:
            named["replaced"] = msgspec.json.decode(named["replaced"], type=tuple[int, ...])
        found.append(RepriceRun(**named))
    return found


def _in_order_of_finish(statements: Statements) -> list[RepriceRun]:
    """The runs that finished, the latest first."""
    return _runs(statements, "WHERE r.finished_no IS NOT NULL ORDER BY r.finished_no DESC")


def _encoded(runs: tuple[int, ...] | list[int]) -> str:
    return msgspec.json.encode(runs).decode()
