"""`callboard models`: the models that can be used here, and the data about any model."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import msgspec
import pytest

from callboard.engine import get_latest_model, get_model_info, list_models
from callboard.engine.cli import main
from callboard.engine.models.catalogue import FILE_NAME, convert, decode, encode
from callboard.tracestore.home import SNAPSHOT_NAME
from callboard.tracestore.prices import files as price_snapshot
from tests.support.present import present


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["models", *arguments]) == 0
    return capsys.readouterr().out


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    found = [json.loads(line) for line in output(capsys, *arguments, "--json").splitlines()]
    return {row["id"]: row for row in found}


def test_models_lists_the_models_that_can_be_called(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys).splitlines()
    mine = next(line for line in lines if line.startswith("work:claude-opus-4-6 "))
    assert " ".join(mine.split()[1:]) == "1,000,000 128,000 5 25 tools, vision, reasoning, schema mine"
    locked = next(line for line in lines if line.startswith("locked:gpt-5.2 "))
    assert locked.rstrip().endswith("not configured, NO_SUCH_KEY is not set")
    assert any(line.startswith("work:claude-sonnet-5-5 ") for line in lines)
    assert not any(line.startswith("locked:gpt-6") for line in lines), "the key of this model is not set"
    assert re.search(r"as known on \d{4}-\d\d-\d\d\. Prices apply to a small prompt\.", lines[-1])


def test_an_embedding_model_calls_no_tools(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The adapter also has models that call tools."""
    (here / "models.yaml").unlink()
    found = rows(capsys)
    assert found["local-chat:smollm2"]["supports_structured_output"] is True
    assert found["local-embed:smollm2"]["supports_structured_output"] is False


def test_a_provider_and_a_capability_narrow_the_list(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--all` lists every known model. An empty list is a message, and not an empty table."""
    assert set(rows(capsys, "--provider", "locked")) == {"locked:gpt-5.2"}
    thinking = rows(capsys, "--provider", "openai", "--capability", "reasoning")
    assert "openai:gpt-6.2-sol" in thinking, "without an adapter of that name, the rows come from the catalogue"
    assert "openai:gpt-4o" not in thinking
    assert all(row["supports_reasoning"] for row in thinking.values())
    everything = rows(capsys, "--all")
    assert len(everything) > 1000
    unknown = everything["groq:llama-3.3-70b-versatile"]
    assert (unknown["supports_tools"], unknown["input_cost_per_million"]) == (None, "0.59")
    assert output(capsys, "--provider", "nobody").startswith("No matching models.")


def test_a_models_name_shows_all_its_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mine", "claude-opus-4-6", "work:claude-opus-4-6", "work:claude-opus-4-6-20260205"):
        text = output(capsys, name)
        assert text.startswith("work:claude-opus-4-6 (Claude Opus 4.6)\n")
        for part in ("1,000,000 tokens", "$5 for a million tokens in, $25 out", "2026-02-05"):
            assert part in text


def test_a_model_without_an_adapter_is_shown_from_the_catalogue(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "gemini-3-pro-preview")
    assert text.startswith("gemini:gemini-3-pro-preview (Gemini 3 Pro (Preview))\n")
    assert "not configured here" in output(capsys, "gemini-4-argon")
    assert "retires on 2026-03-09" in text
    text = output(capsys, "groq:llama-3.3-70b-versatile")
    assert "not known   tools, vision, reasoning, schema" in text


def test_an_unknown_model_is_an_error_with_the_nearest_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "claud-opus-4-6"]) == 1
    error = capsys.readouterr().err
    assert "unknown model 'claud-opus-4-6': did you mean" in error
    assert "claude-opus-4-6" in error
    assert main(["models", "--capability", "visoin"]) == 1
    assert "did you mean 'vision'?" in capsys.readouterr().err


def test_csv_has_every_field_in_every_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.DictReader(io.StringIO(output(capsys, "--csv"))))
    mine = next(row for row in table if row["id"] == "work:claude-opus-4-6")
    assert (mine["context_window"], mine["input_cost_per_million"]) == ("1000000", "5")
    assert json.loads(mine["aliases"]) == ["mine"]
    assert mine["retires"] == ""


# -- `callboard models update` reads newer data about models, with its source.

LIST = {
    "sample_spec": {"mode": "one of: chat, …", "litellm_provider": "one of …", "max_input_tokens": "max input"},
    "gpt-9": {
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": 2_000_000,
        "max_output_tokens": 99_000,
        "supports_function_calling": True,
        "supports_vision": False,
        "deprecation_date": "2099-01-31",
    },
    "groq/llama-3.3-70b-versatile": {
        "litellm_provider": "groq",
        "mode": "chat",
        "max_output_tokens": 32_768,
        "supports_function_calling": True,
        "supports_response_schema": False,
    },
    "newcomer/m-1": {"litellm_provider": "newcomer", "mode": "responses", "max_input_tokens": -1},
    "gpt-5.2": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 7, "supports_vision": False},
    "dall-e-9": {"litellm_provider": "openai", "mode": "image_generation"},
    "broken": {"litellm_provider": 5, "mode": "chat"},
}


@pytest.fixture
def updated(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of an update. The home folder has been updated from it."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    file = tmp_path / "list.json"
    file.write_text(json.dumps(LIST))
    assert main(["models", "update", "--from", str(file)]) == 0
    return file


def test_a_new_model_is_known_with_its_source_and_date(updated: Path, home: Path) -> None:
    """Capabilities that are not in the list are unknown. Models that do not chat are left out."""
    info = get_model_info("openai:gpt-9")
    assert (info.context_window, info.max_output, info.retires) == (2_000_000, 99_000, "2099-01-31")
    assert (info.supports_tools, info.supports_vision, info.supports_reasoning) == (True, False, None)
    assert info.source == f"LiteLLM, {updated}"
    assert len(info.date) == len("2026-11-22")
    assert "gpt-9" in [each.id for each in list_models("openai")]
    assert present(get_model_info("newcomer:m-1")).context_window is None
    known = decode((home / FILE_NAME).read_bytes(), "x")
    ids = ["groq:llama-3.3-70b-versatile", "newcomer:m-1", "openai:gpt-5.2", "openai:gpt-9"]
    assert [model.id for model in known.models] == ids
    assert decode(encode(known), "x") == known
    assert convert(LIST, source=known.source, day=known.date) == known


def test_a_model_of_a_price_list_gets_its_capabilities(updated: Path) -> None:
    """The price list gives a name and a price."""
    info = get_model_info("groq:llama-3.3-70b-versatile")
    assert (info.supports_tools, info.supports_structured_output, info.max_output) == (True, False, 32_768)
    assert info.display_name != info.id
    assert info.input_cost_per_million is not None
    assert info in list_models("groq", "tools")
    tabled = get_model_info("gpt-5.2")
    assert (tabled.context_window != 7, tabled.supports_vision) == (True, True)
    assert present(get_latest_model("openai")).id != "gpt-9"


def test_the_difference_is_shown_and_a_dry_run_changes_nothing(
    updated: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output lists new, removed and changed models."""
    before = (home / FILE_NAME).read_bytes()
    changed = {name: facts for name, facts in LIST.items() if name != "newcomer/m-1"}
    changed["gpt-9"] = {**LIST["gpt-9"], "supports_vision": True}
    changed["gpt-10"] = LIST["gpt-9"]
    updated.write_text(json.dumps(changed))
    capsys.readouterr()
    assert main(["models", "update", "--from", str(updated), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "new: openai:gpt-10 2,000,000 tokens; tools",
        "gone: newcomer:m-1 ? tokens; other features unknown",
        "changed: openai:gpt-9 2,000,000 tokens; tools, vision",
        "Nothing was changed.",
    ]
    assert (home / FILE_NAME).read_bytes() == before
    assert main(["models", "update", "--from", str(updated)]) == 0
    assert get_model_info("openai:gpt-10") is not None
    assert main(["models", "update", "--shipped"]) == 0
    assert get_model_info("openai:gpt-10") is None
    assert not (home / FILE_NAME).exists()


def test_a_file_in_another_format_changes_nothing(
    updated: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line with the source, and the exit code is 2."""
    before = (home / FILE_NAME).read_bytes()
    for content in (b"[]", b"{}", b'{"format": 9}', b"no json", b'{"a": {"mode": "chat"}}'):
        updated.write_bytes(content)
        assert main(["models", "update", "--from", str(updated)]) == 2
        assert str(updated) in capsys.readouterr().err
        assert (home / FILE_NAME).read_bytes() == before
    assert main(["models", "update", "--from", "http://x.test/list.json"]) == 2
    assert "an https address" in capsys.readouterr().err
    (home / FILE_NAME).write_text("{")
    assert main(["models", "--all"]) == 2
    assert FILE_NAME in capsys.readouterr().err


# -- `callboard prices` lists and explains prices, and accepts only valid updates.


@pytest.fixture
def wide_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    return tmp_path


def new_prices(path: Path, rate: int = 1000) -> Path:
    models = (price_snapshot.SnapshotModel("p:m", ({"input": rate, "output": 0},)),)
    old = price_snapshot.read(price_snapshot.SHIPPED)
    path.write_bytes(price_snapshot.encode(msgspec.structs.replace(old, models=models, source="mine")))
    return path


def test_explain_names_the_rows_the_rule_and_the_bill(wide_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the chosen row, the other rows with reasons, and each product."""
    (wide_home / "models.yaml").write_text("adapters: {work: {type: anthropic, api_key: k}}")
    code = main(["prices", "explain", "work:claude-sonnet-4-5-20250929", "--cache-read", "5000"])
    output = capsys.readouterr().out
    assert code == 0
    assert "in price lists anthropic:claude-sonnet-4-5-20250929" in output
    assert "for more input tokens" in output
    assert "alias anthropic:claude-sonnet-4-5* is anthropic:claude-sonnet-4-5): taken" in output
    assert "cache_read: 5000 x 300000 pico-USD = 1500000000 pico-USD" in output
    assert "$0.019500000" in output


def test_a_model_without_a_price_is_unpriced(wide_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, so that a script can detect it."""
    assert main(["prices", "explain", "nobody:x"]) == 1
    assert "Unpriced: no price for nobody:x." in capsys.readouterr().out
    assert main(["prices", "show", "nobody:x"]) == 1


def test_list_and_show_include_the_users_rows(wide_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user's own rows come before the published ones."""
    (wide_home / "prices.yaml").write_text("prices: [{model: 'openai:*', input: 7}]")
    assert main(["prices", "show", "openai:gpt-5"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("openai:* (your own; pattern)") < shown.index("openai:gpt-5 (published; this name)")
    assert main(["prices", "list", "openai:*"]) == 0
    assert "openai:* input 7 $/M" in capsys.readouterr().out


def test_use_prices_new_calls_by_another_file_and_keeps_the_previous_one(
    wide_home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file takes precedence over the published prices."""
    (wide_home / "prices.yaml").write_text("prices: [{model: 'openai:*', input: 7}]")
    mine = tmp_path_factory.mktemp("mine") / "mine.yaml"
    mine.write_text("{label: mine, prices: [{model: 'a:b', input: 3}]}")
    assert main(["prices", "use", str(mine)]) == 0
    assert "Engines that start from now on price calls with mine (" in capsys.readouterr().out
    assert (wide_home / "prices.yaml").read_text() == mine.read_text()
    assert "openai:*" in (wide_home / "prices.yaml.before").read_text()
    assert main(["prices", "explain", "a:b"]) == 1, "the user's row has no output rate"
    assert main(["prices", "explain", "openai:gpt-5"]) == 0, "published rows price the other models"
    mine.write_text("prices: 3")
    assert main(["prices", "use", str(mine)]) == 2
    assert "a:b" in (wide_home / "prices.yaml").read_text()
    assert main(["prices", "use", "--published"]) == 0
    assert not (wide_home / "prices.yaml").exists()


def test_update_shows_the_difference_and_stores_valid_prices(
    wide_home: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run stores nothing. An update applies the new prices, and `--shipped` removes them."""
    source = new_prices(tmp_path_factory.mktemp("new") / "new.json")
    assert main(["prices", "update", "--from", str(source), "--dry-run"]) == 0
    assert "new: p:m input 0.001, output 0 $/M" in capsys.readouterr().out
    assert not (wide_home / SNAPSHOT_NAME).exists()
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
    wide_home: Path, tmp_path_factory: pytest.TempPathFactory, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, and the current prices stay."""
    kept = new_prices(wide_home / SNAPSHOT_NAME).read_bytes()
    source = tmp_path_factory.mktemp("bad") / "bad.json"
    source.write_bytes(content)
    assert main(["prices", "update", "--from", str(source)]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert (wide_home / SNAPSHOT_NAME).read_bytes() == kept


def test_prices_come_over_https_only(wide_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain http is refused before a request is sent."""
    assert main(["prices", "update", "--from", "http://127.0.0.1:9/prices.json"]) == 2
    assert "an https address" in capsys.readouterr().err
