"""The page of a repricing says what a reader must know, whatever the calls were."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.engine.cli.repricing_report import Line, Origin, bars, columns, page, tick_step
from callboard.tracestore import DayReprice, ModelReprice, PriceTable, RepriceReport, RepriceSums

PRICES = Path(__file__).parents[2] / "examples" / "demo-prices.yaml"
ORIGIN = Origin("the costs at call time", "all calls", "trace.db", datetime(2026, 10, 1, tzinfo=UTC))
AMOUNTS = st.integers(0, 10**15)


def report(*models: Line, days: tuple[Line, ...] = (), as_model: str | None = None) -> RepriceReport:
    table = PriceTable.from_yaml(PRICES)
    total = {name: sum(getattr(row.sums, name) for row in models) for name in FIELDS}
    before, after = total.pop("before_nano_usd"), total.pop("after_nano_usd")
    return RepriceReport(
        version=table.version,
        label=table.label,
        dry_run=True,
        sum_before_nano_usd=before,
        sum_after_nano_usd=after,
        models=tuple(ModelReprice(model=row.name, **msgspec.structs.asdict(row.sums)) for row in models),
        days=tuple(DayReprice(day=row.name, **msgspec.structs.asdict(row.sums)) for row in days),
        as_model=as_model,
        **total,
    )


FIELDS = RepriceSums.__struct_fields__


def written(told: RepriceReport) -> str:
    return page(told, PriceTable.from_yaml(PRICES), ORIGIN)


def priced(name: str, before: int, after: int) -> Line:
    sums = RepriceSums(calls=1, unpriced=0, unpriced_before=0, before_nano_usd=before, after_nano_usd=after)
    return Line(name, sums)


def test_its_head_says_what_was_compared() -> None:
    """Which calls, over which days, under which two price lists, and whether it counts."""
    days = (priced("2026-07-01", 1, 2), priced("2026-09-30", 1, 2))
    text = written(report(priced("a:m", 2, 4), days=days))
    assert "<title>Model costs under example prices, second version</title>" in text
    assert "1 call from 2026-07-01 to 2026-09-30 (UTC): all calls" in text
    assert "<dd>the costs at call time</dd>" in text
    assert f"version {report().version}</dd>" in text
    assert "A trial: nothing was changed." in text


def test_only_calls_that_both_sides_price_are_compared_and_the_others_are_beside_them() -> None:
    """In the totals, the tables and the note, with what they cost on the side that prices them."""
    partly = RepriceSums(
        calls=9,
        unpriced=5,
        unpriced_before=2,
        before_nano_usd=10,
        after_nano_usd=4,
        newly_priced=1,
        newly_priced_nano_usd=7,
        no_longer_priced=4,
        no_longer_priced_nano_usd=90,
    )
    text = written(report(Line("mine:m", partly), priced("known:m", 10, 30)))
    assert "Both sums are over the 4 calls with a cost before and after." in text
    beside = "4 no longer priced ($0.000000090 before), 1 newly priced ($0.000000007), 1 unpriced"
    assert f"Beside them: {beside}. They are of mine:m: {beside}." in text
    assert "<span>Difference</span><b>+$0.000000014 <small>+70%</small>" in text, "20 before and 34 after"
    assert '<td data-label="Beside">4 no longer priced' in text


def test_calls_that_only_one_side_prices_are_not_compared() -> None:
    """A model without a call that both sides price has no sums, and no difference is made up."""
    lost = RepriceSums(
        calls=5,
        unpriced=5,
        unpriced_before=0,
        before_nano_usd=0,
        after_nano_usd=0,
        no_longer_priced=5,
        no_longer_priced_nano_usd=90,
    )
    text = written(report(Line("mine:m", lost)))
    assert "<span>Difference</span><b>not comparable" in text


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
