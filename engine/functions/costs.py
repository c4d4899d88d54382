"""The costs of stored calls, also under other prices. These functions start no engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.clock import read_moment
from callboard.tracestore import CallFilter, CostRow, PriceTable, RepriceReport, Store
from callboard.tracestore.home import home_folder

from ..current_prices import load_prices
from ..runtime.process import engines
from ..stores import StoreAddress, TracePlace, existing_store, is_address, store_to_read
from .sync import run_sync

Moment: TypeAlias = str | datetime | timedelta
"""A point in time: an aware datetime; a time before now, as a timedelta or as ``"90m"``, ``"24h"``, ``"7d"``,
``"2w"``; or a local time such as ``"2026-07-01"`` or ``"2026-07-01T12:00"``.
"""

Trace: TypeAlias = Store | Path | str
"""A trace: an open store, the path of a trace file, or an address such as ``postgresql://USER@HOST/DATABASE``."""

EVERY_CALL = CallFilter()


async def costs(
    *,
    by: str | Sequence[str] = "model",
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    under: str | None = None,
    trace: Trace | None = None,
) -> list[CostRow]:
    """Sum the usage and cost of stored calls by group, the most expensive group first.

    Args:
        by: The dimension or dimensions to group by: day (UTC), provider, model, session_id, turn_id, root, status,
            served_model, error_class, stop_reason, operation, key, or ``tag:KEY``. ``()`` gives one total.
        since: The earliest start of a call.
        until: The time before which a call started.
        where: More conditions that the calls must meet.
        under: The price version for the costs; None uses the current costs.
        trace: The trace; None uses $CALLBOARD_HOME/trace.db, or ~/.callboard/trace.db without that variable.

    Raises:
        StoreError: There is no trace, or it can't be read.
        ConfigurationError: A moment can't be read.
        ValueError: The dimension is unknown.
    """
    chosen = _within(where, since, until)
    dimensions = (by,) if isinstance(by, str) else tuple(by)
    async with _reading(trace) as store:
        return await store.costs(chosen, dimensions, under=under)


def costs_sync(
    *,
    by: str | Sequence[str] = "model",
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    under: str | None = None,
    trace: Trace | None = None,
) -> list[CostRow]:
    """Run `costs` without an event loop. Arguments, result and exceptions are the same as for `costs`."""
    return run_sync(costs(by=by, since=since, until=until, where=where, under=under, trace=trace))


async def reprice(
    prices: PriceTable | Path | str | None = None,
    *,
    discount: Mapping[str, Decimal | int | str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    dry_run: bool = False,
    trace: Trace | None = None,
) -> RepriceReport:
    """Recalculate the costs of stored calls with other prices.

    Unless `dry_run` is set, the result becomes the current cost of each call. The prices of new calls do not
    change. `callboard reprice --undo` reverts the repricing.

    Args:
        prices: A table, or the path of a price file, whose newest table is used. None uses the table of a new
            engine.
        discount: Factors for these prices by ``provider:name``, where ``*`` matches any text: ``{"anthropic:*":
            "0.8"}`` is 20 % off. See `PriceTable.discounted`.
        since: The earliest start of a call.
        until: The time before which a call started.
        where: More conditions that the calls must meet.
        dry_run: Whether to report only.
        trace: The trace, as in `costs`.

    Raises:
        StoreError: There is no trace, or it can't be used.
        ConfigurationError: The prices, a factor or a moment can't be read.
    """
    table = PriceTable.from_yaml(prices) if isinstance(prices, Path | str) else load_prices(prices)
    if discount is not None:
        table = table.discounted(discount)
    chosen = _within(where, since, until)
    if dry_run:
        async with _reading(trace) as store:
            return await store.reprice(table, where=chosen, dry_run=True)
    async with _writing(trace) as store:
        return await store.reprice(table, where=chosen)


def reprice_sync(
    prices: PriceTable | Path | str | None = None,
    *,
    discount: Mapping[str, Decimal | int | str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    dry_run: bool = False,
    trace: Trace | None = None,
) -> RepriceReport:
    """Run `reprice` without an event loop. Arguments, result and exceptions are the same as for `reprice`."""
    work = reprice(prices, discount=discount, since=since, until=until, where=where, dry_run=dry_run, trace=trace)
    return run_sync(work)


def _within(where: CallFilter, since: Moment | None, until: Moment | None) -> CallFilter:
    """The filter, limited to a period."""
    named = {"since": since, "until": until}
    moments = {name: _moment(moment) for name, moment in named.items() if moment is not None}
    return msgspec.structs.replace(where, **moments)


def _moment(moment: Moment) -> datetime:
    if isinstance(moment, timedelta):
        return datetime.now().astimezone() - moment
    if isinstance(moment, datetime):
        return moment
    try:
        return read_moment(moment)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _place(trace: Path | str | None) -> TracePlace:
    if trace is None:
        return home_folder() / "trace.db"
    if isinstance(trace, str) and is_address(trace):
        return StoreAddress(trace)
    return Path(trace)


async def _settled(place: TracePlace) -> TracePlace:
    """The address of a trace, after all ended calls of this process were written to it."""
    if isinstance(place, Path):
        await engines().flush(place)
    return place


@contextlib.asynccontextmanager
async def _reading(trace: Trace | None) -> AsyncIterator[Store]:
    if trace is not None and not isinstance(trace, Path | str):
        yield trace
        return
    async with store_to_read(await _settled(_place(trace))) as store:
        yield store


@contextlib.asynccontextmanager
async def _writing(trace: Trace | None) -> AsyncIterator[Store]:
    if trace is not None and not isinstance(trace, Path | str):
        yield trace
        return
    async with await existing_store(await _settled(_place(trace))) as store:
        yield store
