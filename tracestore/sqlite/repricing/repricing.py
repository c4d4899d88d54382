"""Recomputing what stored calls cost, set-based and append-only.

1. Every distinct (provider, model, served model) among the calls is resolved once, in Python, into segments:
   boxes of time and size with one price row each (`price_sql`). They go into a temporary table.
2. 10,000 calls at a time are joined with segments; their costs, or the reasons why there are none, go into a
   temporary table and from there into the file, and are added up on the way (`reprice_sums`): the calls
   themselves, whose rows are large, are read once. Between two of these transactions other writers get their turn.
3. Calls that came meanwhile are priced, too; the last of them in the transaction that makes the costs of this run
   the current ones. A repricing that dies half-way has changed nothing that anyone sees. The file says how far it
   came, in the transaction of the costs themselves, so that `resume` goes on from there and ends with the same
   report (`reprice_runs` keeps that book).
4. Calls that had begun by then, and end later, get their cost in the transaction that stores their end
   (`late_costs`).

Nothing is ever edited: neither events, nor the costs at call time, nor a cost that a run has given. The SQL
(`tracestore.sqlite.repricing.pricing`) follows `PriceTable.explain` case by case; a property test holds the two
together to the nano-dollar.

A repricing of *some* calls lies on top of what is current: the other calls keep the cost they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar

from bus.clock import Clock

from ...prices.table import PriceTable
from ...queries import CallFilter
from ...reports import RepriceReport
from ...sql.repricing.counts import Beside, count_beside, with_counts
from ...sql.repricing.history import RepriceRun, begin, finish, note_progress
from ...sql.repricing.prices import current_version, save_table
from ...sql.repricing.run_costs import RepricedGroup, add_repriced
from ..database import Database, Statements
from .pricing import Pricer
from .sums import TEMPORARY_TABLES, add_to_sums, compared, start_from_base, sums_of

_T = TypeVar("_T")

CHUNK = 10_000
"""Calls per transaction, which takes some 30 ms: so few that what is worked on stays in the processor's cache."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Told the number of the last call that is done and of the last there is, between chunks. What it raises stops
the repricing there, as a kill would: it can be resumed."""

_KEEP = """
    INSERT INTO call_cost (run, call_id, cost_nano, reason)
    SELECT ?, a.id, a.nano, a.reason FROM temp.reprice_cost AS a
"""
_LAST_CALL = "SELECT coalesce(max(id), 0) FROM calls"


class Repricing:
    """One repricing of one store. by_session: sums are kept for each session as well."""

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
        self._pricer = Pricer(table, *where.condition(), as_model, by_session=by_session)

    async def run(self, *, dry: bool) -> RepriceReport:
        """Price all calls up to now; with `dry` nothing is written."""
        run_id, last = await self._either(dry, lambda statements: self._begin(statements, dry))
        return await self._go_on(run_id, 0, last, dry)

    async def resume(self, run: RepriceRun) -> RepriceReport:
        """Go on with one that was interrupted, from the first chunk that was not committed."""
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
        report = RepriceReport(
            version=self._table.version,
            label=self._table.label,
            dry_run=dry,
            as_model=self._as_model,
            previous_version=previous,
            run_id=run_id or None,
            **await sums_of(self._database, "temp.reprice_sum" if dry else "main.reprice_sum", run_id),
        )
        return with_counts(report, beside)

    async def _either(self, dry: bool, work: Callable[[Statements], _T]) -> _T:
        return await (self._database.look(work) if dry else self._database.write(work))

    def _prepare(self, statements: Statements) -> None:
        self._pricer.prepare(statements)
        for sql in TEMPORARY_TABLES:
            statements.run(sql)

    def _begin(self, statements: Statements, dry: bool) -> tuple[int, int]:
        """The number of the run, 0 if it is only tried, and that of the last call that there is."""
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
        return lambda statements: (self._measure if dry else self._price)(statements, run_id, low, high)

    def _measure(self, statements: Statements, run_id: int, low: int, high: int) -> None:
        """Add up what the calls of one chunk cost now and what they would."""
        self._compare(statements, "temp.reprice_sum", run_id, low, high)

    def _price(self, statements: Statements, run_id: int, low: int, high: int) -> None:
        """The same, and keep the costs."""
        more = self._compare(statements, "main.reprice_sum", run_id, low, high)
        statements.run(_KEEP, [run_id])
        add_repriced(statements, run_id, more)
        note_progress(statements, run_id, low, high)

    def _compare(
        self, statements: Statements, table: Literal["main.reprice_sum", "temp.reprice_sum"], *run: int
    ) -> list[RepricedGroup]:
        """Work out the costs of one chunk. run: the number of the run, and the calls as in `compared`."""
        run_id, low, high = run
        self._pricer.price(statements, low, high)
        groups = compared(statements, self._pricer, run_id, low, high)
        add_to_sums(statements, table, run_id, groups)
        return [
            (of.day, of.provider, of.model, of.calls, of.after - of.at_call, of.unpriced - of.unpriced_at_call)
            for of in groups
        ]

    def _end(self, statements: Statements, run_id: int, done: int, dry: bool) -> tuple[Beside, str | None]:
        """Do the calls that came since `done`, and finish; what is beside the sums, and what was current."""
        last = _last_call(statements)
        if done < last:
            self._chunk(run_id, done, last, dry)(statements)
        beside = count_beside(statements, self._where, by_session=self._by_session)
        previous = current_version(statements)
        if not dry:
            finish(statements, run_id, beside, self._clock.now_us())
        return beside, previous


def _last_call(statements: Statements) -> int:
    return int(statements.run(_LAST_CALL)[0][0])
