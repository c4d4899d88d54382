"""A repricing by somebody else reaches live messages."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.engine import pricing as price_watch
from callboard.tracestore import PriceRow, PriceTable, TraceStore
from tests.support.engines import running
from tests.support.present import present
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio

DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=9_000_000)], "dear")


async def test_a_repricing_by_another_store_is_noticed_at_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live messages show the new cost and the event is published, for the way there and for the way back."""
    monkeypatch.setattr(price_watch, "LOOK_EVERY_NS", 0)
    path = tmp_path / "trace.db"
    async with running(*[Say("Hello")] * 4, store=path) as (engine, _):
        session = engine.session("s:m")
        with engine.bus.subscribe("pricing.repriced") as events:
            await session.send("one")
            await session.send("two")
            await engine.flush()
            async with TraceStore(path) as other:
                await other.reprice(DEAR)
            await session.send("three")
            with anyio.fail_after(20):
                envelope = await anext(events)
            assert (envelope.data.pricing_version, envelope.data.calls) == (DEAR.version, 2)
            assert engine.prices != DEAR, "new calls have the prices of this engine"
            first = session.messages[1].metadata
            assert present(first).pricing_version == DEAR.version
            await engine.undo_reprice()
            with anyio.fail_after(20):
                envelope = await anext(events)
            assert (envelope.data.pricing_version, envelope.data.calls) == ("", 0)
            first = session.messages[1].metadata
            assert present(first).pricing_version != DEAR.version


async def test_looks_are_a_second_apart(tmp_path: Path) -> None:
    """However many turns begin."""

    class Still:
        now = 0

        def monotonic_ns(self) -> int:
            return self.now

    clock = Still()
    watch = price_watch.PriceWatch(TraceStore(tmp_path / "trace.db"), clock)  # type: ignore[arg-type]
    assert [watch.due() for _ in range(3)] == [True, False, False]
    clock.now = 1_000_000_000
    assert [watch.due() for _ in range(2)] == [True, False]
