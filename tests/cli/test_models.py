"""`callboard models`: what can be asked for here, and what is known of any model."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from callboard.engine.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    (tmp_path / "models.yaml").write_text(
        """
adapters:
  work: {type: anthropic, api_key: k}
  locked: {type: openai, api_key_env: NO_SUCH_KEY}
models:
  work:claude-opus-4-6: {adapter: work, aliases: [mine]}
  locked:gpt-5.2: {adapter: locked}
"""
    )
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["models", *arguments]) == 0
    return capsys.readouterr().out


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    found = [json.loads(line) for line in told(capsys, *arguments, "--json").splitlines()]
    return {row["id"]: row for row in found}


def test_it_lists_what_can_be_asked_for_here(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys).splitlines()
    mine = next(line for line in lines if line.startswith("work:claude-opus-4-6 "))
    assert " ".join(mine.split()[1:]) == "1,000,000 128,000 5 25 tools, vision, reasoning, schema mine"
    locked = next(line for line in lines if line.startswith("locked:gpt-5.2 "))
    assert locked.rstrip().endswith("not configured, NO_SUCH_KEY is not set")
    assert any(line.startswith("work:claude-sonnet-5-5 ") for line in lines)
    assert not any(line.startswith("locked:gpt-6") for line in lines), "there is no key for it"
    assert re.search(r"as known on \d{4}-\d\d-\d\d\. Prices are of a small prompt\.", lines[-1])


def test_a_model_that_embeds_calls_no_tools(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else its adapter's models can do."""
    (home / "models.yaml").unlink()
    found = rows(capsys)
    assert found["local-chat:smollm2"]["supports_structured_output"] is True
    assert found["local-embed:smollm2"]["supports_structured_output"] is False


def test_it_is_narrowed_by_provider_and_by_capability(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(rows(capsys, "--provider", "locked")) == {"locked:gpt-5.2"}
    thinking = rows(capsys, "--provider", "openai", "--capability", "reasoning")
    assert "openai:gpt-6.2-sol" in thinking, "no adapter is called so: the catalogue's"
    assert "openai:gpt-4o" not in thinking
    assert all(row["supports_reasoning"] for row in thinking.values())


def test_all_are_all_that_are_known(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = rows(capsys, "--all")
    assert len(everything) > 1000
    unknown = everything["groq:llama-3.3-70b-versatile"]
    assert unknown["supports_tools"] is None
    assert unknown["input_cost_per_million"] == "0.59"


@pytest.mark.parametrize(
    "name", ["mine", "claude-opus-4-6", "work:claude-opus-4-6", "work:claude-opus-4-6-20260205"]
)
def test_one_model_is_told_in_full(home: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = told(capsys, name)
    assert text.startswith("work:claude-opus-4-6 (Claude Opus 4.6)\n")
    assert "1,000,000 tokens" in text
    assert "$5 for a million tokens in, $25 out" in text
    assert "2026-02-05" in text


def test_a_model_that_isnt_configured_is_told_as_it_is_known(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, "gemini-3-pro-preview")
    assert text.startswith("gemini:gemini-3-pro-preview (Gemini 3 Pro (Preview))\n")
    assert "not configured here" in told(capsys, "gemini-4-argon")
    assert "gone from 2026-03-09 on" in text
    text = told(capsys, "groq:llama-3.3-70b-versatile")
    assert "not known   tools, vision, reasoning, schema" in text


def test_a_model_that_nobody_knows_is_told_with_the_nearest(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "claud-opus-4-6"]) == 1
    error = capsys.readouterr().err
    assert "nothing is known of a model 'claud-opus-4-6': did you mean" in error
    assert "claude-opus-4-6" in error
    assert main(["models", "--capability", "visoin"]) == 1
    assert "did you mean 'vision'?" in capsys.readouterr().err


def test_no_models_are_no_empty_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--provider", "nobody").startswith("No such models.")


def test_csv_has_every_field_in_every_row(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.DictReader(io.StringIO(told(capsys, "--csv"))))
    mine = next(row for row in table if row["id"] == "work:claude-opus-4-6")
    assert (mine["context_window"], mine["input_cost_per_million"]) == ("1000000", "5")
    assert json.loads(mine["aliases"]) == ["mine"]
    assert mine["retires"] == ""
