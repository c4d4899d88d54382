"""The price table of new calls, and the repricing of past calls.

New calls use the engine's own table, which only `use_prices`, or `reprice` with `for_new_calls`, changes. A
repricing changes past costs: first in the store, then in open sessions. Then its event is published. If another
process reprices the same file, new calls here are unaffected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from callboard.bus import Bus, CallboardError, PricingProgress, PricingRepriced, PricingTableLoaded, StoreError
from callboard.bus.clock import Clock
from callboard.bus.log import Log
from callboard.tracestore import CallFilter, CurrentPrices, PriceTable, RepriceReport, RepriceRun, Store
from callboard.tracestore.home import home_folder, price_table, published_table
from callboard.tracestore.reports import OnProgress

from .runtime.adapters import Host
from .sessions.open import SessionState, costs_of

# --- Repricing by other processes ---

LOOK_EVERY_NS = 1_000_000_000

_log = Log("engine.price_watch")


class PriceWatch:
    """Detects that another process has changed the current costs."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._current: CurrentPrices | None = None
        self._looked_ns: int | None = None
        self.pause_count = 0
        """The number of this engine's repricings in progress. They publish their own events."""

    def due(self) -> bool:
        """Whether it is time for another check. If it is, the check is recorded as started."""
        now = self._clock.monotonic_ns()
        if self.pause_count or (self._looked_ns is not None and now - self._looked_ns < LOOK_EVERY_NS):
            return False
        self._looked_ns = now
        return True

    async def mark(self) -> None:
        """Record the current costs as known."""
        self._current = await self._store.current_prices()

    async def look(self) -> CurrentPrices | None:
        """The current costs if they have changed since the last check. None if they have not changed, or at the
        first check.
        """
        try:
            found = await self._store.current_prices()
        except StoreError as error:
            _log.warning("not_looked", error=str(error))
            return None
        if self.pause_count:
            return None
        former, self._current = self._current, found
        if former is None or former == found:
            return None
        # An undo has no sums, because it is not a repricing.
        return found if former.run_id != found.run_id else msgspec.structs.replace(found, run=None)


def _repriced(version: str, sums: RepriceReport | RepriceRun | None) -> PricingRepriced:
    """The event of a change, with the sums of the repricing that caused it, if there was one."""
    fields = ("calls", "unpriced", "estimated", "unknown", "sum_before_nano_usd", "sum_after_nano_usd")
    return PricingRepriced(pricing_version=version, **{name: getattr(sums, name, None) or 0 for name in fields})


TELL_EVERY_NS = 200_000_000
"""The minimum time between two progress events of a repricing, in nanoseconds."""


def load_prices(prices: PriceTable | Path | str | None) -> PriceTable:
    """The table that an engine starts with, as `Engine` describes it."""
    return (
        prices
        if isinstance(prices, PriceTable)
        else price_table(home_folder(), None if prices is None else Path(prices))
    )


class Pricing:
    """The prices of an engine's new calls. An engine without a trace has prices, but no calls to reprice."""

    prices: PriceTable
    """The table in force."""

    def __init__(
        self,
        bus: Bus,
        store: Store | None,
        clock: Clock,
        host: Host,
        sessions: Mapping[str, SessionState],
        prices: PriceTable,
        recount: Callable[[], Awaitable[None]],
    ) -> None:
        self.prices = prices
        self._recount = recount  # Counts the spending of budgets again.
        self._bus = bus
        self._clock = clock
        self._store = store
        self._host = host
        self._sessions = sessions
        # For each repricing here that also changed the table: the table before and the table after.
        self._changed: dict[int, tuple[PriceTable, PriceTable]] = {}
        self._watch = None if store is None else PriceWatch(store, clock)

    async def use_prices(self, prices: PriceTable | Path | str, *, alone: bool) -> PriceTable:
        if isinstance(prices, str):
            store, _ = await self._traced("look up prices in")
            table = await store.price_table(prices)
        else:
            table = prices if isinstance(prices, PriceTable) else PriceTable.from_yaml(prices)
        return self._take(table, alone=alone)

    def _take(self, table: PriceTable, *, alone: bool) -> PriceTable:
        self.prices = table if alone else published_table(home_folder()).merged(table)
        self._bus.publish(
            PricingTableLoaded(
                pricing_version=self.prices.version, label=self.prices.label, rows=len(self.prices.rows)
            )
        )
        return self.prices

    async def reprice(
        self,
        version: str | PriceTable,
        *,
        where: CallFilter | None,
        dry_run: bool,
        as_model: str | None,
        for_new_calls: bool,
    ) -> RepriceReport:
        store, watch = await self._traced("reprice")
        await self._host.flush()
        stores_costs = not dry_run and as_model is None
        table = await store.price_table(version) if isinstance(version, str) else version
        watch.pause_count += 1
        try:
            report = await store.reprice(
                table,
                where=where,
                dry_run=dry_run,
                as_model=as_model,
                progress=self._progress_reporter(table.version, dry_run=not stores_costs),
            )
            if stores_costs:
                await watch.mark()
        finally:
            watch.pause_count -= 1
        if stores_costs:
            if for_new_calls and report.run_id is not None:
                before = self.prices
                self._changed[report.run_id] = (before, self._take(table, alone=False))
            await self._show_costs(store)
            self._bus.publish(_repriced(report.version, report))
        return report

    def _progress_reporter(self, version: str, *, dry_run: bool) -> OnProgress:
        """A function that publishes the progress of a repricing, a few times a second."""
        reported_ns: int | None = None

        def tell(done: int, last: int) -> None:
            nonlocal reported_ns
            now = self._clock.monotonic_ns()
            if reported_ns is None or now - reported_ns >= TELL_EVERY_NS:
                reported_ns = now
                self._bus.publish(PricingProgress(pricing_version=version, done=done, last=last, dry_run=dry_run))

        return tell

    async def undo_reprice(self) -> RepriceRun:
        store, watch = await self._traced("undo")
        await self._host.flush()
        await watch.mark()
        run = await store.undo_reprice()
        before, since = self._changed.pop(run.id, (None, None))
        if before is not None and self.prices is since:
            self._take(before, alone=True)
        await self._look()
        return run

    def notice(self) -> None:
        """Check whether another process has repriced, at most once a second, without delaying the turn that
        starts.
        """
        if self._watch is not None and self._host.started and self._watch.due():
            self._host.spawn(self._look, name="read prices")

    async def _traced(self, what: str) -> tuple[Store, PriceWatch]:
        await self._host.start()
        if self._store is None or self._watch is None:
            raise CallboardError(f"this engine keeps no trace (trace=False), so it can't {what}")
        return self._store, self._watch

    async def _look(self) -> None:
        store = self._store
        found = await self._watch.look() if self._watch is not None else None
        if found is None or store is None:
            return
        await self._show_costs(store)
        self._bus.publish(_repriced(found.versions[0] if found.versions else "", found.run))

    async def _show_costs(self, store: Store) -> None:
        for session_id in list(self._sessions):
            await self._host.show_costs(await costs_of(store, session_id))
        await self._recount()
