"""Acts of repricing: undone one at a time, limited by a filter, and reported in parts that add up."""

from __future__ import annotations

import pytest

from callboard.bus import StoreError
from callboard.tracestore import CallFilter, PriceRow, PriceTable, Store

from ..trace_making import Maker
from .test_repricing import FIRST, SECOND, fill

pytestmark = pytest.mark.anyio


async def test_undo_goes_back_one_repricing_at_a_time(store: Store, make: Maker) -> None:
    """Through repricings of all and of some calls, to the costs at call time."""
    await fill(store, make)
    seen = [await store.calls()]
    third = PriceTable.from_rows([PriceRow(model="*:*", input=7_000, output=7_000)])
    for table, where in ((FIRST, None), (SECOND, CallFilter(session_id="s1")), (third, None)):
        await store.reprice(table, where=where)
        seen.append(await store.calls())
    while len(seen) > 1:
        assert await store.calls() == seen.pop()
        await store.undo_reprice()
    assert await store.calls() == seen.pop()
    assert {run.state for run in await store.reprice_runs()} == {"undone"}
    with pytest.raises(StoreError, match="no repricing to undo"):
        await store.undo_reprice()


async def test_undo_is_refused_when_other_costs_were_chosen_since(store: Store, make: Maker) -> None:
    """It would lead somewhere else than back."""
    await fill(store, make)
    await store.reprice(FIRST)
    await store.reprice(SECOND)
    await store.use_prices(None)
    with pytest.raises(StoreError, match="chosen after repricing 2"):
        await store.undo_reprice()


async def test_undo_takes_back_a_run_that_went_further_with_the_version_in_force(
    store: Store, make: Maker
) -> None:
    """What the later run added goes, and what the earlier one had priced under the same version stays."""
    await fill(store, make)
    await store.reprice(SECOND, where=CallFilter(session_id="s1"))
    before = await store.calls()
    await store.reprice(SECOND)
    assert await store.calls() != before
    await store.undo_reprice()
    assert await store.calls() == before


async def test_a_filtered_repricing_changes_no_call_outside_its_filter(store: Store, make: Maker) -> None:
    """Not even where an earlier run of the same version priced all calls, and was undone or covered since."""
    await fill(store, make)
    third = PriceTable.from_rows([PriceRow(model="*:*", input=7_000, output=7_000)])
    for before in (((SECOND, None), "undo"), ((SECOND, None), (third, None))):
        for act in before:
            if isinstance(act, str):
                await store.undo_reprice()
            else:
                await store.reprice(act[0], where=act[1])
        outside = await store.calls(CallFilter(session_id="s3"))
        ((old,),) = [[row.cost_nano_usd for row in await store.costs(by=())]]
        report = await store.reprice(SECOND, where=CallFilter(session_id="s1"))
        assert report.calls == 1
        assert await store.calls(CallFilter(session_id="s3")) == outside
        ((new,),) = [[row.cost_nano_usd for row in await store.costs(by=())]]
        assert new - old == report.sum_after_nano_usd - report.sum_before_nano_usd
        await store.use_prices(None)


async def test_the_report_adds_up_by_model_day_and_session(store: Store, make: Maker) -> None:
    """The three comparisons have the same sums, tried or done."""
    await fill(store, make, 6)
    for dry in (True, False):
        report = await store.reprice(SECOND, dry_run=dry, by_session=True)
        for rows in (report.models, report.days, report.sessions):
            assert sum(row.calls for row in rows) == report.calls == 6
            assert sum(row.unpriced for row in rows) == report.unpriced == 3
            assert sum(row.before_nano_usd for row in rows) == report.sum_before_nano_usd
            assert sum(row.after_nano_usd for row in rows) == report.sum_after_nano_usd
        assert [row.session_id for row in report.sessions[:3]] == ["s1", "s3", "s5"]
