"""`callboard models update`: newer knowledge of models, and where it is from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callboard.engine import get_latest_model, get_model_info, list_models
from callboard.engine.cli import main
from callboard.engine.models.known_models import FILE_NAME, convert, decode, encode
from tests.support.present import present

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
    """A home folder after the update from a file, which the fixture returns."""
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    file = tmp_path / "list.json"
    file.write_text(json.dumps(LIST))
    assert main(["models", "update", "--from", str(file)]) == 0
    return file


def test_a_new_model_is_known_with_its_source_and_date(updated: Path) -> None:
    """With what it can do; what the list doesn't say is not known."""
    info = get_model_info("openai:gpt-9")
    assert info is not None
    assert (info.context_window, info.max_output, info.retires) == (2_000_000, 99_000, "2099-01-31")
    assert (info.supports_tools, info.supports_vision, info.supports_reasoning) == (True, False, None)
    assert info.source == f"LiteLLM, {updated}"
    assert len(info.date) == len("2026-11-22")
    assert "gpt-9" in [each.id for each in list_models("openai")]
    newcomer = get_model_info("newcomer:m-1")
    assert present(newcomer).context_window is None


def test_a_model_of_a_price_list_gets_what_it_can_do(updated: Path) -> None:
    """Beside its name and its price."""
    info = get_model_info("groq:llama-3.3-70b-versatile")
    assert info is not None
    assert (info.supports_tools, info.supports_structured_output, info.max_output) == (True, False, 32_768)
    assert info.display_name != info.id
    assert info.input_cost_per_million is not None
    assert info in list_models("groq", "tools")


def test_an_adapters_own_table_stands_before_it(updated: Path) -> None:
    """It is what the adapter goes by; and what nobody has judged is never the one to take."""
    info = get_model_info("gpt-5.2")
    assert info is not None
    assert info.context_window != 7
    assert info.supports_vision is True
    latest = get_latest_model("openai")
    assert present(latest).id != "gpt-9"


def test_what_does_not_chat_or_is_no_model_is_left_out(updated: Path, home: Path) -> None:
    """And the file has each model once, sorted."""
    known = decode((home / FILE_NAME).read_bytes(), "x")
    ids = [model.id for model in known.models]
    assert ids == ["groq:llama-3.3-70b-versatile", "newcomer:m-1", "openai:gpt-5.2", "openai:gpt-9"]
    assert decode(encode(known), "x") == known
    assert convert(LIST, source=known.source, day=known.date) == known


def test_the_difference_is_shown_and_a_dry_run_changes_nothing(
    updated: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By model: new, gone, changed."""
    before = (home / FILE_NAME).read_bytes()
    changed = {name: facts for name, facts in LIST.items() if name != "newcomer/m-1"}
    changed["gpt-9"] = {**LIST["gpt-9"], "supports_vision": True}
    changed["gpt-10"] = LIST["gpt-9"]
    updated.write_text(json.dumps(changed))
    capsys.readouterr()
    assert main(["models", "update", "--from", str(updated), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "new: openai:gpt-10 2,000,000 tokens; tools",
        "gone: newcomer:m-1 ? tokens; no more known",
        "changed: openai:gpt-9 2,000,000 tokens; tools, vision",
        "Nothing was changed.",
    ]
    assert (home / FILE_NAME).read_bytes() == before
    assert main(["models", "update", "--from", str(updated)]) == 0
    assert get_model_info("openai:gpt-10") is not None
    assert main(["models", "update", "--shipped"]) == 0
    assert get_model_info("openai:gpt-10") is None
    assert not (home / FILE_NAME).exists()


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"format": 9}', b"no json", b'{"a": {"mode": "chat"}}'])
def test_what_is_no_such_list_changes_nothing(
    updated: Path, home: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Badly asked, in one line that names the source."""
    before = (home / FILE_NAME).read_bytes()
    updated.write_bytes(content)
    assert main(["models", "update", "--from", str(updated)]) == 2
    assert str(updated) in capsys.readouterr().err
    assert (home / FILE_NAME).read_bytes() == before
    assert main(["models", "update", "--from", "http://x.test/list.json"]) == 2
    assert "https only" in capsys.readouterr().err


def test_a_broken_file_in_the_home_folder_is_named(
    updated: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of the prices is."""
    (home / FILE_NAME).write_text("{")
    assert main(["models", "--all"]) == 2
    assert FILE_NAME in capsys.readouterr().err
