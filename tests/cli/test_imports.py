"""`callboard import`, and the reports that distinguish imported calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.session_files import Claude, usage, write

from .running import call


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """A folder with one session, which has a line that is not JSON."""
    session = Claude()
    write(session.file(tmp_path / "sessions"), [session.prompt(), session.reply(1, usage(0, 1000)), "{\n"])
    return tmp_path / "sessions"


def test_an_import_reports_calls_models_and_unread_lines(sessions: Path, home: Path) -> None:
    """A dry run needs no trace and makes none. Sums name their imported part, which can be compared."""
    words = ("import", "claude-code", str(sessions))
    assert "Calls: 1 would be new" in call(*words, "--dry-run", home=home).stdout
    assert not (home / "trace.db").exists()
    done = call(*words, home=home, exits=0)
    assert "Calls: 1 new, 0 known, 0 corrected. Unread: 1." in done.stdout
    assert "claude-sonnet-4-5-20250929" in done.stdout
    assert "line 3: not valid JSON" in done.stdout.replace("\n", " ")
    again = call(*words, home=home)
    assert "1 file (1 unchanged) of claude-code." in again.stdout
    assert "Calls: 0 new, 0 known" in again.stdout
    assert "Imported from claude-code: 1 call, $0.015000." in call("cost", home=home).stdout
    assert "claude-code" in call("cost", "--by", "source", home=home).stdout
    assert "/src/shop" in call("cost", "--by", "project", "--source", "claude-code", home=home).stdout
    assert "No matching calls." in call("cost", "--source", "callboard", home=home).stdout
    (session,) = map(json.loads, call("sessions", "--json", home=home).stdout.splitlines())
    assert session["tags"]["origin"] == "claude-code"
    compared = ("--source", "claude-code", "--as-model", "anthropic:claude-haiku-4-5")
    done = call("reprice", *compared, home=home, exits=0)
    assert "$0.015000  $0.005" in done.stdout
    assert "Nothing was changed." in done.stdout


def test_json_has_a_line_for_each_model(sessions: Path, home: Path) -> None:
    row = json.loads(call("import", "claude-code", str(sessions), "--json", home=home).stdout)
    assert (row["model"], row["calls"], row["output_tokens"]) == ("anthropic:claude-sonnet-4-5-20250929", 1, 1000)


def test_wrong_arguments_are_refused(home: Path, tmp_path: Path) -> None:
    for words, said in (
        (("nothing",), "there is no source 'nothing'"),
        (("litellm",), "litellm has no default place. Name a file or a folder"),
        (("claude-code", "--watch", "--dry-run"), "use --watch or --dry-run, not both"),
    ):
        assert said in call("import", *words, home=home, exits=2).stderr
    missing = call("import", "claude-code", str(tmp_path / "nothing"), home=home, exits=1)
    assert "no such file or folder" in missing.stdout
