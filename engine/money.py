"""The price table in force, and repricing: store first, then live sessions, then the event that tells it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bus import CallboardError, PricingRepriced
from tracestore import CallFilter, PriceTable, RepriceReport, RepriceRun, TraceStore
from tracestore.price_home import price_table

from .config import home_folder
from .price_watch import PriceWatch, announcement
from .resuming import costs_of
from .session_manager import ApplyCosts

if TYPE_CHECKING:
    from .engine import Engine
    from .hosting import Hosted


def load_prices(prices: PriceTable | Path | None) -> PriceTable:
    """The table that an engine begins with, as `Engine` describes it. Raises ConfigurationError."""
    return prices if isinstance(prices, PriceTable) else price_table(home_folder(), prices)


class Money:
    """prices: the table in force. An engine without a trace has prices, and nothing to reprice."""

    def __init__(self, engine: Engine, prices: PriceTable) -> None:
        self.prices = prices
        self._engine = engine
        self._watch = None if engine.store is None else PriceWatch(engine.store, engine.clock)

    async def reprice(
        self, version: str | PriceTable, *, where: CallFilter | None, dry_run: bool, as_model: str | None
    ) -> RepriceReport:
        """See `Engine.reprice`."""
        hosted, store, watch = await self._traced("reprice")
        await hosted.flush()
        kept = not dry_run and as_model is None
        watch.held += 1
        try:
            report = await store.reprice(version, where=where, dry_run=dry_run, as_model=as_model)
            if kept:
                await watch.mark()
        finally:
            watch.held -= 1
        if kept:
            self.prices = version if isinstance(version, PriceTable) else await _stored(store, version)
            await self._show_costs(hosted, store)
            self._engine.bus.publish(
                PricingRepriced(
                    pricing_version=report.version,
                    calls=report.calls,
                    unpriced=report.unpriced,
                    estimated=report.estimated,
                    unknown=report.unknown,
                    sum_before_nano_usd=report.sum_before_nano_usd,
                    sum_after_nano_usd=report.sum_after_nano_usd,
                )
            )
        return report

    async def undo_reprice(self) -> RepriceRun:
        """See `Engine.undo_reprice`."""
        hosted, store, watch = await self._traced("undo")
        await hosted.flush()
        await watch.mark()
        run = await store.undo_reprice()
        await self._look()
        return run

    def notice(self) -> None:
        """Have a look, beside the turn that begins, whether somebody else repriced. At most one a second."""
        hosted = self._engine.hosted
        if self._watch is not None and hosted is not None and self._watch.due():
            hosted.manager.spawn(self._look, name="look at prices")

    async def _traced(self, what: str) -> tuple[Hosted, TraceStore, PriceWatch]:
        hosted = await self._engine.start()
        if self._engine.store is None or self._watch is None:
            raise CallboardError(f"this engine keeps no trace (trace=False), so there is nothing to {what}")
        return hosted, self._engine.store, self._watch

    async def _look(self) -> None:
        store, hosted = self._engine.store, self._engine.hosted
        found = await self._watch.look() if self._watch is not None else None
        if found is None or hosted is None or store is None:
            return
        if found.versions:
            self.prices = await _stored(store, found.versions[0])
        await self._show_costs(hosted, store)
        self._engine.bus.publish(announcement(found))

    async def _show_costs(self, hosted: Hosted, store: TraceStore) -> None:
        for session_id in list(self._engine.open_sessions.states):
            await hosted.manager.ask(ApplyCosts(await costs_of(store, session_id)))


async def _stored(store: TraceStore, version: str) -> PriceTable:
    return next(table for table in await store.price_tables() if table.version == version)
