"""The first word of a command line: a command, a question, `help`, or a mistake."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from callboard.engine.cli import main
from callboard.engine.cli.command_line import COMMANDS, GROUPS
from callboard.engine.cli.completion import SCRIPTS, in_words, proposals, without_break
from tests.support.depth import first_is_quick

from .running import MODELS, call, environment

QUESTIONS = (
    *(("What?",), ("tell me",), ("多少？",), ("--", "tell me"), ("tell me", "-m", "first")),
    *(("What is a monad?",), ("  tell\nme ",), ("tell me", "more")),
)


@pytest.mark.parametrize("words", first_is_quick(QUESTIONS, "more questions", quick=5), ids=repr)
def test_a_question_in_place_of_a_command_is_sent(talkative: Path, words: tuple[str, ...]) -> None:
    """The reply is that of `callboard ask` with the same options and the same pipe, and the trace has the call."""
    piped = "a long text\n" if words == ("tell me",) else ""
    done = call(*words, home=talkative, said=piped, exits=0)
    assert (done.stdout, done.stderr) == (call("ask", *words, home=talkative, said=piped, exits=0).stdout, "")
    assert piped in done.stdout
    rows = [msgspec.json.decode(line) for line in call("traces", "--json", home=talkative).stdout.splitlines()]
    assert [row["model"] for row in rows] == ["one:parrot"] * 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trces",), "unknown command 'trces': did you mean traces?"),
        (("trces", "--json"), "unknown command 'trces': did you mean traces?"),
        (("trces "), "unknown command 'trces ': did you mean traces?"),
        (("xyzzy",), "unknown command 'xyzzy': `callboard help` lists all commands"),
        (("What", "is", "it"), "did you mean chat, or a question in quotes?"),
        (("help", "trces"), "unknown command 'trces': did you mean traces?"),
        (("help", "What is it?"), "unknown command 'What is it?'"),
    ],
)
def test_a_misspelt_command_is_never_sent_to_a_model(
    words: tuple[str, ...] | str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_help_of_a_command_is_its_option_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to stdout with exit code 0. A command without a description shows its line of the list."""
    for words, same in {
        ("help",): ("--help",),
        ("help", "traces"): ("traces", "--help"),
        ("help", "collections", "add"): ("collections", "add", "--help"),
        ("help", "help"): ("--help",),
        ("help", "--help"): ("--help",),
        ("help", "sql", "select 1"): ("sql", "--help"),
    }.items():
        assert printed(*words, capsys=capsys) == printed(*same, capsys=capsys)
    assert "Show recorded calls with tokens, latency and cost." in printed("help", "traces", capsys=capsys)


def test_help_lists_the_commands_in_their_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is one line of at most 80 characters, in the order of the table."""
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("--help", capsys=capsys)
    listed = [block.splitlines() for block in text.split("\n\n") if re.match(r"[A-Z].*:\n", block)]
    found = {head.removesuffix(":"): [line.split(maxsplit=1) for line in lines] for head, *lines in listed}
    del found["Options"]
    groups = {title: [[name, entry.help] for name, entry in group.items()] for title, group in GROUPS.items()}
    assert found == groups


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    nested = [
        (name, command)
        for name in ("background", "batch", "collections", "keys", "templates")
        for command in proposals(["callboard", name, ""])
        if not command.startswith("-")
    ]
    assert len(nested) > 10
    for words in (*((name,) for name in COMMANDS), *nested):
        lines = printed(*words, "--help", capsys=capsys).splitlines()
        assert [line for line in lines if len(line) > 80] == [], words


def test_each_line_of_help_starts_with_a_verb() -> None:
    """The verb has a capital letter, and the line has no full stop."""
    for name, entry in COMMANDS.items():
        first = entry.help.split()[0]
        assert first.istitle(), name
        assert first not in ("A", "An", "The", "What", "Which", "Many", "One", "Texts", "Prompts"), name
        assert not entry.help.endswith("."), name


# -- Completion: the proposals at each place, and scripts for the shells.


@pytest.fixture
def known(traced: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of this process, with models, a session, a template and a key."""
    (traced / "models.yaml").write_text(MODELS)
    (traced / "templates").mkdir()
    (traced / "templates" / "translate.yaml").write_text("prompt: $input")
    call("keys", "set", "MY_KEY", home=traced, said="sk-1", exits=0)
    monkeypatch.setenv("CALLBOARD_HOME", str(traced))
    return traced


def test_valid_words_are_proposed(known: Path) -> None:
    """Each proposal starts with the typed text. Where any text is valid, the command proposes nothing."""
    for line, some in {
        "": {"ask", "chat", "templates"},
        "tra": {"traces"},
        "templates ": {"list", "show", "edit", "path"},
        "traces --st": {"--status", "--store"},
        "traces --status ": {"completed", "failed"},
        "traces --status=fa": {"--status=failed"},
        "traces --json --session ": {"ses_under_test"},
        "traces --session --status --js": {"--json"},
        "sessions ses_": {"ses_under_test"},
        "ask -m fi": {"first"},
        "ask --model one:": {"one:parrot"},
        "ask -t ": {"translate"},
        "templates show t": {"translate"},
        "keys set open": {"openai"},
        "keys remove MY": {"MY_KEY"},
        "ask -o temperature 0.5 -m se": {"second"},
        "-": {"--help", "--version"},
        "hel": {"help"},
        "help trac": {"traces"},
        "help collections ": {"add"},
        **{f"{command} --he": {"--help"} for command in COMMANDS},
    }.items():
        words = in_words(f"callboard {line}")
        found = proposals(words)
        assert some <= set(found)
        assert all(each.startswith(words[-1]) for each in found)
    for line in ("ask -s ", "ask -o temperature ", "nonsense ", "traces --limit "):
        assert proposals(in_words(f"callboard {line}")) == []


def test_without_a_home_there_is_nothing_to_propose(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(home))
    assert proposals(["callboard", "traces", "--session", ""]) == []
    (home / "models.yaml").write_text("adapters: [")
    assert proposals(["callboard", "ask", "-m", ""]) == []
    assert [path.name for path in home.iterdir()] == ["models.yaml"]


def test_a_value_that_a_shell_could_run_is_not_proposed(known: Path) -> None:
    (known / "models.yaml").write_text(MODELS.replace("[first]", '[first, "fi;rm -rf x", "fi$(x)", "fi x"]'))
    assert proposals(["callboard", "ask", "-m", "fi"]) == ["first"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("callboard", ["callboard"]),
        ("callboard ", ["callboard", ""]),
        ('callboard ask "two wo', ["callboard", "ask", "two wo"]),
        ("callboard ask it's", ["callboard", "ask", "its"]),
        ("", [""]),
    ],
)
def test_an_unfinished_line_is_read_as_words(line: str, words: list[str]) -> None:
    assert in_words(line) == words


def test_bash_gets_the_part_after_its_word_break() -> None:
    """Bash ends a word at a colon, so the proposal leaves out the part before it."""
    assert without_break("one:parrot", "one:p", " \t\n:=") == "parrot"
    assert without_break("one:parrot", "one:p", " \t\n") == "one:parrot"
    assert without_break("one:parrot", "on", " \t\n:=") == "one:parrot"


ASK = {
    "bash": """
        eval "$(callboard completion bash)"
        ask() { COMP_LINE="$1" COMP_POINT=${#1}; _callboard_completion; printf '%s\\n' "${COMPREPLY[*]}"; }
        ask 'callboard templates s'; ask 'callboard ask -m one:'; ask 'callboard traces --session '
    """,
    "fish": """
        callboard completion fish | source
        for line in 'callboard templates s' 'callboard ask -m one:' 'callboard traces --session '
            echo (complete -C $line)
        end
    """,
    "zsh": """
        compdef() { :; }; compadd() { shift; print -r -- "$@"; }; _files() { print; }
        eval "$(callboard completion zsh)"
        for line in 'templates s' 'ask -m one:' 'traces --session '; do
            words=(callboard "${(@s: :)line}") CURRENT=${#words}; _callboard
        done
    """,
}


def test_words_of_a_shell_are_read_unchanged(known: Path) -> None:
    """zsh and fish pass the program first and the unfinished word last. That word may be an option or empty."""
    assert all("callboard completion --words " in SCRIPTS[shell] for shell in ("zsh", "fish"))
    assert not any("--words --" in script for script in SCRIPTS.values()), (
        "the parser would remove the second option"
    )

    def proposed(*words: str) -> list[str]:
        return call("completion", "--words", *words, home=known, exits=0).stdout.splitlines()

    assert proposed("callboard", "traces", "--session", "") == ["ses_under_test"]
    assert "--status" in proposed("callboard", "traces", "--st")
    assert "templates" in proposed()


@pytest.mark.parametrize("shell", first_is_quick(sorted(SCRIPTS), "the shells themselves"))
def test_a_shell_runs_its_script(shell: str, known: Path, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "callboard"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m callboard "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{environment(known)['PATH']}"
    place = {"env": {**environment(known), "PATH": path}, "cwd": Path(__file__).parents[2]}
    done = subprocess.run([shell, "-c", ASK[shell]], **place, capture_output=True, text=True, check=True)
    model = "parrot" if shell == "bash" else "one:parrot"
    assert (done.stdout.split(), done.stderr) == (["show", model, "ses_under_test"], "")
