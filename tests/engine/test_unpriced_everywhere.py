"""A call without a price, and one that was cancelled: what every surface says of their cost and their usage."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from callboard.bus import (
    Bus,
    CancelledError,
    CostSource,
    LlmCallCompleted,
    LlmCallFailed,
    Lossless,
    SessionTurnCompleted,
    UsageSource,
)
from callboard.engine import Engine
from callboard.engine.cli import main
from tests.support.engines import running
from tests.support.present import present
from tests.support.reply_models import registry as real_registry
from tests.support.reply_server import USAGE_OUT, reply_server
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from callboard.tracestore import CallFilter, PriceRow, PriceTable, StoredEvents

pytestmark = pytest.mark.anyio

OTHERS = PriceTable([PriceRow(model="known:m", input=1_000_000, output=2_000_000)], label="others")
OTHERS_LATER = PriceTable([PriceRow(model="known:m", input=2_000_000, output=2_000_000)], label="others, later")
KNOWN_NANO = 10 * 1000 + 5 * 2000

anyio_backend = runs_on("asyncio")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.db"


@pytest.fixture
def command(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `callboard` prints, in this process."""
    monkeypatch.setenv("CALLBOARD_HOME", str(path.parent))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


async def make_calls(path: Path) -> None:
    """A session with a call of a model that the table doesn't know, and one of a model that it knows."""
    async with running(Say("one"), known=[Say("two")], store=path, prices=OTHERS) as (engine, _):
        session = engine.session("s:m", session_id="ses_u")
        await session.send("first")
        session.model = "known:m"
        await session.send("second")


async def test_events_message_and_turn_know_no_price(path: Path) -> None:
    """Unknown is None with a reason, never zero; a turn with such a call has no known cost either."""
    async with running(Say("one"), store=path, prices=OTHERS) as (engine, events):
        message = await engine.session("s:m").send("Hi")
        seen = [envelope.data for envelope in events.take()]
    (completed,) = [event for event in seen if isinstance(event, LlmCallCompleted)]
    (turn,) = [event for event in seen if isinstance(event, SessionTurnCompleted)]
    assert message.metadata is not None
    assert message.metadata.cost_usd is None
    for cost in (completed.cost, message.metadata.cost):
        assert (cost.nano_usd, cost.usd, cost.source) == (None, None, CostSource.UNPRICED)
        assert cost.pricing_version == OTHERS.version
        assert cost.reason == "no price for s:m"
    assert turn.cost_nano_usd is None


async def test_the_store_counts_unpriced_calls_and_sums_the_others(path: Path) -> None:
    """Rows, filters, sums by any key and sessions."""
    await make_calls(path)
    async with running(store=path, prices=OTHERS) as (engine, _):
        store = engine.store
        assert store is not None
        (row,) = await store.calls(CallFilter(unpriced=True))
        assert (row.model, row.cost and row.cost.source, row.cost and row.cost.nano_usd) == (
            "s:m",
            CostSource.UNPRICED,
            None,
        )
        (total,) = await store.costs(by=())
        assert (total.calls, total.unpriced, total.at_call_time_unpriced) == (2, 1, 1)
        assert total.cost_nano_usd == total.at_call_time_nano_usd == KNOWN_NANO
        (session,) = await store.sessions()
        assert (session.unpriced, session.cost_nano_usd) == (1, KNOWN_NANO)


async def test_repricing_says_what_it_cannot_price(path: Path) -> None:
    """Before and after, by model and in live messages; undone, it is unpriced still."""
    async with running(Say("one"), known=[Say("two")], store=path, prices=OTHERS) as (engine, _):
        session = engine.session("s:m")
        await session.send("first")
        session.model = "known:m"
        await session.send("second")
        report = await engine.reprice(OTHERS_LATER)
        assert (report.calls, report.unpriced_before, report.unpriced) == (2, 1, 1)
        assert (report.sum_before_nano_usd, report.sum_after_nano_usd) == (KNOWN_NANO, KNOWN_NANO + 10_000)
        costs = [message.metadata.cost for message in session.messages if message.metadata is not None]
        assert [(cost.source, cost.pricing_version) for cost in costs] == [
            (CostSource.UNPRICED, OTHERS_LATER.version),
            (CostSource.COMPUTED, OTHERS_LATER.version),
        ]
        await engine.undo_reprice()
        (total,) = await present(engine.store).costs(by=())
        assert (total.unpriced, total.cost_nano_usd) == (1, KNOWN_NANO)


def test_commands_say_unpriced_and_never_nothing(path: Path, command: Callable[..., str]) -> None:
    """As a table, as JSON, as CSV, as a page and in an export."""
    anyio.run(make_calls, path)
    home = path.parent
    unpriced_line = [line for line in command("cost", "--by", "model").splitlines() if "s:m" in line]
    assert [line.count("unpriced") for line in unpriced_line] == [2], "now, and at call time"
    assert "1 call without a price, and in no sum." in command("cost", "--by", "total")
    assert "$0.000020000 + 1 unpriced" in command("traces")
    assert "$0.000020000 + 1 unpriced" in command("sessions")
    assert "s:m" in command("traces", "--unpriced")
    assert "known:m" not in command("traces", "--unpriced")
    rows = [json.loads(line) for line in command("traces", "--json").splitlines()]
    assert {row["model"]: row["cost"]["nano_usd"] for row in rows} == {"s:m": None, "known:m": KNOWN_NANO}
    sums = {row["model"]: row for row in csv.DictReader(io.StringIO(command("cost", "--csv")))}
    assert (sums["s:m"]["unpriced"], sums["s:m"]["at_call_time_unpriced"]) == ("1", "1")
    command("export", "--format", "csv", str(home / "calls.csv"))
    exported = {row["model"]: row for row in csv.DictReader(io.StringIO((home / "calls.csv").read_text()))}
    assert (exported["s:m"]["cost_nano_usd"], exported["s:m"]["cost_source"]) == ("", "unpriced")
    (home / "later.yaml").write_text("label: later\nprices:\n  - {model: 'known:m', input: 2, output: 2}\n")
    said = command(
        *("reprice", "--prices", str(home / "later.yaml"), "--dry-run", "--html", str(home / "report.html")),
    )
    assert "1 call without a price in this table, and in no sum." in said
    assert "unpriced" in (home / "report.html").read_text()


async def test_an_exporter_and_a_replay_carry_no_cost_for_it(path: Path) -> None:
    """The span says `unpriced`, and has no amount; the replayed event is the one that was."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from callboard.tracestore.export import OtelExporter

    spans, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    exporter = OtelExporter(tracer_provider=provider)
    async with running(Say("one"), store=path, prices=OTHERS) as (engine, _):
        await engine.session("s:m").send("Hi")
        await engine.flush()
        assert engine.store is not None
        async with Bus.replay(StoredEvents(engine.store)) as bus:
            async with bus.subscribe("llm.*", policy=Lossless()) as replayed:
                async for envelope in replayed:
                    exporter.handle(envelope)
                    if isinstance(envelope.data, LlmCallCompleted):
                        assert envelope.data.cost.source is CostSource.UNPRICED
    (span,) = spans.get_finished_spans()
    assert span.attributes["callboard.cost.source"] == "unpriced"
    assert not [name for name in span.attributes if "cost" in name and name.endswith("usd")]


# -- A stream that was cancelled


@pytest.mark.parametrize("protocol", ["chat", "gemini", "messages", "responses"])
async def test_a_cancelled_stream_has_usage_that_says_what_it_is(path: Path, protocol: str) -> None:
    """Over each wire, in the middle of a reply: marked partial or estimated, in event, error, store and sums."""
    prices = PriceTable([PriceRow(model=f"{protocol}:bench", input=1_000_000, output=2_000_000)], label="bench")
    with reply_server(50) as url:
        engine = Engine(models=real_registry(url, {"x-hold": "1"}), store=path, prices=prices)
        events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
        async with engine:
            session = engine.session(f"{protocol}:bench")
            with pytest.raises(CancelledError) as cancelled:
                async with session.stream("Tell me a story about a quiet street.") as turn:
                    async for _ in turn.text_stream:
                        assert await turn.cancel()
            await engine.flush()
            assert engine.store is not None
            (row,) = await engine.store.calls(CallFilter(status="cancelled"))
            (total,) = await engine.store.costs(by=())
        ended = [envelope.data for envelope in events.take() if isinstance(envelope.data, LlmCallFailed)]
    (failed,) = ended
    usage = failed.usage
    assert usage is not None
    assert usage == cancelled.value.usage == row.usage
    assert usage.source in (UsageSource.PARTIAL, UsageSource.ESTIMATED)
    assert usage.total_input_tokens > 0
    assert 0 < usage.output_tokens <= USAGE_OUT
    assert failed.cost is not None
    assert failed.cost.nano_usd == usage.total_input_tokens * 1000 + usage.output_tokens * 2000
    assert row.cost == failed.cost
    assert total.cost_nano_usd == failed.cost.nano_usd
    assert total.estimated == (usage.source is UsageSource.ESTIMATED)
    last = session.messages[-1].metadata
    assert last is not None
    assert (last.usage, last.cost) == (usage, failed.cost)
