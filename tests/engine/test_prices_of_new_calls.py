"""The table of new calls changes by an act that says so, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard import CallFilter, Engine, PriceRow, PriceTable, StoreError, TraceStore
from callboard.engine import pricing as price_watch
from tests.support.engines import running, topics
from tests.support.present import present
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

CHEAP = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=10_000_000)], "cheap")
DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=90_000_000)], "dear")
OF_OTHERS = PriceTable.from_rows([PriceRow(model="other:*", input=1)], "of others")
PAID = {"cheap": 10 * 1000 + 5 * 10_000, "dear": 9 * (10 * 1000 + 5 * 10_000)}

# A real loop: the store works in threads, and virtual time would run ahead of them
anyio_backend = runs_on("asyncio")


async def price_of_a_new_call(engine: Engine) -> int | None:
    message = await engine.session("s:m").send("Hi")
    return message.metadata.cost.nano_usd if message.metadata is not None else None


async def test_neither_repricing_nor_undo_changes_what_new_calls_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this engine or of another process, of all calls or of none, there and back."""
    monkeypatch.setattr(price_watch, "LOOK_EVERY_NS", 0)
    path = tmp_path / "trace.db"
    async with running(*[Say("Hello")] * 8, store=path, prices=CHEAP) as (engine, _):
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        await engine.reprice(DEAR)
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        await engine.undo_reprice()
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        await engine.flush()
        async with TraceStore(path) as other:
            await other.reprice(OF_OTHERS, where=CallFilter(provider="nobody"))
            assert await price_of_a_new_call(engine) == PAID["cheap"]
            await other.reprice(DEAR)
            assert await price_of_a_new_call(engine) == PAID["cheap"]
            await other.undo_reprice()
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        assert engine.prices is CHEAP


async def test_use_prices_lays_a_table_over_the_published_ones_or_takes_it_alone(tmp_path: Path) -> None:
    """Of a table, a file, or a version that the trace knows; earlier calls keep their cost, and it is told."""
    async with running(*[Say("Hello")] * 8, store=tmp_path / "t.db", prices=CHEAP) as (engine, events):
        await price_of_a_new_call(engine)
        events.take()
        assert (await engine.use_prices(DEAR)).find("openai:gpt-5", 0) is not None
        assert topics(events.take(), "pricing.table_loaded") == ["pricing.table_loaded"]
        assert await price_of_a_new_call(engine) == PAID["dear"]
        assert await engine.use_prices(DEAR, alone=True) == DEAR
        (tmp_path / "own.yaml").write_text("prices: [{model: 's:*', input: 1, output: 10}]")
        await engine.use_prices(tmp_path / "own.yaml")
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        with pytest.raises(StoreError, match="knows no price version 'nope'"):
            await engine.use_prices("nope")
        await engine.reprice(DEAR)
        await engine.use_prices(DEAR.version)
        assert await price_of_a_new_call(engine) == PAID["dear"]


async def test_a_repricing_for_new_calls_too_is_undone_for_them_too(tmp_path: Path) -> None:
    """Unless other prices were chosen since; a dry run takes nothing over."""
    async with running(*[Say("Hello")] * 8, store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        await price_of_a_new_call(engine)
        await engine.reprice(DEAR, dry_run=True, for_new_calls=True)
        assert engine.prices is CHEAP
        await engine.reprice(DEAR, for_new_calls=True)
        assert await price_of_a_new_call(engine) == PAID["dear"]
        assert engine.prices.find("openai:gpt-5", 0) is not None, "over the published prices"
        await engine.undo_reprice()
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        await engine.reprice(DEAR, for_new_calls=True)
        await engine.use_prices(OF_OTHERS, alone=True)
        await engine.undo_reprice()
        assert engine.prices == OF_OTHERS


async def test_a_call_under_way_gets_the_cost_of_a_repricing_with_its_end(tmp_path: Path) -> None:
    """Whichever process repriced; the report says how many have yet to end, and an undone one is not followed."""
    path, go_on = tmp_path / "trace.db", anyio.Event()
    replies = [Say("one"), Say("two", pause=go_on.wait), Say("three")]
    async with running(*replies, store=path, prices=CHEAP) as (engine, _):
        await price_of_a_new_call(engine)
        async with anyio.create_task_group() as group, engine.bus.subscribe("llm.call_started") as started:
            group.start_soon(price_of_a_new_call, engine)
            await anext(started)
            await engine.flush()
            async with TraceStore(path) as other:
                report = await other.reprice(DEAR)
                assert (report.calls, report.in_flight) == (1, 1)
            go_on.set()
        await engine.flush()
        await price_of_a_new_call(engine)
        await engine.flush()
        rows = sorted(await present(engine.store).calls(), key=lambda row: row.call_id)
        assert [row.cost and row.cost.nano_usd for row in rows] == [PAID["dear"], PAID["dear"], PAID["cheap"]]
        assert [row.at_call_time and row.at_call_time.nano_usd for row in rows] == [PAID["cheap"]] * 3
