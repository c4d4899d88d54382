"""What a provider says that a call cost is its cost, on every surface; what the table gives stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters import ServerError, TokenUsage
from callboard.bus import Cost, CostSource, LlmCallCompleted, LlmCallFailed
from tests.support.engines import running, said
from tests.support.present import present
from tests.support.scripted import Say
from callboard.tracestore import PriceRow, PriceTable

pytestmark = pytest.mark.anyio

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
STATED = TokenUsage(10, 5, reported_cost_nano_usd=7)
COST = Cost(7, CostSource.PROVIDER, TABLE.version, None, 10 * 1000 + 5 * 2000)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_stated_cost_is_the_cost_of_the_call(tmp_path: Path, streamed: bool) -> None:
    """In the event, the message, the store and its sums, whether the reply was streamed or not."""
    async with running(Say("one", usage=STATED), store=tmp_path / "t.db", prices=TABLE) as (engine, events):
        session = engine.session("s:m")
        message = await said(session, "Hi", streamed=streamed)
        await engine.flush()
        assert engine.store is not None
        (row,), (total,) = await engine.store.calls(), await engine.store.costs(by=())
        (ended,) = [e.data for e in events.take() if isinstance(e.data, LlmCallCompleted)]
    assert ended.cost == present(message.metadata).cost == row.cost == row.at_call_time == COST
    assert (total.cost_nano_usd, total.at_call_time_nano_usd) == (7, 7)


async def test_a_call_that_failed_costs_what_the_provider_stated(tmp_path: Path) -> None:
    """A gateway bills what it passed on before it broke; that figure counts as well."""
    failure = ServerError("broke off")
    failure.usage = STATED
    async with running(Say(fails=failure), store=tmp_path / "t.db", prices=TABLE) as (engine, events):
        with pytest.raises(ServerError):
            await engine.session("s:m").send("Hi")
        await engine.flush()
        (row,) = await present(engine.store).calls()
        (ended,) = [e.data for e in events.take() if isinstance(e.data, LlmCallFailed)]
    assert ended.cost == row.cost == COST


async def test_a_stated_cost_of_nothing_is_a_cost(tmp_path: Path) -> None:
    """Zero is a figure like any other, and not a missing one."""
    free = TokenUsage(10, 5, reported_cost_nano_usd=0)
    async with running(Say("one", usage=free), store=tmp_path / "t.db", prices=TABLE) as (engine, _):
        message = await engine.session("s:m").send("Hi")
    assert message.metadata is not None
    assert message.metadata.cost == Cost(0, CostSource.PROVIDER, TABLE.version, None, COST.computed_nano_usd)
