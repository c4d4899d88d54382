"""The sums that budgets count."""

from __future__ import annotations

import pytest

from tracestore import PriceRow, PriceTable, TraceStore
from tracestore.spending import SpendingQuery, SpendingRow

from .trace_making import Maker

pytestmark = pytest.mark.anyio

OTHER_RUN = "run_other"


async def rows(store: TraceStore, **asked: object) -> list[SpendingRow]:
    query = SpendingQuery(**asked)  # type: ignore[arg-type]
    return (await store.spending([query], OTHER_RUN)).rows[0]


async def test_repriced_calls_count_at_the_cost_that_is_asked_for(store: TraceStore, make: Maker) -> None:
    """At the price of their time, or at the current one."""
    await store.write([make.started(), make.completed()])
    await store.reprice(PriceTable([PriceRow(model="openai:*", input=3_000_000, output=1_000_000)], "second"))
    assert (await rows(store))[0].nano_usd == 1234
    (now,) = await store.calls()
    assert (await rows(store, current=True))[0].nano_usd == now.cost.nano_usd != 1234
