"""Recomputing the costs of stored calls, set-based and append-only.

    1. Calls name their model in many ways. Each distinct way is resolved once, in Python, into segments: ranges of
       time and size with one price row each (`pricing`). They go into a temporary table.
    2. 10,000 calls at a time are joined with segments. Their costs, or the reasons why they have none, go into a
       temporary table and from there into the trace. They are added up on the way (`comparison`), so that the
       calls themselves, whose rows are large, are read once. Between these transactions others write.
    3. Calls that began meanwhile are priced, too. The last of them are priced in the transaction that makes the
       costs of this run the current ones. A repricing that dies half-way has changed nothing that anyone sees. The
       transaction of the costs also stores how far the run came. So `resume` goes on from there and ends with the
       same report (`history`).
    4. A call that had begun by then, and ends later, gets its cost in the transaction that stores its end
       (`late_costs`).

Nothing is ever edited: neither events, nor costs at call time, nor a cost that a run has given. The SQL follows
`PriceTable.explain` case by case. A property test compares the two to the nano-dollar.

A repricing of *some* calls lies on top of the current costs: the other calls keep the cost they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from callboard.bus.clock import Clock

from ...calls import CallFilter
from ...prices.table import PriceTable
from ...reports import OnProgress, RepriceReport, RepriceRun, RepriceSums
from ..calls.where import condition
from ..connection import Database, Statements
from .comparison import compared, prepare
from .counts import CountsBeside, count_beside, with_counts
from .history import begin, finish, interrupted, note_progress
from .prices import current_version, save_table, stored_table
from .pricing import Pricer
from .run_costs import RepricedGroup, add_repriced
from .sums import SumTable, add_to_sums, start_from_base, sums_of_run

_T = TypeVar("_T")

CHUNK = 10_000
"""Calls per transaction, which takes some 30 ms: so few that their rows stay in the processor's cache."""

_KEEP = """
    INSERT INTO call_cost (run, call_id, cost_nano, reason)
    SELECT ?, a.id, a.nano, a.reason FROM reprice_cost AS a
"""
_LAST_CALL = "SELECT coalesce(max(id), 0) FROM calls"


_SAME_IN_REPORTS = {*RepriceSums.__struct_fields__} & {*RepriceReport.__struct_fields__}


def _sum_table(dry: bool) -> SumTable:
    return "reprice_trial" if dry else "reprice_sum"


class Repricing:
    """One repricing of one trace.

    Args:
        database: The database. Everything is done on one connection, which has the temporary tables.
        clock: The clock that says when the repricing began and finished.
        table: The price table.
        where: The calls to price.
        as_model: A ``provider:name`` to price every call as; None prices each call as its own model.
        by_session: Whether to compare sessions, too.
        progress: Told between chunks how many calls are done, and of how many.
    """

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
        return await self._go_on(run_id, 0, last, dry)

    async def resume(self, run: RepriceRun) -> RepriceReport:
        """Go on with a run that was interrupted, from the first chunk that was not committed."""
        return await self._go_on(run.id, run.done, run.last_call or 0, False)

    async def _go_on(self, run_id: int, done: int, last: int, dry: bool) -> RepriceReport:
        await self._either(dry, self._prepare)
        while done < last:
            for low in range(done, last, CHUNK):
                done = min(low + CHUNK, last)
                await self._either(dry, self._chunk(run_id, low, done, dry))
                if self._progress is not None:
                    self._progress(done, last)
            last = await self._either(True, _last_call)
        beside, previous = await self._either(dry, lambda statements: self._end(statements, run_id, done, dry))
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
        return with_counts(report, beside)

    async def _either(self, dry: bool, work: Callable[[Statements], _T]) -> _T:
        return await (self._database.look(work) if dry else self._database.write(work))

    def _prepare(self, statements: Statements) -> None:
        self._pricer.prepare(statements)
        prepare(statements)

    def _begin(self, statements: Statements, dry: bool) -> tuple[int, int]:
        """Enter the run. Returns its number, 0 if it is only tried, and the number of the last call."""
        last = _last_call(statements)
        if dry:
            return 0, last
        table, where, now = self._table, self._where, self._clock.now_us()
        save_table(statements, table, now)
        run_id = begin(statements, table.version, where, now, last, by_session=self._by_session)
        if where == CallFilter() and not self._by_session:
            start_from_base(statements, run_id)
        return run_id, last

    def _chunk(self, run_id: int, low: int, high: int, dry: bool) -> Callable[[Statements], None]:
        return lambda statements: self._price(statements, run_id, low, high, dry)

    def _price(self, statements: Statements, run_id: int, low: int, high: int, dry: bool) -> None:
        """Add up the costs of one chunk, before and after. Unless `dry`, store the new costs."""
        self._pricer.price(statements, low, high)
        groups = compared(statements, self._pricer, run_id, low, high)
        add_to_sums(statements, _sum_table(dry), run_id, groups)
        if dry:
            return
        statements.run(_KEEP, [run_id])
        more: list[RepricedGroup] = [
            (of.day, of.provider, of.model, of.calls, of.after - of.at_call, of.unpriced - of.unpriced_at_call)
            for of in groups
        ]
        add_repriced(statements, run_id, more)
        note_progress(statements, run_id, low, high)

    def _end(self, statements: Statements, run_id: int, done: int, dry: bool) -> tuple[CountsBeside, str | None]:
        """Price the calls that came since `done`, and finish.

        Returns:
            The counts beside the sums, and the version that was current.
        """
        last = _last_call(statements)
        if done < last:
            self._chunk(run_id, done, last, dry)(statements)
        beside = count_beside(statements, self._where, by_session=self._by_session)
        previous = current_version(statements)
        if not dry:
            finish(statements, run_id, beside, self._clock.now_us())
        return beside, previous


async def reprice(
    database: Database,
    clock: Clock,
    table: PriceTable | str,
    where: CallFilter,
    *,
    dry_run: bool,
    as_model: str | None,
    by_session: bool,
    progress: OnProgress | None,
) -> RepriceReport:
    """See `tracestore.store.Repricing.reprice`."""
    if isinstance(table, str):
        table = await stored_table(database, table)
    run = Repricing(database, clock, table, where, as_model, by_session=by_session, progress=progress)
    return await run.run(dry=dry_run or as_model is not None)


async def resume_reprice(
    database: Database, clock: Clock, run_id: int | None, progress: OnProgress | None
) -> RepriceReport:
    """See `tracestore.store.Repricing.resume_reprice`."""
    begun = await interrupted(database, run_id)
    table = await stored_table(database, begun.version)
    run = Repricing(*(database, clock, table, begun.where, None), by_session=begun.by_session, progress=progress)
    return await run.resume(begun)


def _last_call(statements: Statements) -> int:
    return int(statements.run(_LAST_CALL)[0][0])
