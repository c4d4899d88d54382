"""The first word of a command line: a command, a question, `help`, or a mistake."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from callboard.engine.cli import main
from callboard.engine.cli.command_line import COMMANDS, GROUPS
from callboard.engine.cli.completion import proposals

from .running import call

QUESTIONS = (
    *(("What is a monad?",), ("What?",), ("tell me",), ("多少？",), ("--", "tell me")),
    *(("tell me", "-m", "first"), ("  tell\nme ",), ("tell me", "more")),
)


@pytest.mark.parametrize("words", QUESTIONS, ids=repr)
def test_a_question_in_place_of_a_command_is_asked(talkative: Path, words: tuple[str, ...]) -> None:
    """It gets the reply, the options and the trace of `callboard ask`."""
    done = call(*words, home=talkative, exits=0)
    assert (done.stdout, done.stderr) == (call("ask", *words, home=talkative, exits=0).stdout, "")
    rows = [msgspec.json.decode(line) for line in call("traces", "--json", home=talkative).stdout.splitlines()]
    assert [row["model"] for row in rows] == ["one:parrot"] * 2


def test_a_question_takes_what_comes_through_a_pipe(talkative: Path) -> None:
    """The text of the pipe stands before the question."""
    said = call("sum it up", home=talkative, said="a long text\n", exits=0).stdout
    assert said == call("ask", "sum it up", home=talkative, said="a long text\n", exits=0).stdout
    assert "a long text" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trces",), "there is no command 'trces': did you mean traces?"),
        (("trces", "--json"), "there is no command 'trces': did you mean traces?"),
        (("trces "), "there is no command 'trces ': did you mean traces?"),
        (("xyzzy",), "there is no command 'xyzzy': `callboard help` lists them"),
        (("What", "is", "it"), "did you mean chat, or a question in quotes?"),
        (("help", "trces"), "there is no command 'trces': did you mean traces?"),
        (("help", "What is it?"), "there is no command 'What is it?'"),
    ],
)
def test_a_misspelt_command_is_never_sent_to_a_model(
    words: tuple[str, ...] | str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It gets a suggestion, and the exit code is that of wrong arguments."""
    with pytest.raises(SystemExit) as ended:
        main((words,) if isinstance(words, str) else words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def printed(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (("help",), ("--help",)),
        (("help", "traces"), ("traces", "--help")),
        (("help", "collections", "add"), ("collections", "add", "--help")),
        (("help", "help"), ("--help",)),
        (("help", "--help"), ("--help",)),
        (("help", "sql", "select 1"), ("sql", "--help")),
    ],
    ids=repr,
)
def test_help_of_a_command_is_its_option_help(
    words: tuple[str, ...], same: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to stdout, and the exit code is 0."""
    assert printed(*words, capsys=capsys) == printed(*same, capsys=capsys)


def test_help_lists_the_commands_in_their_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command stands on one line of 80 characters, in the order of the table."""
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("--help", capsys=capsys)
    listed = [block.splitlines() for block in text.split("\n\n") if re.match(r"[A-Z].*:\n", block)]
    found = {head.removesuffix(":"): [line.split(maxsplit=1) for line in lines] for head, *lines in listed}
    del found["Options"]
    assert found == {
        title: [[name, entry.help] for name, entry in group.items()] for title, group in GROUPS.items()
    }


def test_each_line_of_help_begins_with_a_verb() -> None:
    """A capital letter begins it, and neither an article nor a full stop is in its place."""
    for name, entry in COMMANDS.items():
        first = entry.help.split()[0]
        assert first.istitle(), name
        assert first not in ("A", "An", "The", "What", "Which", "Many", "One", "Texts", "Prompts"), name
        assert not entry.help.endswith("."), name


def test_help_of_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A command without a description of its own shows its line of the list."""
    assert "Show recorded calls with tokens, latency and cost." in printed("help", "traces", capsys=capsys)


def test_help_is_completed_with_the_commands() -> None:
    """Tab offers `help`, and behind it what stands behind nothing."""
    assert proposals(["callboard", "hel"]) == ["help"]
    assert proposals(["callboard", "help", "trac"]) == ["traces"]
    assert "add" in proposals(["callboard", "help", "collections", ""])
