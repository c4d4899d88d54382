"""Notices that somebody else has changed the costs in the trace file: another process, or the host's own store.

A turn that begins asks for a look, at most once a second. The look is one small read beside the turn. No call
waits for it, also if the store is slow.
"""

from __future__ import annotations

import msgspec

from callboard.bus import PricingRepriced, StoreError
from callboard.bus.clock import Clock
from callboard.bus.log import Log
from callboard.tracestore import CurrentPrices, Store

LOOK_EVERY_NS = 1_000_000_000

_log = Log("engine.price_watch")


class PriceWatch:
    """Knows the costs that were current at the last look."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: CurrentPrices | None = None
        self._looked_ns: int | None = None
        self.held = 0
        """The number of our own repricings under way, which publish their events themselves."""

    def due(self) -> bool:
        """Whether it is time for another look. If so, the look counts as begun."""
        now = self._clock.monotonic_ns()
        if self.held or (self._looked_ns is not None and now - self._looked_ns < LOOK_EVERY_NS):
            return False
        self._looked_ns = now
        return True

    async def mark(self) -> None:
        """Take the present costs for known."""
        self._known = await self._store.current_prices()

    async def look(self) -> CurrentPrices | None:
        """The present costs if they have changed since the last look. None if not, or if nobody looked before."""
        try:
            found = await self._store.current_prices()
        except StoreError as error:
            _log.warning("not_looked", error=str(error))
            return None
        if self.held:
            return None
        known, self._known = self._known, found
        if known is None or known == found:
            return None
        # Going back is no run of its own, so it has no sums.
        return found if known.run_id != found.run_id else msgspec.structs.replace(found, run=None)


def announcement(found: CurrentPrices) -> PricingRepriced:
    """The event of a change, with the sums of the run that brought it, if there was one."""
    run = found.run
    return PricingRepriced(
        pricing_version=found.versions[0] if found.versions else "",
        calls=(run and run.calls) or 0,
        unpriced=(run and run.unpriced) or 0,
        estimated=(run and run.estimated) or 0,
        unknown=(run and run.unknown) or 0,
        sum_before_nano_usd=(run and run.sum_before_nano_usd) or 0,
        sum_after_nano_usd=(run and run.sum_after_nano_usd) or 0,
    )
