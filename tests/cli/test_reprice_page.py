"""The page of a repricing says what a reader must know, whatever the calls were."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli.reprice_chart import bars, columns, tick_step
from engine.cli.reprice_lines import Line
from engine.cli.reprice_page import Origin, page
from tracestore import PriceTable, RepriceReport
from tracestore.reprice_runs import DayReprice, ModelReprice

PRICES = Path(__file__).parents[2] / "examples" / "demo-prices.yaml"
ORIGIN = Origin("the costs at call time", "all calls", "trace.db", datetime(2026, 10, 1, tzinfo=UTC))
AMOUNTS = st.integers(0, 10**15)


def report(*models: Line, days: tuple[Line, ...] = (), as_model: str | None = None) -> RepriceReport:
    table = PriceTable.from_yaml(PRICES)
    return RepriceReport(
        version=table.version,
        label=table.label,
        dry_run=True,
        calls=sum(row.calls for row in models),
        unpriced=sum(row.unpriced for row in models),
        unpriced_before=sum(row.unpriced_before for row in models),
        sum_before_nano_usd=sum(row.before for row in models),
        sum_after_nano_usd=sum(row.after for row in models),
        models=tuple(ModelReprice(model=row.name, **sums(row)) for row in models),
        days=tuple(DayReprice(day=row.name, **sums(row)) for row in days),
        as_model=as_model,
    )


def sums(row: Line) -> dict[str, int]:
    return {
        "calls": row.calls,
        "unpriced_before": row.unpriced_before,
        "before_nano_usd": row.before,
        "unpriced": row.unpriced,
        "after_nano_usd": row.after,
    }


def written(told: RepriceReport) -> str:
    return page(told, PriceTable.from_yaml(PRICES), ORIGIN)


def priced(name: str, before: int, after: int) -> Line:
    return Line(name, 1, 0, before, 0, after)


def test_its_head_says_what_was_compared() -> None:
    """Which calls, over which days, under which two price lists, and whether it counts."""
    days = (priced("2026-07-01", 1, 2), priced("2026-09-30", 1, 2))
    text = written(report(priced("a:m", 2, 4), days=days))
    assert "<title>Model costs under example prices, second version</title>" in text
    assert "1 call from 2026-07-01 to 2026-09-30 (UTC): all calls" in text
    assert "<dd>the costs at call time</dd>" in text
    assert f"version {report().version}</dd>" in text
    assert "A trial: nothing was changed." in text


def test_unpriced_calls_are_named_and_no_difference_is_made_of_them() -> None:
    """Before and after; a model whose calls all have a price keeps its difference."""
    text = written(report(Line("mine:m", 5, 2, 10, 5, 0), priced("known:m", 10, 30)))
    assert "Unpriced under these prices: 5 calls, of mine:m (5)." in text
    assert "Unpriced before: 2 calls, of mine:m (2)." in text
    assert "<span>Difference</span><b>not comparable" in text
    assert "+$0.00000002" in text


def test_amounts_of_a_page_have_the_same_number_of_decimals() -> None:
    """So that points stand below each other; as many as the longest needs."""
    text = written(report(priced("a:m", 1_500_000_000, 250_000_000), priced("b:m", 120_000, 0)))
    amounts = re.findall(r"<span>[+−]?\$\d+\.(\d+)</span>", text)
    assert {len(decimals) for decimals in amounts} == {5}


def test_names_are_text_and_never_markup() -> None:
    """A model's name comes from a server."""
    name = "evil:<script>alert(1)</script>&"
    text = written(report(priced(name, 1, 2), as_model=name))
    assert "<script" not in text
    assert escape(name) in text


def test_a_repricing_of_no_calls_is_a_page_without_tables() -> None:
    """It says that there are none."""
    text = written(report())
    assert "0 calls: all calls" in text
    assert "<table" not in text


@pytest.mark.parametrize(
    ("longest", "step"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 5), (26, 10), (10**9, 2 * 10**8)]
)
def test_ticks_are_round_amounts(longest: int, step: int) -> None:
    """One, two or five times a power of ten."""
    assert tick_step(longest) == step


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=2, max_size=5))
def test_charts_stay_within_their_field(amounts: list[tuple[int, int]]) -> None:
    """The greatest amount takes all of it, nothing more; no more than six ticks. Nothing is drawn of zeros."""
    rows = [priced(f"m{number}", *pair) for number, pair in enumerate(amounts)]
    for chart, size in ((bars(rows), "width"), (columns(rows), "height")):
        parts = [float(part) for part in re.findall(size + r":([\d.]+)%", chart)]
        if not any(map(any, amounts)):
            assert chart == ""
            continue
        assert max(parts) == 100
        assert len(re.findall(r"(?:left|bottom):([\d.]+)%", chart)) in range(3, 7) or max(map(max, amounts)) < 5


def test_a_single_day_needs_no_chart() -> None:
    """Its line in the table says it."""
    assert columns([priced("2026-07-01", 5, 6)]) == ""
