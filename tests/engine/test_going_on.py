"""A reply that broke off and went on is one message, and two attempts in the trace, on the bill and in budgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, NetworkError, RetryPolicy
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.bus.streams.events import MessageStart, TextDelta
from callboard.engine import Budget, Engine, ModelRegistry
from tests.support.continuing_server import TextProvider
from tests.support.virtual_time import backend
from callboard.tracestore import CallFilter, PriceRow, PriceTable

pytestmark = pytest.mark.anyio

TEXT = "The tide comes in,\n\n  and the tide goes out;  twice a day.\n"
MODEL = "anthropic:claude-sonnet-4-5"
SENT_RATE, SAID_RATE = 333_337, 1_777_783
PRICES = PriceTable([PriceRow(model=MODEL, input=SENT_RATE, output=SAID_RATE)])


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


def engine_with(provider: TextProvider, store: Path | None = None, budgets: Sequence[Budget] = ()) -> Engine:
    retry = RetryPolicy(base_delay=0.001, jitter=False)
    adapter = AnthropicAdapter(AdapterConfig(api_key="k", retry=retry, max_retries=5), transport=provider)
    return Engine(
        models=ModelRegistry({}, {}),
        providers={"anthropic": adapter},
        store=store,
        trace=store is not None,
        capture_content=store is not None,
        prices=PRICES,
        budgets=budgets,
    )


async def test_two_attempts_and_one_message(tmp_path: Path) -> None:
    """Each attempt has a row with its own usage and cost; the session has one reply, and the turn costs both."""
    provider = TextProvider(TEXT, [20, 9])
    async with engine_with(provider, tmp_path / "t.db") as engine:
        session = await engine.open_session("s", model=MODEL)
        async with session.stream("Hm?", continue_broken=True) as turn:
            events = [event async for event in turn]
        reply = await turn.message()
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == TEXT == reply.text
        assert sum(isinstance(event, MessageStart) for event in events) == 1
        assert len(session.messages) == 2
        await engine.flush()
        assert engine.store is not None
        rows = sorted(await engine.store.calls(CallFilter(), limit=None), key=lambda row: row.attempt)
        assert [(row.status, row.reason) for row in rows] == [
            ("failed", "first"),
            ("failed", "continued"),
            ("completed", "continued"),
        ]
        costs = []
        for row, (sent, said) in zip(rows, provider.bill, strict=True):
            assert row.usage is not None
            assert row.cost is not None
            assert row.usage.input_tokens == sent
            if row.status == "completed":
                assert row.usage.output_tokens == said
            exact = row.usage.input_tokens * SENT_RATE + row.usage.output_tokens * SAID_RATE
            assert row.cost.nano_usd == (exact + 500) // 1000
            costs.append(row.cost.nano_usd)
        assert turn.cost.nano_usd == sum(costs)


async def test_the_budget_must_have_room_for_the_rest_as_well() -> None:
    """Without it the break is the error, the text that came stands, and nothing is counted twice."""
    provider = TextProvider(TEXT, [20])
    one = (2000 * SAID_RATE // 1000 + 23_000) / 1e9  # room for one attempt that uses all it may, and for no more
    async with engine_with(provider, budgets=[Budget(max_cost_usd=one)]) as engine:
        stream = engine.stream(MODEL, "Hm?", continue_broken=True, max_output_tokens=2000)
        with pytest.raises(NetworkError):
            async for _event in stream:
                pass
        assert len(provider.bodies) == 1
        (account,) = await engine.budgets()
        assert account.spent.money == stream.cost.nano_usd
        assert account.held.money == 0
        assert 0 < account.spent.money < 200_000
