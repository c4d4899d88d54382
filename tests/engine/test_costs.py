"""What stored calls cost, asked without an engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.bus import ConfigurationError, StoreError
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.engine import costs, costs_sync, reprice, reprice_sync
from callboard.engine.functions import functions
from callboard.tracestore import CallFilter, PriceTable, TraceStore
from callboard.tracestore.prices.rows import PriceRow
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio

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
    """A trace of three calls: two of now, one of ten days ago."""
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
    """The dearest first; the four counts are beside the amount."""
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
async def test_since_is_a_moment_however_it_is_said(trace: Path, since: str | timedelta | datetime) -> None:
    """A time ago, as text or as a timedelta, or a datetime."""
    (total,) = await costs(by=(), since=since, where=CallFilter(provider="anthropic"))
    assert total.calls == (2 if since == "2w" else 1)


async def test_until_cuts_the_other_end(trace: Path) -> None:
    """So that a span can be asked for."""
    (row,) = await costs(since="2w", until="3d")
    assert (row["model"], row.calls) == (OPUS, 1)


async def test_what_can_not_be_asked_is_said(trace: Path, tmp_path: Path) -> None:
    """A moment that is none, a dimension that there isn't, a trace that there isn't, which is not made."""
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


async def test_a_discount_is_tried_before_it_is_kept(trace: Path) -> None:
    """A dry run changes nothing; kept, it is the current cost of those calls alone, and a new run can undo it."""
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


def test_code_without_a_loop_asks_the_same(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twins say what the coroutines say, and no engine is started for it."""
    monkeypatch.setattr(functions, "_of_loops", {})
    report = reprice_sync(PRICES, discount={"openai:*": "0.5"}, dry_run=True)
    assert report.sum_after_nano_usd == 2 * 750_000 + 112_500
    (row,) = costs_sync(by="model", since="1h", where=CallFilter(provider="openai"))
    assert (row["model"], row.usd) == ("openai:gpt-5", Decimal("0.000001234"))
    assert functions._of_loops == {}
