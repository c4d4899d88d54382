"""Text from elsewhere can't steer a terminal, and JSON means the same as before."""

from __future__ import annotations

import ast
import io
import json
import sys
import unicodedata
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from callboard.engine import cli
from callboard.engine.cli.common.harmless import harmless, harmless_json, one_line
from callboard.engine.cli.traces import _stdout

CLI = Path(cli.__file__).parent


def test_no_control_character_and_no_change_of_direction_is_left() -> None:
    """Of all of Unicode; what stays of the invisible ones are the joiners and what scripts need."""
    left = harmless("".join(map(chr, range(sys.maxunicode + 1))))
    assert {character for character in left if unicodedata.category(character) == "Cc"} == {"\n", "\t"}
    assert not {character for character in left if unicodedata.bidirectional(character) in BIDI}
    assert not {character for character in left if unicodedata.category(character) in ("Cs", "Zl", "Zp")}
    assert {"\u200c", "\u200d"} <= set(left)
    assert left.encode()


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    """However many its text has; and doing it twice changes nothing more."""
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert one_line(line) == harmless(line) == line


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_json_means_the_same(value: object) -> None:
    """All that is left out of text is escaped in it."""
    written = harmless_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value
    assert not [each for each in written if each != "\n" and harmless(each) == ""]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_an_export_to_a_terminal_is_harmless(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a character comes in two pieces."""
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    data = 'x "ü\u202e\x9b"'.encode()
    out = _stdout(format)  # type: ignore[arg-type]
    for at in range(len(data)):
        out.write(data[at : at + 1])
    assert terminal.getvalue() == ('x "ü\\u202e\\u009b"' if format == "jsonl" else 'x "ü"')


def test_nothing_else_writes_to_the_streams() -> None:
    """`print` and the streams' own `write` are in one module, but for what no terminal gets as text of others.

    That is what erases a line of progress, the end of a line after ^C, a key for a pipe, a reply for a file, and
    the words of a shell.
    """
    writing = ("print", "sys.stdout.write", "sys.stderr.write")
    found = {
        path.name
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in writing
    }
    ours = {"command_line.py", "keys.py", "reply_output.py", "completion.py", "answering.py"}
    assert found == {"harmless.py", "traces.py", "upkeep.py", *ours}
