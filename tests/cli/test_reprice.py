"""Repricing: its page is correct, and `callboard budget` shows the accounts of a budget."""

from __future__ import annotations

import csv
import json
import re
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.engine.cli import main
from callboard.engine.cli.repricing_report import Line, Origin, bars, columns, page
from callboard.tracestore import DayReprice, ModelReprice, PriceRow, PriceTable, RepriceReport, RepriceSums
from tests.support.engines import running
from tests.support.scripted import Say

# -- The page of a repricing, for any kind of calls.

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


def test_the_head_of_the_page_shows_the_compared_calls() -> None:
    """The head has the calls, the days, the two price lists, and a note about a dry run."""
    days = (priced("2026-07-01", 1, 2), priced("2026-09-30", 1, 2))
    text = written(report(priced("a:m", 2, 4), days=days))
    assert "<title>Model costs under example prices, second version</title>" in text
    assert "1 call from 2026-07-01 to 2026-09-30 (UTC): all calls" in text
    assert "<dd>the costs at call time</dd>" in text
    assert f"version {report().version}</dd>" in text
    assert "A trial: nothing was changed." in text
    text = written(report())
    assert ("0 calls: all calls" in text, "<table" in text) == (True, False)
    assert columns([priced("2026-07-01", 5, 6)]) == "", "a chart needs at least two days"


def test_only_calls_with_both_prices_are_compared_and_the_others_are_listed() -> None:
    """The other calls are in the tables and in the note, with their cost on the side that has a price."""
    counts = {"calls": 9, "unpriced": 5, "unpriced_before": 2}
    newly, gone = {"newly_priced": 1, "newly_priced_nano_usd": 7}, {"no_longer_priced_nano_usd": 90}
    partly = RepriceSums(**counts, before_nano_usd=10, after_nano_usd=4, no_longer_priced=4, **newly, **gone)
    text = written(report(Line("mine:m", partly), priced("known:m", 10, 30)))
    assert "Both sums are over the 4 calls with a cost before and after." in text
    note = "4 no longer priced ($0.000000090 before), 1 newly priced ($0.000000007), 1 unpriced"
    assert f"In addition: {note}. Models: mine:m: {note}." in text
    assert "<span>Difference</span><b>+$0.000000014 <small>+70%</small>" in text, (
        "the sums are 20 before and 34 after"
    )
    assert '<td data-label="Beside">4 no longer priced' in text
    none = {"unpriced_before": 0, "before_nano_usd": 0, "after_nano_usd": 0}
    lost = RepriceSums(calls=5, unpriced=5, **none, no_longer_priced=5, no_longer_priced_nano_usd=90)
    text = written(report(Line("mine:m", lost)))
    assert "<span>Difference</span><b>not comparable" in text
    assert '">not comparable</td>' in text


def test_amounts_of_a_page_have_the_same_number_of_decimals() -> None:
    """The longest amount sets the number of decimals, so the decimal points are aligned."""
    text = written(report(priced("a:m", 1_500_000_000, 250_000_000), priced("b:m", 120_000, 0)))
    amounts = re.findall(r"<span>[+−]?\$\d+\.(\d+)</span>", text)
    assert {len(decimals) for decimals in amounts} == {5}


def test_names_are_text_and_never_markup() -> None:
    """A model's name comes from a server, so the page escapes it."""
    name = "evil:<script>alert(1)</script>&"
    text = written(report(priced(name, 1, 2), as_model=name))
    assert "<script" not in text
    assert escape(name) in text


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=2, max_size=5))
def test_charts_stay_within_their_field(amounts: list[tuple[int, int]]) -> None:
    """The greatest amount has the full height. A chart has at most six ticks. Amounts of zero have no chart."""
    rows = [priced(f"m{number}", *pair) for number, pair in enumerate(amounts)]
    for chart, size in ((bars(rows), "width"), (columns(rows), "height")):
        parts = [float(part) for part in re.findall(size + r":([\d.]+)%", chart)]
        if not any(map(any, amounts)):
            assert chart == ""
            continue
        assert max(parts) == 100
        assert len(re.findall(r"(?:left|bottom):([\d.]+)%", chart)) in range(3, 7) or max(map(max, amounts)) < 5


# -- `callboard budget` shows the accounts of a budget from a trace file.

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace of three calls of two tenants. Each call costs 20,000 nano-USD and has 15 tokens."""
    path = tmp_path / "trace.db"

    async def fill() -> None:
        async with running(*[Say("x")] * 3, store=path, prices=TABLE) as (engine, _):
            for tenant in ("acme", "acme", "zoo"):
                await engine.generate("s:m", "Hi", tags={"tenant": tenant})

    anyio.run(fill)
    return path


def test_each_account_shows_its_spent_and_remaining_amounts(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The account with the highest spend is first. `scope` is the old name of `value`."""
    asked = ("--per", "tag:tenant", "--window", "day", "--max-cost-usd", "0.0001", "--db", str(file), "--json")
    assert main(("budget", *asked)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    acme, zoo = ("acme", 2, 40_000, 60_000), ("zoo", 1, 20_000, 80_000)
    accounts = [(row["value"], row["calls"], row["spent_nano_usd"], row["left_nano_usd"]) for row in rows]
    assert accounts == [acme, zoo]
    assert [row["scope"] for row in rows] == ["acme", "zoo"]


def test_a_wrong_budget_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with the valid values."""
    assert main(("budget", "--per", "planet", "--db", str(file))) == 2
    assert "per='planet': must be one of engine, session" in capsys.readouterr().err


def test_amounts_are_also_in_usd(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Amounts are exact decimals in JSON and in CSV. Without a limit on cost, `left_usd` is null."""
    asked = ("budget", "--per", "tag:tenant", "--of", "acme", "--db", str(file))
    assert main((*asked, "--max-cost-usd", "0.0001", "--json")) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["spent_usd"], row["unknown_usd"], row["left_usd"]) == ("0.000040000", "0.000000000", "0.000060000")
    assert main((*asked, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["left_usd"] is None
    assert main((*asked, "--max-cost-usd", "0.0001", "--csv")) == 0
    head, line = csv.reader(capsys.readouterr().out.splitlines())
    assert dict(zip(head, line, strict=True))["left_usd"] == "0.000060000"
