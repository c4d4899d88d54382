"""The engine with its store, on a real loop and in real processes: starting, stopping, dying, repricing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from callboard.bus import CancelledError, ConfigurationError, StoreError
from callboard.engine import Engine, Limits
from tests.support.engines import registry, running, topics
from tests.support.present import present
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from callboard.tracestore import CallFilter, PriceTable, TraceStore

pytestmark = pytest.mark.anyio

CHECKOUT = Path(__file__).parents[2]

PRICES = """
label: {label}
prices:
  - model: "s:*"
    input: "{input}"
    output: "10"
"""

anyio_backend = runs_on("asyncio")


def prices(folder: Path, label: str, rate: str) -> PriceTable:
    path = folder / f"{label}.yaml"
    path.write_text(PRICES.format(label=label, input=rate))
    return PriceTable.from_yaml(path)


async def test_every_call_becomes_a_row_with_its_cost(tmp_path: Path) -> None:
    """After a flush the trace has the call, its tokens and what it cost under the engine's table."""
    table = prices(tmp_path, "first", "1")
    async with running(Say("Hello"), store=tmp_path / "trace.db", prices=table) as (engine, _):
        message = await engine.session("s:m").send("Hi")
        await engine.flush()
        (row,) = await present(engine.store).calls()
        assert row.status == "completed"
        assert row.cost is not None
        assert row.cost.nano_usd == 10 * 1000 + 5 * 10_000, "10 tokens at 1 USD and 5 at 10 USD a million"
        assert present(message.metadata).cost == row.at_call_time


async def test_repricing_shows_in_the_trace_and_in_live_messages(tmp_path: Path) -> None:
    """After a reprice, rows and session messages have the new cost; objects handed out before are snapshots."""
    first, second = prices(tmp_path, "first", "1"), prices(tmp_path, "second", "3")
    async with running(Say("Hello"), store=tmp_path / "trace.db", prices=first) as (engine, events):
        session = engine.session("s:m")
        before = await session.send("Hi")
        dry = await engine.reprice(second, dry_run=True)
        assert dry.sum_after_nano_usd - dry.sum_before_nano_usd == 10 * 2000
        assert session.messages[-1] == before, "a dry run changes nothing"
        report = await engine.reprice(second)
        assert report.sum_after_nano_usd == 10 * 3000 + 5 * 10_000
        assert present(before.metadata).cost.nano_usd == 60_000
        after = session.messages[-1].metadata
        assert after is not None
        assert after.cost.nano_usd == 80_000
        assert after.pricing_version == second.version
        assert engine.prices is first, "a repricing of the past is none of new calls"
        assert topics(events.take(), "pricing.repriced") == ["pricing.repriced"]
        (row,) = await present(engine.store).calls(CallFilter(session_id=session.id))
        assert (present(row.at_call_time).nano_usd, present(row.cost).nano_usd) == (60_000, 80_000)


async def test_an_engine_is_entered_in_one_task_and_left_in_another(tmp_path: Path) -> None:
    """Start and stop may come from different tasks of one loop; stopping is idempotent and says it was clean."""
    engine = Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db")
    await asyncio.create_task(engine.__aenter__())
    assert (await engine.session("s:m").send("Hi")).text == "Hello"
    report = await asyncio.create_task(engine.aclose())
    assert report is not None
    assert report.clean
    assert await engine.aclose() == report
    with pytest.raises(Exception, match="closed"):
        await engine.session("s:m").send("too late")


async def test_the_first_turn_starts_the_engine(tmp_path: Path) -> None:
    """Without `async with`, an engine starts when it is first needed."""
    engine = Engine(models=registry(Say("Hello")), store=tmp_path / "trace.db")
    assert (await engine.session("s:m").send("Hi")).text == "Hello"
    await engine.aclose()


async def test_a_call_under_way_ends_in_a_row_when_the_engine_stops(tmp_path: Path) -> None:
    """Stopping fails what runs, and the trace knows it: no started call is left without an end."""
    engine = Engine(models=registry(Say("never", pause=asyncio.Event().wait)), store=tmp_path / "trace.db")
    await engine.start()
    async with engine.bus.subscribe("llm.call_started") as starts:
        sending = asyncio.create_task(engine.session("s:m").send("Hi"))
        await anext(starts)
    await engine.aclose()
    with pytest.raises(CancelledError, match="the engine was closed while this call ran"):
        await sending
    async with TraceStore.open_readonly(tmp_path / "trace.db") as store:
        assert [row.status for row in await store.calls()] == ["cancelled"]


async def test_without_retention_nothing_of_a_stream_outlives_its_turn() -> None:
    """With retention 0 a stream that is over can't be attached to; by default it can."""
    for limits, kept in ((Limits(), True), (Limits(retain_streams_seconds=0, retain_streams_bytes=0), False)):
        async with Engine(models=registry(Say("Hello")), trace=False, limits=limits) as engine:
            async with engine.session("s:m").stream("Hi") as turn:
                assert "".join([text async for text in turn.text_stream]) == "Hello"
            assert (turn.stream_id in engine.streams) is kept
            assert (engine.streams.statistics().closed_bytes > 0) is kept


async def test_a_trace_that_is_no_database_stops_the_start_and_is_not_touched(tmp_path: Path) -> None:
    """A foreign file is refused with its name, and its bytes stay as they were; a good path works afterwards."""
    path = tmp_path / "trace.db"
    path.write_text("my shopping list")
    engine = Engine(models=registry(Say("x")), store=path)
    with pytest.raises(StoreError, match=r"trace\.db"):
        await engine.start()
    assert path.read_text() == "my shopping list"


def test_content_that_could_not_be_kept_is_refused_rather_than_ignored() -> None:
    """Who asks for content to be kept learns at once that it would not be."""
    with pytest.raises(ConfigurationError, match="capture_content"):
        Engine(models=registry(), trace=False, capture_content=True)


async def test_an_engine_that_was_closed_leaves_its_run_ended(tmp_path: Path) -> None:
    """The next one finds nothing lost, and no file of the first one lies beside the trace."""
    path = tmp_path / "trace.db"
    async with running(Say("x"), store=path) as (engine, _):
        await engine.session("s:m").send("hello")
        assert [file.name for file in tmp_path.glob("*.run-*")] == [f"trace.db.run-{engine.bus.run_id}"]  # noqa: ASYNC240
    assert list(tmp_path.glob("*.run-*")) == []  # noqa: ASYNC240
    async with TraceStore(path) as store:
        assert await store.close_lost_runs() == []
        assert [row.status for row in await store.calls()] == ["completed"]
