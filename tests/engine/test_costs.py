"""Costs of calls: reported, computed, unknown and estimated, and prices that change."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard import AdapterEntry, JsonObject, ModelEntry
from callboard.adapters import AdapterConfig, CanonicalRequest, NetworkError, StopReason, TokenUsage, UsageSource
from callboard.adapters.providers.scripted import ScriptedAdapter, ScriptedReply
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.bus import (
    AdapterError,
    CancelledError,
    ConfigurationError,
    Cost,
    CostSource,
    LlmCallCompleted,
    LlmCallFailed,
    Lossless,
    ServerError,
    SessionTurnCompleted,
    StoreError,
)
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.streams.events import MessageStart, StreamEvent, TextDelta
from callboard.engine import Engine, costs, costs_sync, functions, reprice, reprice_sync
from callboard.engine import current_prices as price_watch
from callboard.engine.cli import main
from callboard.engine.models.registry import published_name
from callboard.tracestore import CallFilter, PriceTable, TraceStore
from callboard.tracestore.prices.rows import PriceRow

from ..support.engines import running, said, serving
from ..support.present import present
from ..support.scripted import Say, adapter_type
from ..tracestore.contract.test_queries import COUNTS, a_faulty_day
from ..tracestore.trace_making import Maker

# The costs of stored calls, without an engine.

OPUS = "anthropic:claude-opus-4-6"
NOW_US = SYSTEM_CLOCK.now_us()
PRICES = PriceTable(
    [
        PriceRow(model=OPUS, input=5_000_000, output=25_000_000),
        PriceRow(model="openai:gpt-5", input=1_250_000, output=10_000_000),
    ],
    "list",
)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of three calls: two recent calls, and one call that is ten days old."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    maker = Maker()
    calls = [("a", OPUS, 0), ("b", "openai:gpt-5", 0), ("c", OPUS, 10)]
    events = []
    for request, model, days in calls:
        for make in (maker.started, maker.completed):
            then_us = NOW_US - days * 86_400_000_000
            events.append(msgspec.structs.replace(make(request, model), ts_us=then_us))

    async def write() -> None:
        async with TraceStore(tmp_path / "trace.db") as store:
            await store.write(events)

    anyio.run(write)
    return tmp_path / "trace.db"


async def test_costs_are_rows_with_named_keys_and_exact_dollars(trace: Path) -> None:
    """The highest cost is first. Each row also has the four token counts."""
    rows = await costs(by=("provider", "model"))
    assert [(row["provider"], row["model"], row.calls, row.usd) for row in rows] == [
        ("anthropic", OPUS, 2, Decimal("0.000002468")),
        ("openai", "openai:gpt-5", 1, Decimal("0.000001234")),
    ]
    assert [(row.estimated, row.unpriced, row.unknown) for row in rows] == [(0, 0, 0), (0, 0, 0)]
    with pytest.raises(KeyError, match="day"):
        rows[0]["day"]


@pytest.mark.parametrize(
    "since",
    ["1h", "2w", timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)],
    ids=["1h", "2w", "ago", "at"],
)
async def test_since_can_be_an_age_or_a_time(trace: Path, since: str | timedelta | datetime) -> None:
    """An age is a text or a timedelta. `until` is the other end."""
    (total,) = await costs(by=(), since=since, where=CallFilter(provider="anthropic"))
    assert total.calls == (2 if since == "2w" else 1)
    assert [(row["model"], row.calls) for row in await costs(since=since, until="3d")] == (
        [(OPUS, 1)] if since == "2w" else []
    )


async def test_wrong_arguments_of_costs_are_refused(trace: Path, tmp_path: Path) -> None:
    """A wrong time, an unknown dimension and a missing trace are refused. No file is created."""
    with pytest.raises(ConfigurationError, match="'yesterday' is no day or time"):
        await costs(since="yesterday")
    with pytest.raises(ValueError, match="colour"):
        await costs(by="colour")
    missing = tmp_path / "missing.db"
    with pytest.raises(StoreError, match=r"missing\.db"):
        await costs(trace=missing)
    with pytest.raises(StoreError, match=r"missing\.db"):
        await reprice(PRICES, trace=missing)
    assert not missing.exists()


async def test_a_discount_can_be_tried_and_stored(trace: Path) -> None:
    """A dry run changes nothing. A stored run changes the cost of these calls only, and can be undone."""
    tried = await reprice(PRICES, discount={"anthropic:*": "0.8"}, since="1h", dry_run=True)
    assert (tried.calls, tried.sum_after_nano_usd) == (2, 600_000 + 225_000)
    assert (await costs(by=()))[0].cost_nano_usd == 3 * 1234
    await reprice(PRICES, discount={"anthropic:*": "0.8"}, since="1h", trace=str(trace))
    assert {row["model"]: row.cost_nano_usd for row in await costs()} == {
        OPUS: 600_000 + 1234,
        "openai:gpt-5": 225_000,
    }
    async with TraceStore(trace) as store:
        await store.undo_reprice()
        assert (await costs(by=(), trace=store))[0].cost_nano_usd == 3 * 1234


def test_the_sync_functions_return_the_same_costs(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine starts for them."""
    monkeypatch.setattr(functions, "_of_loops", {})
    report = reprice_sync(PRICES, discount={"openai:*": "0.5"}, dry_run=True)
    assert report.sum_after_nano_usd == 2 * 750_000 + 112_500
    (row,) = costs_sync(by="model", since="1h", where=CallFilter(provider="openai"))
    assert (row["model"], row.usd) == ("openai:gpt-5", Decimal("0.000001234"))
    assert functions._of_loops == {}


# The cost that a provider reports is used everywhere. The cost from the price table is kept as the computed cost.

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
STATED = TokenUsage(10, 5, reported_cost_nano_usd=7)
COST = Cost(7, CostSource.PROVIDER, TABLE.version, None, 10 * 1000 + 5 * 2000)


@pytest.mark.parametrize(("streamed", "stated"), [(True, 7), (False, 7), (False, 0)])
async def test_a_reported_cost_is_the_cost_of_the_call(tmp_path: Path, streamed: bool, stated: int) -> None:
    """The reported cost is in the event, the message, the row and the sums. Zero is an amount too."""
    usage = msgspec.structs.replace(STATED, reported_cost_nano_usd=stated)
    async with running(Say("one", usage=usage), store=tmp_path / "t.db", prices=TABLE) as (engine, events):
        message = await said(engine.session("s:m"), "Hi", streamed=streamed)
        await engine.flush()
        store = present(engine.store)
        (row,), (total,) = await store.calls(), await store.costs(by=())
        (ended,) = [e.data for e in events.take() if isinstance(e.data, LlmCallCompleted)]
    cost = msgspec.structs.replace(COST, nano_usd=stated)
    assert ended.cost == present(message.metadata).cost == row.cost == row.at_call_time == cost
    assert (total.cost_nano_usd, total.at_call_time_nano_usd) == (stated, stated)


async def test_a_failed_call_has_the_reported_cost(tmp_path: Path) -> None:
    """A gateway bills the part that it delivered before the failure."""
    failure = ServerError("broke off")
    failure.usage = STATED
    async with running(Say(fails=failure), store=tmp_path / "t.db", prices=TABLE) as (engine, events):
        with pytest.raises(ServerError):
            await engine.session("s:m").send("Hi")
        await engine.flush()
        (row,) = await present(engine.store).calls()
        (ended,) = [e.data for e in events.take() if isinstance(e.data, LlmCallFailed)]
    assert ended.cost == row.cost == COST


# A call with unknown usage: budgets, turns and events show an unknown cost, and never zero.


async def test_a_turn_reports_its_unknown_calls(tmp_path: Path) -> None:
    """The cost of a turn without a reply is not zero: its event has the counts and no amount."""
    async with running(Say(fails=NetworkError("dropped")), prices=TABLE) as (engine, events):
        with pytest.raises(NetworkError):
            await engine.session("s:m").send("Hi")
        seen = [envelope.data for envelope in events.take()]
    (failed,) = [event for event in seen if isinstance(event, LlmCallFailed)]
    (turn,) = [event for event in seen if isinstance(event, SessionTurnCompleted)]
    assert turn.attempts == turn.calls == 1
    assert turn.estimated + turn.unknown == 1
    assert (turn.cost_nano_usd is None) == (failed.usage is None)


# -- Every command, over a file of a faulty day.


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs `callboard` in this process on a trace of a faulty day, and returns its output."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "180")

    async def fill() -> None:
        async with TraceStore(tmp_path / "trace.db") as store:
            await a_faulty_day(store, Maker())

    anyio.run(fill)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


def test_commands_show_unknown_costs_and_unpriced_calls(command: Callable[..., str], tmp_path: Path) -> None:
    """Tables, JSON, CSV, the page and an export show them."""
    for name, value in {"cost": "--by", "stats": "--by"}.items():
        (row,) = json.loads(f"[{command(name, value, 'total', '--json')}]")
        assert [row[count] == COUNTS[count] for count in ("estimated", "unpriced", "unknown")] == [True] * 3
        (listed,) = csv.DictReader(io.StringIO(command(name, value, "total", "--csv")))
        assert listed["unknown"] == "5"
    assert "5 calls of unknown cost, not included in sums" in command("cost")
    assert "5 attempts of unknown usage" in command("stats")
    assert "+ 1 unpriced + 5 unknown" in command("sessions")
    assert "+ 1 unpriced + 5 unknown" in command("traces")
    assert command("traces", "--unknown", "--json").count("\n") == 5
    (unpriced,) = command("traces", "--unpriced", "--json").splitlines()
    assert (json.loads(unpriced)["model"], json.loads(unpriced)["cost"]["nano_usd"]) == ("other:thing", None)
    command("export", "--format", "csv", str(tmp_path / "calls.csv"))
    exported = {row["model"]: row for row in csv.DictReader(io.StringIO((tmp_path / "calls.csv").read_text()))}
    assert (exported["other:thing"]["cost_nano_usd"], exported["other:thing"]["cost_source"]) == ("", "unpriced")
    (session,) = json.loads(f"[{command('sessions', '--json')}]")
    assert session["unknown"] == 5
    (tmp_path / "p.yaml").write_text("label: later\nprices:\n  - {model: 'openai:*', input: 2, output: 2}\n")
    reprice = ("reprice", "--prices", str(tmp_path / "p.yaml"), "--dry-run")
    assert "5 calls of unknown cost, not included in sums" in command(*reprice)
    assert [row["unknown"] for row in csv.DictReader(io.StringIO(command(*reprice, "--csv")))] != []
    command(*reprice, "--html", str(tmp_path / "page.html"))
    assert "The usage of 5 more calls is unknown." in (tmp_path / "page.html").read_text()


# The estimates for calls that did not complete: in the error, in the events and in the turn.

EARLY_PRICES = PriceTable([PriceRow(model="s:*", input=1_000_000, output=100_000_000)])
SAID = "word " * 200


def failures(events: list[object]) -> list[LlmCallFailed]:
    return [event for event in events if isinstance(event, LlmCallFailed)]


class Unmetered:
    """A foreign adapter that reports no usage and has bugs."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self._inner = ScriptedAdapter(config, name=name, clock=clock, replies=["never"])
        self.capabilities = self._inner.capabilities
        self.get_capabilities = self._inner.get_capabilities
        self.estimate_input_tokens = self._inner.estimate_input_tokens

    async def complete(self, request: CanonicalRequest, **_: object) -> object:
        raise LookupError("a bug")

    def stream(self, request: CanonicalRequest, **_: object) -> _Crashing:
        return _Crashing(request.message_id)

    async def cancel(self, request_id: str) -> bool:
        return False

    async def close(self) -> None:
        pass


class _Crashing:
    response = None

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id

    async def __aenter__(self) -> _Crashing:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        yield MessageStart(self._message_id, "m", "s")
        yield TextDelta(SAID, 0, self._message_id)
        await anyio.sleep(1)
        raise LookupError("a bug")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_crash_of_an_adapter_without_usage_is_estimated(streamed: bool) -> None:
    """The estimate counts the prompt and the delivered text. `usage_so_far` had the same numbers."""
    async with Engine(models=serving(s=adapter_type(Unmetered)), trace=False, prices=EARLY_PRICES) as engine:
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        stream = engine.stream("s:m", "Hi") if streamed else None
        with pytest.raises(AdapterError, match="a bug") as caught:
            if stream is None:
                await engine.generate("s:m", "Hi")
            else:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        meter = stream.usage_so_far.usage
        (end,) = failures([envelope.data for envelope in events.take()])
        usage = caught.value.usage
        assert (usage, caught.value.cost) == (end.usage, end.cost)
        assert usage.source is UsageSource.ESTIMATED
        assert usage.input_tokens > 0
        assert (usage.output_tokens > 100) is streamed
        assert not streamed or meter == usage


async def test_the_turns_cost_includes_failed_attempts() -> None:
    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ScriptedAdapter:
        broken = ScriptedReply("a part", usage=TokenUsage(700, 1), stop=StopReason.ERROR)
        fine = ScriptedReply("Fine.", usage=TokenUsage(10, 5))
        return ScriptedAdapter(config, name=name, clock=clock, replies=[broken, broken, fine])

    async with Engine(models=serving(s=adapter_type(make)), trace=False, prices=EARLY_PRICES) as engine:
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        result = await engine.generate("s:m", "Hi")
        failed = failures([envelope.data for envelope in events.take()])
    assert [end.will_retry for end in failed] == [True, True]
    for end in failed:
        assert (end.usage.input_tokens, end.usage.source) == (700, UsageSource.PARTIAL)
    nano = [end.cost.nano_usd for end in failed if end.cost is not None]
    assert result.total_cost.nano_usd == sum(each or 0 for each in nano) + 10 * 1_000 + 5 * 100_000


async def test_a_call_that_is_refused_has_no_usage_and_costs_nothing() -> None:
    """The reason in the error says that an error reply is not billed."""
    async with running(Say(fails=ServerError("busy", provider_status=503)), prices=EARLY_PRICES) as (engine, _):
        with pytest.raises(ServerError) as caught:
            await engine.generate("s:m", "Hi")
        assert caught.value.usage is None
        reason = "the provider returned an error, which is not billed"
        assert (caught.value.cost.usd, caught.value.cost.reason) == (0, reason)


async def test_a_call_that_is_cancelled_before_it_is_sent_costs_nothing() -> None:
    async with running(Say("never"), prices=EARLY_PRICES) as (engine, events):
        (await engine._runtime.adapters.acquire("s")).release()
        while engine._runtime.adapters["s"].slots.try_acquire():
            pass
        session = engine.session("s:m")
        waiting = asyncio.ensure_future(session.send("Hi"))
        await anyio.sleep(1)
        await session.cancel()
        with pytest.raises(CancelledError) as cancelled:
            await waiting
        (end,) = failures([envelope.data for envelope in events.take()])
        assert (cancelled.value.usage, end.usage) == (NOTHING_USED, None)
        assert cancelled.value.cost == end.cost == Cost(0, CostSource.COMPUTED, None, "the request was not sent")


# The vendor whose published prices apply to an adapter's models.


@pytest.mark.parametrize(
    ("name", "kind", "url", "options", "prices_as", "expected"),
    [
        ("anthropic", "anthropic", None, {}, None, None),
        ("work", "anthropic", None, {}, None, "anthropic:m"),
        ("work", "anthropic", None, {}, "azure", "azure:m"),
        ("work", "anthropic", "https://proxy.example/v1", {}, None, "anthropic:m"),
        ("work", "openai_compatible", "https://openrouter.ai/api/v1", {}, None, "openrouter:m"),
        ("work", "openai_compatible", "https://proxy.example", {"quirks": "groq"}, None, "groq:m"),
        ("work", "openai_compatible", "https://proxy.example", {}, None, None),
        ("box", "ollama", None, {}, None, "ollama:m"),
        ("box", "openai_compatible", "http://localhost:1234/v1", {}, None, "local:m"),
    ],
)
def test_the_vendor_comes_from_the_setting_the_address_or_the_type(
    name: str, kind: str, url: str | None, options: JsonObject, prices_as: str | None, expected: str | None
) -> None:
    """The setting comes first, then the address, then the type. A type that many servers share has no vendor."""
    config = AdapterConfig(base_url=url, options=options)
    adapter = AdapterEntry(name=name, type=kind, config=config, prices_as=prices_as)
    assert published_name(adapter, ModelEntry(id="x:y", adapter=name, wire_name="m")) == expected


def test_a_vendors_model_behind_any_address_has_the_vendors_prices() -> None:
    """The vendor's prices apply. A model that is in no vendor's table stays unpriced."""
    config = AdapterConfig(api_key="k", base_url="http://127.0.0.1:9/v1")
    gateway = AdapterEntry(name="gateway", type="openai_compatible", config=config)
    known = ModelEntry(id="gateway:gpt-5.2", adapter="gateway", wire_name="gpt-5.2")
    assert published_name(gateway, known) == "openai:gpt-5.2"
    assert published_name(gateway, ModelEntry(id="gateway:mine", adapter="gateway", wire_name="mine")) is None


# A repricing by another store reaches live messages.

DEAR = PriceTable.from_rows([PriceRow(model="s:*", input=9_000_000, output=9_000_000)], "dear")


async def test_a_repricing_by_another_store_is_detected_at_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live messages have the new cost, and the event is published. An undo is detected too."""
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


async def test_checks_are_a_second_apart(tmp_path: Path) -> None:
    class Still:
        now = 0

        def monotonic_ns(self) -> int:
            return self.now

    clock = Still()
    watch = price_watch.PriceWatch(TraceStore(tmp_path / "trace.db"), clock)  # type: ignore[arg-type]
    assert [watch.due() for _ in range(3)] == [True, False, False]
    clock.now = 1_000_000_000
    assert [watch.due() for _ in range(2)] == [True, False]
