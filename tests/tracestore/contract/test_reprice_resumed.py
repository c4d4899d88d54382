"""Repricings that are interrupted, resumed, undone and repeated while the store changes under them."""

from __future__ import annotations

import pytest

from callboard.bus import Cost, CostSource, TokenUsage
from callboard.tracestore import Store
from callboard.tracestore.sql import repricing

from ..changing import CHUNK, MODELS, TABLES, Interrupted, do, stop
from ..trace_making import DAY_US, T0, Maker

pytestmark = pytest.mark.anyio


async def test_a_call_that_goes_before_its_turn_is_in_no_sum(
    store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruned while a repricing over another was interrupted: what it cost before is not told, nor its model."""
    monkeypatch.setattr(repricing, "CHUNK", CHUNK)
    usage, cost = TokenUsage(100, 10), Cost(77, CostSource.COMPUTED, "0123456789ab")
    await do(store, make, [(number, "both", T0, usage, cost) for number in (0, 3, 6)])
    await do(store, make, [(number, "both", T0 - DAY_US, usage, cost) for number in (12, 15, 1)])
    await do(store, make, [(9, "both", T0, usage, cost)])
    await store.reprice(TABLES[0])
    with pytest.raises(Interrupted):
        await store.reprice(TABLES[1], progress=stop)
    assert (await store.prune(before=T0)).attempts == 3
    report = await store.resume_reprice()
    assert [(of.model, of.calls) for of in report.models] == [(MODELS[0], 4)]
    assert len(report.days) == 1
    assert (report.sum_before_nano_usd, report.unpriced_before) == (4 * 120_150, 0)
