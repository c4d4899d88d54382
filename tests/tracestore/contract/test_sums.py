"""Sums of calls that are kept, and sums of calls that are not in them yet."""

from __future__ import annotations

import pytest

from callboard.bus import Cost, CostSource, TokenUsage
from callboard.tracestore import CallFilter, PriceRow, PriceTable
from callboard.tracestore.sql.store import SqlStore
from callboard.tracestore.sql.sums import not_summed_up, sum_up

from ..trace_making import DAY_US, T0, Maker

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="openai:*", input=1_000_000, output=2_000_000)], label="later")
GROUPINGS = ((), ("model",), ("provider",), ("day",), ("day", "model", "provider"))


async def test_counts_beyond_all_measure_are_summed_nonetheless(store: SqlStore, make: Maker) -> None:
    """What a provider counts wrongly makes a sum inexact; it refuses neither an event nor an answer."""
    absurd = TokenUsage(input_tokens=2**62, output_tokens=2**62, cached_input_tokens=2**62)
    for number in range(4):
        await store.write([make.started(f"r{number}"), make.completed(f"r{number}", usage=absurd)])
        (row,) = await store.costs()
        assert row.output_tokens == pytest.approx((number + 1) * 2**62)
        await store._database.write(sum_up)
    (row,) = await store.costs()
    assert (row.calls, row.cost_nano_usd) == (4, 4 * 1234)
    assert row.output_tokens == pytest.approx(2**64)


async def test_sums_follow_calls_that_end_and_go(store: SqlStore) -> None:
    """Calls that were summed while they ran, were repriced before they ended, and were pruned."""
    old, new = Maker("run_old"), Maker("run_new")

    async def in_step() -> None:
        """Sums that are kept say what the calls say one by one: a filter on tags makes a store add these up."""
        await store._database.write(sum_up)
        assert await store._database.look(not_summed_up) == 0
        for by in GROUPINGS:
            kept = await store.costs(by=by)
            assert kept == await store.costs(CallFilter(tags={"team": "a"}), by)

    for number in range(6):
        maker = old if number < 3 else new
        at = T0 + number * DAY_US
        ids = {"tags": {"team": "a"}, "ts_us": at, "session_id": "s"}
        await store.write([maker.started(f"r{number}", "openai:gpt-5" if number % 2 else "b:x", **ids)])
        await in_step()
        if number == 3:
            await store.reprice(TABLE)
            await in_step()
        cost = Cost(number, CostSource.COMPUTED, "0123456789ab")
        model = "openai:gpt-5" if number % 2 else "b:x"
        ids["ts_us"] = at + 900_000
        await store.write([maker.completed(f"r{number}", model, cost=cost, **ids)])
        await in_step()
    await store.reprice(TABLE, where=CallFilter(provider="b"))
    await store.prune(before=T0 + 4 * DAY_US)
    await in_step()
    assert {row.request_id for row in await store.calls()} == {"r4", "r5"}
    (total,) = await store.costs(by=())
    assert total.calls == 2
