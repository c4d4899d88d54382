"""Prices of new calls, previews of costs, and calls without a price."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard import (
    CallboardError,
    ConfigurationError,
    ModelRegistry,
    PricingProgress,
    PricingRepriced,
    StoreError,
    TraceStore,
)
from callboard.adapters import AdapterConfig
from callboard.bus import (
    CancelledError,
    CostSource,
    LlmCallCompleted,
    LlmCallFailed,
    Lossless,
    SessionTurnCompleted,
    UsageSource,
)
from callboard.engine import Engine, costs, costs_sync, generate_sync
from callboard.engine import current_prices as price_watch
from callboard.tracestore import CallFilter, PriceRow, PriceTable

from ..support.engines import entry, keeping, registry, running, serving, topics
from ..support.present import present
from ..support.reply_models import registry as real_registry
from ..support.reply_server import USAGE_OUT, reply_server
from ..support.scripted import Say, scripted_type
from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

# The price table of new calls changes only through an explicit call.

CHEAP = PriceTable.from_rows([PriceRow(model="s:*", input=1_000_000, output=10_000_000)], "cheap")
DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=90_000_000)], "dear")
OF_OTHERS = PriceTable.from_rows([PriceRow(model="other:*", input=1)], "of others")
PAID = {"cheap": 10 * 1000 + 5 * 10_000, "dear": 9 * (10 * 1000 + 5 * 10_000)}

# A real loop: the store works in threads, and virtual time would run ahead of them.


async def price_of_a_new_call(engine: Engine) -> int | None:
    message = await engine.session("s:m").send("Hi")
    return message.metadata.cost.nano_usd if message.metadata is not None else None


async def test_neither_repricing_nor_undo_changes_the_prices_of_new_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_use_prices_adds_a_table_to_the_published_ones_or_replaces_them(tmp_path: Path) -> None:
    """The table is an object, a file, or a stored version. An event reports the change."""
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
        with pytest.raises(StoreError, match="has no price version 'nope'"):
            await engine.use_prices("nope")
        await engine.reprice(DEAR)
        await engine.use_prices(DEAR.version)
        assert await price_of_a_new_call(engine) == PAID["dear"]


async def test_the_undo_of_a_repricing_for_new_calls_restores_their_prices(tmp_path: Path) -> None:
    """If other prices were set later, these prices stay. A dry run changes nothing."""
    async with running(*[Say("Hello")] * 8, store=tmp_path / "t.db", prices=CHEAP) as (engine, _):
        await price_of_a_new_call(engine)
        await engine.reprice(DEAR, dry_run=True, for_new_calls=True)
        assert engine.prices is CHEAP
        await engine.reprice(DEAR, for_new_calls=True)
        assert await price_of_a_new_call(engine) == PAID["dear"]
        assert engine.prices.find("openai:gpt-5", 0) is not None, "the table is added to the published prices"
        await engine.undo_reprice()
        assert await price_of_a_new_call(engine) == PAID["cheap"]
        await engine.reprice(DEAR, for_new_calls=True)
        await engine.use_prices(OF_OTHERS, alone=True)
        await engine.undo_reprice()
        assert engine.prices == OF_OTHERS


async def test_a_call_in_progress_gets_the_cost_of_a_repricing_at_its_end(tmp_path: Path) -> None:
    """Another process reprices, and its report has the number of calls in flight."""
    path, go_on = tmp_path / "trace.db", anyio.Event()
    replies = [Say("one"), Say("two", pause=go_on.wait), Say("three")]
    async with running(*replies, store=path, prices=CHEAP) as (engine, _):
        await price_of_a_new_call(engine)
        async with engine.bus.subscribe("llm.call_started") as started:
            call = asyncio.ensure_future(price_of_a_new_call(engine))
            await anext(started)
            await engine.flush()
            async with TraceStore(path) as other:
                report = await other.reprice(DEAR)
                assert (report.calls, report.in_flight) == (1, 1)
            go_on.set()
            await call
        await engine.flush()
        await price_of_a_new_call(engine)
        await engine.flush()
        rows = sorted(await present(engine.store).calls(), key=lambda row: row.call_id)
        assert [row.cost and row.cost.nano_usd for row in rows] == [PAID["dear"], PAID["dear"], PAID["cheap"]]
        assert [row.at_call_time and row.at_call_time.nano_usd for row in rows] == [PAID["cheap"]] * 3


# The costs of calls that have just ended in this process, from the trace.


def test_a_call_that_has_just_ended_is_counted(tmp_path: Path) -> None:
    """The engine runs in this process, on the loop of the sync functions, and has not committed the call yet."""
    path = tmp_path / "own.db"
    with Engine(models=registry(*[Say("Hello")] * 3), store=path) as engine:
        for number in range(1, 4):
            generate_sync("s:m", "Hi", engine=engine)
            assert [row.calls for row in costs_sync(trace=path)] == [number]


async def test_a_call_of_this_loop_is_counted(tmp_path: Path) -> None:
    """`costs` runs on the engine's loop, and `costs_sync` in another thread."""
    path = tmp_path / "own.db"
    async with Engine(models=registry(*[Say("Hello")] * 2), store=path) as living:
        await living.generate("s:m", "Hi")
        assert [row.calls for row in await costs(trace=path)] == [1]
        await living.generate("s:m", "Hi")
        assert [row.calls for row in await anyio.to_thread.run_sync(lambda: costs_sync(trace=path))] == [2]


# A call without a price and a cancelled call: their cost and their usage on every surface.

OTHERS = PriceTable([PriceRow(model="known:m", input=1_000_000, output=2_000_000)], label="others")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.db"


async def test_events_message_and_turn_have_no_price(path: Path) -> None:
    """The cost of the call is None with a reason, and never zero. The turn's cost is None too."""
    async with running(Say("one"), store=path, prices=OTHERS) as (engine, events):
        message = await engine.session("s:m").send("Hi")
        seen = [envelope.data for envelope in events.take()]
    (completed,) = [event for event in seen if isinstance(event, LlmCallCompleted)]
    (turn,) = [event for event in seen if isinstance(event, SessionTurnCompleted)]
    assert message.metadata.cost_usd is None
    for cost in (completed.cost, message.metadata.cost):
        assert (cost.nano_usd, cost.usd, cost.source) == (None, None, CostSource.UNPRICED)
        assert (cost.pricing_version, cost.reason) == (OTHERS.version, "no price for s:m")
    assert turn.cost_nano_usd is None


# -- A stream that was cancelled.


@pytest.fixture(scope="module")
def stalled() -> Iterator[str]:
    with reply_server(50) as url:
        yield url


@pytest.mark.parametrize("protocol", ["chat", "gemini", "messages", "responses"])
async def test_a_cancelled_stream_has_usage_with_its_source(stalled: str, path: Path, protocol: str) -> None:
    """On each wire the usage is partial or estimated, in the event, the error, the row and the sums."""
    prices = PriceTable([PriceRow(model=f"{protocol}:bench", input=1_000_000, output=2_000_000)], label="bench")
    engine = Engine(models=real_registry(stalled, {"x-hold": "1"}), store=path, prices=prices)
    events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
    async with engine:
        session = engine.session(f"{protocol}:bench")
        with pytest.raises(CancelledError) as cancelled:
            async with session.stream("Tell me a story about a quiet street.") as turn:
                async for _ in turn.text_stream:
                    assert await turn.cancel()
        await engine.flush()
        (row,) = await engine.store.calls(CallFilter(status="cancelled"))
        (total,) = await engine.store.costs(by=())
    (failed,) = [envelope.data for envelope in events.take() if isinstance(envelope.data, LlmCallFailed)]
    usage = failed.usage
    assert usage == cancelled.value.usage == row.usage
    assert usage.source in (UsageSource.PARTIAL, UsageSource.ESTIMATED)
    assert usage.total_input_tokens > 0
    assert 0 < usage.output_tokens <= USAGE_OUT
    assert failed.cost.nano_usd == usage.total_input_tokens * 1000 + usage.output_tokens * 2000
    assert row.cost == failed.cost
    assert total.cost_nano_usd == failed.cost.nano_usd
    assert total.estimated == (usage.source is UsageSource.ESTIMATED)
    last = session.messages[-1].metadata
    assert (last.usage, last.cost) == (usage, failed.cost)


# The progress of a repricing, and previews of requests.

TABLE = PriceTable([PriceRow(model="s:*", input=1_000_000, output=2_000_000)])

# A real loop: the store works in threads, and virtual time would run ahead of them.


async def test_a_repricing_publishes_its_progress_and_the_trace_does_not_store_it(tmp_path: Path) -> None:
    """The event has the last call, and tells whether the run is a dry run."""
    async with running(Say("one"), Say("two"), store=tmp_path / "t.db") as (engine, events):
        for _ in range(2):
            await engine.session("s:m").send("Hi")
        await engine.reprice(TABLE, dry_run=True)
        await engine.reprice(TABLE)
        published = [e.data for e in events.take() if isinstance(e.data, PricingProgress | PricingRepriced)]
        assert [type(event) for event in published] == [PricingProgress, PricingProgress, PricingRepriced]
        progress = [event for event in published if isinstance(event, PricingProgress)]
        assert [(each.done, each.last, each.dry_run) for each in progress] == [(2, 2, True), (2, 2, False)]
        await engine.flush()
        assert await engine.store.events(topic="pricing.progress") == []


async def test_a_preview_has_the_request_of_a_turn(tmp_path: Path) -> None:
    """Nothing is sent, and the history does not change."""
    async with keeping(tmp_path / "t.db", models=registry(Say("Hello"))) as engine:
        session = engine.session("s:m", system_prompt="Be kind.")
        await session.send("Hi")
        shown = await engine.preview(session.id, "And now?")
        assert (shown.model, shown.provider, shown.refused) == ("s:m", "s", None)
        assert shown.body == "req_preview"  # The scripted adapter sends only this body.
        assert shown.input_tokens == 30
        assert len(session.messages) == 2
        with pytest.raises(CallboardError, match="has no stored messages"):
            await engine.preview("ses_other")
        with pytest.raises(ConfigurationError):
            await engine.preview(session.id, model="nobody:m")


async def test_a_preview_shows_the_body_of_another_providers_request(tmp_path: Path) -> None:
    """The session is open or stored. The Anthropic body has all messages and no key."""

    def models() -> ModelRegistry:
        return serving(
            s=scripted_type(Say("Hello")),
            claude=entry("claude", "anthropic", AdapterConfig(api_key="sk-ant-hidden")),
        )

    async with keeping(tmp_path / "t.db", models=models()) as engine:
        session = engine.session("s:m", system_prompt="Be kind.")
        await session.send("Hi")
        here = await engine.preview(session.id, "And now?", model="claude:m")
    async with keeping(tmp_path / "t.db", models=models()) as other:
        stored = await other.preview(session.id, "And now?", model="claude:m")
    assert here == stored
    body = json.loads(here.body)
    messages = [(message["role"], json.dumps(message["content"])) for message in body["messages"]]
    assert [role for role, _ in messages] == ["user", "assistant", "user"]
    assert ["Hi" in messages[0][1], "Hello" in messages[1][1], "And now?" in messages[2][1]] == [True] * 3
    assert "Be kind." in json.dumps(body["system"])
    assert "hidden" not in repr(here)
