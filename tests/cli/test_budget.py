"""`callboard budget`: the accounts of a budget, read from a trace file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import anyio
import pytest

from callboard.engine.cli import main
from tests.support.engines import running
from tests.support.scripted import Say
from callboard.tracestore import PriceRow, PriceTable

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The trace of three calls of two tenants, each of 20,000 nano-USD and 15 tokens."""
    path = tmp_path / "trace.db"

    async def fill() -> None:
        async with running(*[Say("x")] * 3, store=path, prices=TABLE) as (engine, _):
            for tenant in ("acme", "acme", "zoo"):
                await engine.generate("s:m", "Hi", tags={"tenant": tenant})

    anyio.run(fill)
    return path


def test_each_account_has_what_is_spent_and_left(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dearest account first, as an engine with that budget would count."""
    asked = ("--per", "tag:tenant", "--window", "day", "--max-cost-usd", "0.0001", "--db", str(file), "--json")
    assert main(("budget", *asked)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["value"], row["calls"], row["spent_nano_usd"], row["left_nano_usd"]) for row in rows] == [
        ("acme", 2, 40_000, 60_000),
        ("zoo", 1, 20_000, 80_000),
    ]


def test_a_row_names_its_scope(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The earlier name stays beside it."""
    assert main(("budget", "--per", "tag:tenant", "--max-cost-usd", "0.0001", "--db", str(file), "--json")) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["scope"], row["value"]) for row in rows] == [("acme", "acme"), ("zoo", "zoo")]


def test_a_budget_that_makes_no_sense_is_told(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with what may stand there."""
    assert main(("budget", "--per", "planet", "--db", str(file))) == 2
    assert "per='planet': must be one of engine, session, provider, model, or tag:NAME" in capsys.readouterr().err


def test_amounts_are_in_usd_as_well(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exact decimals, in JSON as in CSV; an account without a limit on money has none left."""
    asked = ("budget", "--per", "tag:tenant", "--of", "acme", "--db", str(file))
    assert main((*asked, "--max-cost-usd", "0.0001", "--json")) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["spent_usd"], row["unknown_usd"], row["left_usd"]) == ("0.000040000", "0.000000000", "0.000060000")
    assert main((*asked, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["left_usd"] is None
    assert main((*asked, "--max-cost-usd", "0.0001", "--csv")) == 0
    head, line = csv.reader(capsys.readouterr().out.splitlines())
    assert dict(zip(head, line, strict=True))["left_usd"] == "0.000060000"
