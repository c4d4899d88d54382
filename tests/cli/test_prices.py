"""`callboard prices`: lists, says why, and takes newer prices only when they are valid."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.engine.cli import main
from callboard.tracestore.prices import snapshot as price_snapshot
from callboard.tracestore.prices.home import SNAPSHOT_NAME


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path


def new_prices(path: Path, rate: int = 1000) -> Path:
    models = (price_snapshot.SnapshotModel("p:m", ({"input": rate, "output": 0},)),)
    old = price_snapshot.read(price_snapshot.SHIPPED)
    path.write_bytes(price_snapshot.encode(msgspec.structs.replace(old, models=models, source="mine")))
    return path


def test_explain_names_the_rows_the_rule_and_the_bill(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which row was taken, which were not and why, and each product."""
    (home / "models.yaml").write_text("adapters: {work: {type: anthropic, api_key: k}}")
    code = main(["prices", "explain", "work:claude-sonnet-4-5-20250929", "--cache-read", "5000"])
    told = capsys.readouterr().out
    assert code == 0
    assert "in price lists anthropic:claude-sonnet-4-5-20250929" in told
    assert "for more input tokens" in told
    assert "alias anthropic:claude-sonnet-4-5* is anthropic:claude-sonnet-4-5): taken" in told
    assert "cache_read: 5000 x 300000 pico-USD = 1500000000 pico-USD" in told
    assert "$0.019500000" in told


def test_what_has_no_price_is_said_to_be_unpriced(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an exit code that a script can see."""
    assert main(["prices", "explain", "nobody:x"]) == 1
    assert "Unpriced: no price for nobody:x." in capsys.readouterr().out
    assert main(["prices", "show", "nobody:x"]) == 1


def test_list_and_show_know_ones_own_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's rows stand before the published ones."""
    (home / "prices.yaml").write_text("prices: [{model: 'openai:*', input: 7}]")
    assert main(["prices", "show", "openai:gpt-5"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("openai:* (your own; pattern)") < shown.index("openai:gpt-5 (published; this name)")
    assert main(["prices", "list", "openai:*"]) == 0
    assert "openai:* input 7 $/M" in capsys.readouterr().out


def test_use_prices_new_calls_by_another_file_and_keeps_the_one_before(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the published prices; a bad file changes nothing, and one goes back to the published prices alone."""
    (home / "prices.yaml").write_text("prices: [{model: 'openai:*', input: 7}]")
    mine = tmp_path_factory.mktemp("mine") / "mine.yaml"
    mine.write_text("{label: mine, prices: [{model: 'a:b', input: 3}]}")
    assert main(["prices", "use", str(mine)]) == 0
    assert "New calls are priced by mine (" in capsys.readouterr().out
    assert (home / "prices.yaml").read_text() == mine.read_text()
    assert "openai:*" in (home / "prices.yaml.before").read_text()
    assert main(["prices", "explain", "a:b"]) == 1, "no output rate"
    assert main(["prices", "explain", "openai:gpt-5"]) == 0, "the published rows are below"
    mine.write_text("prices: 3")
    assert main(["prices", "use", str(mine)]) == 2
    assert "a:b" in (home / "prices.yaml").read_text()
    assert main(["prices", "use", "--published"]) == 0
    assert not (home / "prices.yaml").exists()


def test_update_shows_the_difference_and_keeps_what_is_valid(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run keeps nothing; afterwards the new prices are in force, until one goes back."""
    source = new_prices(tmp_path_factory.mktemp("new") / "new.json")
    assert main(["prices", "update", "--from", str(source), "--dry-run"]) == 0
    assert "new: p:m input 0.001, output 0 $/M" in capsys.readouterr().out
    assert not (home / SNAPSHOT_NAME).exists()
    assert main(["prices", "update", "--from", str(source)]) == 0
    new_prices(source, 2000)
    capsys.readouterr()
    assert main(["prices", "update", "--from", str(source)]) == 0
    assert "changed: p:m input 0.001, output 0 $/M -> input 0.002, output 0 $/M" in capsys.readouterr().out
    assert main(["prices", "explain", "p:m"]) == 0
    assert main(["prices", "update", "--shipped"]) == 0
    assert main(["prices", "explain", "p:m"]) == 1


@pytest.mark.parametrize(
    "content", [b"[1]", b'{"format": 1}', b"<html>", b'[{"id": "p", "models": [{"id": "m"}]}]']
)
def test_a_bad_update_replaces_nothing(
    home: Path, tmp_path_factory: pytest.TempPathFactory, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused with its name, and the prices in force stay."""
    kept = new_prices(home / SNAPSHOT_NAME).read_bytes()
    source = tmp_path_factory.mktemp("bad") / "bad.json"
    source.write_bytes(content)
    assert main(["prices", "update", "--from", str(source)]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert (home / SNAPSHOT_NAME).read_bytes() == kept


def test_prices_come_over_https_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain http is refused before anything is sent."""
    assert main(["prices", "update", "--from", "http://127.0.0.1:9/prices.json"]) == 2
    assert "https only" in capsys.readouterr().err
