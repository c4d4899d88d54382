"""Counts that no model ever had, as a broken server says them: every sum has an answer, on both stores."""

from __future__ import annotations

import pytest

from callboard.bus.values.usage import Cost, CostSource, TokenUsage
from callboard.tracestore import Store
from callboard.tracestore.rows import SpendingQuery

from ..trace_making import Maker

pytestmark = pytest.mark.anyio

MOST = (1 << 63) - 1


ABOUT = pytest.approx(3 * MOST, rel=1e-12)


async def store_absurd(store: Store, make: Maker, cost: int = 1234) -> None:
    for number in range(3):
        usage = TokenUsage(input_tokens=MOST - number, output_tokens=MOST, cached_input_tokens=MOST)
        ids = {"session_id": "s", "tags": {"team": "a"}}
        request = f"req_{number}"
        end = make.completed(request, usage=usage, cost=Cost(cost, CostSource.COMPUTED, "000000000000"), **ids)
        await store.write([make.started(request, **ids), end])


@pytest.mark.parametrize("by", [(), ("model",), ("session_id",), ("tag:team",), ("day",), ("provider", "status")])
async def test_costs_have_an_answer(store: Store, make: Maker, by: tuple[str, ...]) -> None:
    await store_absurd(store, make)
    (row,) = await store.costs(by=by)
    assert (row.calls, row.cost_nano_usd) == (3, 3 * 1234)
    assert (row.output_tokens, row.cached_input_tokens) == (ABOUT, ABOUT)
    assert row.total_input_tokens == pytest.approx(6 * MOST, rel=1e-12)
    assert isinstance(row.output_tokens, int)


async def test_sessions_and_statistics_have_an_answer(store: Store, make: Maker) -> None:
    await store_absurd(store, make)
    (session,) = await store.sessions()
    (statistics,) = await store.statistics()
    assert (session.output_tokens, statistics.output_tokens) == (ABOUT, ABOUT)
    assert isinstance(session.output_tokens, int)


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize("by", [None, "session_id", "model", "tag:team"])
@pytest.mark.parametrize("cost", [1234, MOST])
async def test_spending_has_an_answer(store: Store, make: Maker, by: str | None, current: bool, cost: int) -> None:
    await store_absurd(store, make, cost)
    ((row,),) = (await store.spending([SpendingQuery(by=by, current=current)], "run_other")).rows
    assert (row.calls, row.nano_usd) == (3, pytest.approx(3 * cost, rel=1e-12))
    assert row.tokens == pytest.approx(9 * MOST, rel=1e-12)
