"""The end of a command whose output can't be written because the reader has closed the pipe or the disk is
full.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import unicodedata
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from callboard import Engine
from callboard.bus import Cost, CostSource
from callboard.engine import cli
from callboard.engine.cli.sanitize import one_line, sanitize, sanitize_json
from callboard.engine.cli.screen import Flow
from callboard.engine.cli.table import Column, FittingTable, cost_text, difference, figure, percent, usd
from callboard.engine.cli.traces import _stdout
from tests.support.depth import first_is_quick
from tests.support.engines import keeping, registry
from tests.support.scripted import Say

from .running import CHECKOUT, call, call_into, environment

FULL = Path("/dev/full")

COMMANDS = (
    *(
        ("traces",),
        ("traces", "--json"),
        ("traces", "--csv"),
        ("--help",),
        ("logs",),
        ("sessions", "ses_captured"),
    ),
    *(("sql", "--csv", "select * from events"), ("export", "--format", "jsonl", "-"), ("replay",), ("models",)),
    *(("completion", "bash"), ("keys", "path")),
)
OTHERS = (
    *(("traces", "--help"), ("--version",), ("logs", "--json"), ("logs", "-q", "one"), ("sessions",)),
    *(("cost",), ("cost", "--by", "day", "--csv"), ("budget",), ("budget", "--json")),
    *(("stats",), ("errors",), ("sql", "select * from events"), ("export", "--format", "csv", "-")),
    *(("replay", "--json"), ("models", "--all"), ("prices", "list"), ("prices", "show", "openai:gpt-5")),
    *(("doctor", "--offline"), ("plugins",)),
)
each_command = pytest.mark.parametrize(
    "commands", first_is_quick([COMMANDS, OTHERS], "commands that print in the same ways"), ids=["usual", "others"]
)


@pytest.fixture
def captured(home: Path) -> Path:
    """The home folder, with a trace file that stores content."""

    async def work() -> None:
        async with keeping(home / "trace.db", Say("one"), Say("two")) as engine:
            session = engine.session("s:m", session_id="ses_captured")
            await session.send("first")
            await session.send("second")

    anyio.run(work)
    return home


@each_command
def test_a_command_with_a_closed_pipe_exits_with_141_and_no_error_text(
    captured: Path, commands: tuple[tuple[str, ...], ...]
) -> None:
    for words in commands:
        reads, writes = os.pipe()
        os.close(reads)
        try:
            done = call_into(writes, *words, home=captured)
        finally:
            os.close(writes)
        assert (done.returncode, done.stderr) == (141, ""), words


@each_command
@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_a_command_on_a_full_disk_ends_with_one_line(
    captured: Path, commands: tuple[tuple[str, ...], ...]
) -> None:
    """The line names stdout and the reason, and the exit code is 1."""
    for words in commands:
        with FULL.open("w") as full:
            done = call_into(full.fileno(), *words, home=captured)
        assert (done.returncode, done.stderr) == (1, "callboard: stdout: No space left on device\n"), words


@pytest.mark.parametrize("words", first_is_quick([("traces",), ("traces", "--json")], "rows"), ids=" ".join)
def test_a_process_with_a_closed_pipe_exits_with_141(captured: Path, words: tuple[str, ...]) -> None:
    """A new interpreter also prints nothing about the pipe when it ends."""
    reads, writes = os.pipe()
    os.close(reads)
    streams = {"stdin": subprocess.DEVNULL, "stdout": writes, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "callboard", *words]
    done = subprocess.run(command, **streams, env=environment(captured), cwd=CHECKOUT)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", [("ask", "hi"), ("ask", "--no-stream", "hi"), ("chat",)], ids=" ".join)
def test_a_reply_on_a_full_disk_ends_with_one_line(talkative: Path, words: tuple[str, ...]) -> None:
    """A reply that can't be written is a failure."""
    with FULL.open("w") as full:
        done = call_into(full.fileno(), *words, home=talkative, said="hello\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "callboard: stdout: No space left on device"
    assert "Traceback" not in done.stderr


# -- The formats of money, and of text that arrives in pieces.


def test_money_has_the_digits_that_matter_at_its_size() -> None:
    """Small amounts have nine decimals, and large ones have cents."""
    small = {0: "$0", 1: "$0.000000001", -2_500: "-$0.000002500"}
    large = {12_345_678: "$0.012346", 1_234_567_890: "$1.2346", 1_234_567_890_123_456: "$1,234,567.89"}
    for nano, text in {**small, **large}.items():
        assert usd(nano) == text
    assert cost_text(Cost(None, CostSource.UNPRICED, reason="no price")) == "unpriced"
    assert cost_text(Cost(0, CostSource.COMPUTED)) == "$0"
    assert cost_text(None) == "-"


@pytest.mark.parametrize(
    ("before", "after", "changed", "per_cent"),
    [
        (1000, 1000, "no change", ""),
        (0, 5, "+$0.000000005", ""),
        (1000, 800, "-$0.000000200", "-20%"),
        (1000, 1042, "+$0.000000042", "+4.2%"),
        (1000, 3789, "+$0.000002789", "+279%"),
    ],
)
def test_a_difference_has_its_sign(before: int, after: int, changed: str, per_cent: str) -> None:
    """The percentage is empty if the first amount is zero."""
    assert (difference(before, after), percent(before, after)) == (changed, per_cent)


words = st.text(alphabet="ab \n", max_size=60)


@given(words, st.lists(st.integers(0, 60)), st.integers(8, 30))
def test_line_breaks_do_not_cut_words_of_text_in_pieces(text: str, cuts: list[int], width: int) -> None:
    """A word that is cut in two stays one word. Only a line break replaces a space."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    flow = Flow(2, width)
    written = "".join(flow.feed(text[start:end]) for start, end in pairwise(edges))
    assert written.split() == text.split()


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=30), st.integers(8, 30))
def test_lines_of_whole_words_fit_the_width(parts: list[str], width: int) -> None:
    """If the text arrives word by word, no line is longer than the width, and every line is indented."""
    flow = Flow(2, width)
    written = "".join(flow.feed(f"{part} ") for part in parts)
    assert all(len(line) <= width and line.startswith("  ") for line in written.splitlines())


# -- A table in a narrow terminal keeps the most important columns, and names the hidden ones.


def drawn(width: int) -> str:
    rows = [
        ("provider:a-model-with-a-name-of-some-length", "1", "900", "$0.20"),
        ("provider:b", "2", "100", "$0.10"),
    ]
    columns: list[Column[tuple[str, str, str, str]]] = [
        Column("model", itemgetter(0), folds=True, footer="all"),
        figure("attempts", itemgetter(1), may_go=2),
        figure("in", itemgetter(2), may_go=1, footer="1,000"),
        figure("cost", itemgetter(3), footer="$0.30"),
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(FittingTable(columns, rows))
    return out.getvalue()


@pytest.mark.parametrize(
    ("width", "headings", "told"),
    [
        (100, ["model", "attempts", "in", "cost"], ""),
        (46, ["model", "in", "cost"], "(hidden columns: attempts)"),
        (32, ["model", "cost"], "(hidden columns: attempts, in)"),
    ],
)
def test_the_least_important_columns_are_hidden_first(width: int, headings: list[str], told: str) -> None:
    """A column's sum is hidden with the column. A line names the hidden columns."""
    text = drawn(width)
    first, *_, last = text.splitlines()
    assert first.split() == headings
    assert (last == told) if told else ("no room" not in text)
    assert max(map(len, text.splitlines())) <= width
    assert ("1,000" in text) == ("in" in headings)


def test_names_are_folded_before_amounts_are_cut() -> None:
    """A long name takes several lines. Amounts are not cut."""
    text = drawn(32)
    assert "provider:a-model-with-a-nam" not in text
    assert "".join(line[:25].strip() for line in text.splitlines()[2:4]) == (
        "provider:a-model-with-a-name-of-some-length"
    )
    assert "$0.20" in text


# -- Foreign text can't steer a terminal, and sanitized JSON has the same value.

CLI = Path(cli.__file__).parent


def test_no_control_character_and_no_change_of_direction_is_left() -> None:
    """The planes without other characters than ideographs are left out. Only joiners stay invisible."""
    left = sanitize("".join(map(chr, (*range(0x20000), *range(0xE0000, 0xE1000)))))
    assert not BIDI.intersection(map(unicodedata.bidirectional, left))
    categories = [*map(unicodedata.category, left)]
    assert not {"Cs", "Zl", "Zp"}.intersection(categories)
    assert {left[place] for place, category in enumerate(categories) if category == "Cc"} == {"\n", "\t"}
    assert {"\u200c", "\u200d"} <= set(left)
    assert left.encode()


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(st.text())
def test_one_line_returns_a_single_line(text: str) -> None:
    """The input can have several lines. A second call changes nothing."""
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert one_line(line) == sanitize(line) == line


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_sanitized_json_has_the_same_value(value: object) -> None:
    """Characters that `sanitize` removes from text are escaped in JSON."""
    written = sanitize_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value
    assert not [each for each in written if each != "\n" and sanitize(each) == ""]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_an_export_to_a_terminal_is_harmless(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text arrives in pieces of one byte."""
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    data = 'x "ü\u202e\x9b"'.encode()
    out = _stdout(format)  # type: ignore[arg-type]
    for at in range(len(data)):
        out.write(data[at : at + 1])
    assert terminal.getvalue() == ('x "ü\\u202e\\u009b"' if format == "jsonl" else 'x "ü"')


def test_nothing_else_writes_to_the_streams() -> None:
    """Only a few modules call `print` or a stream's `write`. They write no foreign text to a terminal."""
    writing = ("print", "sys.stdout.write", "sys.stderr.write")
    found = {
        path.name
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writing
    }
    # These modules write the end of a progress line, the line end after ^C, a key or a reply for a pipe,
    # and shell words.
    writers = {"command_line.py", "keys.py", "completion.py", "answers.py"}
    assert found == {"sanitize.py", "traces.py", "upkeep.py", *writers}


# -- `callboard logs` shows the latest messages, and searches them.


def talk(path: Path) -> None:
    """A trace with a captured conversation of two turns."""

    async def work() -> None:
        replies = registry(llm=[Say("By the harbour."), Say("Goodbye.")])
        async with Engine(models=replies, store=path, capture_content=True) as engine:
            session = engine.session("llm:m", session_id="ses_talk")
            await session.send("Where is the Café?")
            await session.send("Thank you.")

    anyio.run(work)


def test_messages_are_shown_and_found(home: Path) -> None:
    """The text output is in order, and JSON has the latest message first."""
    talk(home / "trace.db")
    latest = [json.loads(line) for line in call("logs", "--json", home=home, exits=0).stdout.splitlines()]
    assert [line["text"] for line in latest] == ["Goodbye.", "Thank you.", "By the harbour.", "Where is the Café?"]
    shown = call("logs", home=home, exits=0).stdout
    assert shown.index("Where is the Café?") < shown.index("By the harbour.") < shown.index("Goodbye.")
    (found,) = [json.loads(line) for line in call("logs", "-q", "cafe", "--json", home=home).stdout.splitlines()]
    assert (found["session_id"], found["role"], found["position"]) == ("ses_talk", "user", 0)
    done = call("logs", "-q", "harb*", home=home, exits=0)
    assert "ses_talk  assistant" in done.stdout
    assert "By the harbour." in done.stdout
    assert "no matching messages" in call("logs", "-q", "nowhere", home=home, exits=0).stderr
    assert "only the latest 1 message" in call("logs", "-n", "1", home=home, exits=0).stderr


def test_a_deleted_session_is_not_found(home: Path) -> None:
    """A search and the list of latest messages do not show the session."""
    for words in ((), ("--db", str(home / "no.db"))):
        assert "no trace file" in call("logs", "-q", "x", *words, home=home, exits=1).stderr
    assert list(home.iterdir()) == []
    talk(home / "trace.db")
    assert call("logs", "-q", "goodbye", home=home, exits=0).stdout
    call("sessions", "ses_talk", "--delete", home=home, exits=0)
    assert call("logs", "-q", "goodbye", home=home, exits=0).stdout == ""
    assert call("logs", home=home, exits=0).stdout == ""
