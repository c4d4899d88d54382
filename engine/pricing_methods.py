"""Prices as methods of the engine: those of new calls, and the repricing of old ones."""

from __future__ import annotations

from pathlib import Path

from callboard.tracestore import CallFilter, PriceTable, RepriceReport, RepriceRun

from .runtime.runtime import Runtime


class PricingMethods:
    """The methods of `Engine` for prices."""

    _runtime: Runtime

    @property
    def prices(self) -> PriceTable:
        """The price table of new calls. A call has the price of the moment in which its attempt starts."""
        return self._runtime.pricing.prices

    async def use_prices(self, prices: PriceTable | Path | str, *, alone: bool = False) -> PriceTable:
        """Price new calls by another table from now on.

        The costs of earlier calls stay as they are; `reprice` changes them. Other engines keep their tables.

        Args:
            prices: A table, a price file, or the version of a table in the trace. Its rows go before those
                of the published prices.
            alone: Whether to use these prices without the published ones; then a model that they don't list is
                unpriced.

        Returns:
            The table in force.

        Raises:
            ConfigurationError: The file is bad.
            StoreError: The version is unknown.
        """
        return await self._runtime.pricing.use_prices(prices, alone=alone)

    async def reprice(
        self,
        version: str | PriceTable,
        *,
        where: CallFilter | None = None,
        dry_run: bool = False,
        as_model: str | None = None,
        for_new_calls: bool = False,
    ) -> RepriceReport:
        """Price the stored calls by another price table. The report has their costs.

        Unless `dry_run` is set, the new costs are kept, and live messages show them afterwards. New calls go on at
        the prices of this engine's own table.

        Args:
            version: A table, or the version of one in the trace.
            where: A filter for the calls to price.
            dry_run: Whether to report only, and to keep the stored costs.
            as_model: A ``provider:name``; the calls are priced as if every call had gone there. Such costs are
                never kept.
            for_new_calls: Whether to price new calls of this engine by that table too, as `use_prices` does.
                `undo_reprice` reverts that, too, if no other table was chosen since.

        Raises:
            StoreError: The version is unknown, or the trace can't be used.
            CallboardError: The engine keeps no trace.
        """
        return await self._runtime.pricing.reprice(
            version, where=where, dry_run=dry_run, as_model=as_model, for_new_calls=for_new_calls
        )

    async def undo_reprice(self) -> RepriceRun:
        """Take the latest repricing back, also in live messages.

        If it was done here with `for_new_calls`, new calls have their former prices again.

        Raises:
            StoreError: There is no repricing to take back.
            CallboardError: The engine keeps no trace.
        """
        return await self._runtime.pricing.undo_reprice()
