"""Recomputing what stored calls cost, set-based and append-only.

1. Every distinct (provider, model, served model) among the calls is resolved once, in Python, into segments:
   boxes of time and size with one price row each (`price_sql`). They go into a temporary table.
2. 10,000 calls at a time are joined with segments; their costs, or the reasons why there are none, go into a
   temporary table and from there into the file, and are added up on the way (`reprice_sums`): the calls
   themselves, whose rows are large, are read once. Between two of these transactions other writers get their turn.
3. Only when all are written does the version become the current one. A repricing that dies half-way has changed
   nothing that anyone sees. The file says how far it came, in the transaction of the costs themselves, so that
   `resume` goes on from there and ends with the same report (`reprice_runs` keeps that book).

Nothing is ever edited: neither events, nor the costs at call time, nor a cost under a version, because the same
version always gives the same cost. The SQL (`tracestore.price_sql`) follows `PriceTable.explain` case by case; a
property test holds the two together to the nano-dollar.

A repricing of *some* calls puts its version in front of the current one: the other calls keep the cost they had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from bus.clock import Clock
from bus.errors import StoreError

from .call_sums import RepricedGroup, add_repriced
from .database import Database, Statements
from .price_sql import Pricer
from .prices import PriceTable
from .queries import CallFilter
from .reprice_counts import with_counts
from .reprice_runs import RepriceReport, RepriceRun, begin, finish, note_progress
from .reprice_sums import (
    TEMPORARY_TABLES,
    Group,
    add_to_sums,
    compared,
    compared_at_call,
    start_from_base,
    sums_of,
)
from .stored_prices import current_version, save_table

_T = TypeVar("_T")

CHUNK = 10_000
"""Calls per transaction, which takes some 30 ms: so few that what is worked on stays in the processor's cache."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Told the number of the last call that is done and of the last there is, between chunks. What it raises stops
the repricing there, as a kill would: it can be resumed."""

_KEEP = """
    INSERT INTO call_cost (price_version, call_id, cost_nano, reason)
    SELECT ?, a.id, a.nano, a.reason FROM temp.reprice_cost AS a
"""
_KEPT = "call_cost AS k WHERE k.price_version = ? AND k.call_id > ? AND k.call_id <= ?"
_KEPT_DIFFERENTLY = f"""
    SELECT 1 FROM temp.reprice_cost AS a, {_KEPT} AND k.call_id = a.id AND k.cost_nano <> a.nano LIMIT 1
"""


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
        previous = await current_version(self._database)
        run_id, last = await self._either(dry, lambda statements: self._begin(statements, dry))
        return await self._go_on(run_id, 0, last, dry, previous)

    async def resume(self, run: RepriceRun) -> RepriceReport:
        """Go on with one that was interrupted, from the first chunk that was not committed."""
        previous = await current_version(self._database)
        return await self._go_on(run.id, run.done, run.last_call or 0, False, previous)

    async def _go_on(self, run_id: int, done: int, last: int, dry: bool, previous: str | None) -> RepriceReport:
        await self._either(dry, self._prepare)
        for low in range(done, last, CHUNK):
            high = min(low + CHUNK, last)

            def work(statements: Statements, low: int = low, high: int = high) -> None:
                (self._measure if dry else self._price)(statements, run_id, low, high)

            await self._either(dry, work)
            if self._progress is not None:
                self._progress(high, last)
        report = RepriceReport(
            version=self._table.version,
            label=self._table.label,
            dry_run=dry,
            as_model=self._as_model,
            previous_version=previous,
            run_id=run_id or None,
            **await sums_of(self._database, "temp.reprice_sum" if dry else "main.reprice_sum", run_id),
        )
        report = await with_counts(self._database, report, self._where, last)
        if not dry:
            await finish(self._database, run_id, report, self._where, self._clock.now_us())
        return report

    async def _either(self, dry: bool, work: Callable[[Statements], _T]) -> _T:
        return await (self._database.look(work) if dry else self._database.write(work))

    def _prepare(self, statements: Statements) -> None:
        self._pricer.prepare(statements)
        for sql in TEMPORARY_TABLES:
            statements.run(sql)

    def _begin(self, statements: Statements, dry: bool) -> tuple[int, int]:
        """The number of the run, 0 if it is only tried, and that of the last call that it is to price."""
        ((last,),) = statements.run("SELECT coalesce(max(id), 0) FROM calls")
        if dry:
            return 0, last
        table, where, now = self._table, self._where, self._clock.now_us()
        save_table(statements, table, now)
        run_id = begin(statements, table.version, where, now, last, by_session=self._by_session)
        if where == CallFilter() and not self._by_session:
            start_from_base(statements, run_id)
        return run_id, last

    def _measure(
        self, statements: Statements, run_id: int, low: int, high: int, kept: str = "temp."
    ) -> list[Group]:
        """Work out the costs of one chunk, and add to the sums what its calls cost now and what they would."""
        self._pricer.price(statements, low, high)
        groups = compared(statements, self._pricer, run_id, low, high)
        add_to_sums(statements, f"{kept}reprice_sum", run_id, groups)
        return groups

    def _price(self, statements: Statements, run_id: int, low: int, high: int) -> None:
        """Keep the costs of one chunk."""
        groups = self._measure(statements, run_id, low, high, "main.")
        version = self._table.version
        kept = (version, low, high)
        if statements.run(f"SELECT 1 FROM {_KEPT} LIMIT 1", kept):
            if statements.run(_KEPT_DIFFERENTLY, kept):
                raise StoreError(
                    f"{self._database.path}: the costs stored under price version {version} for calls {low + 1} "
                    f"to {high} are not what its prices give; nothing was changed"
                )
            statements.run(f"DELETE FROM temp.reprice_cost WHERE id IN (SELECT k.call_id FROM {_KEPT})", kept)
            groups = compared_at_call(statements, self._pricer)
        statements.run(_KEEP, [version])
        more: list[RepricedGroup] = [
            (of.day, of.provider, of.model, of.calls, of.after - of.at_call, of.unpriced - of.unpriced_at_call)
            for of in groups
        ]
        add_repriced(statements, version, more)
        note_progress(statements, run_id, low, high)
