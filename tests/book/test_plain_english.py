"""README and docs are in plain English: no wording from the list, and no sentence of more than 30 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import plain_english
from scripts.plain_english import (
    ROOMS,
    ROOT,
    Offender,
    figures,
    of_comments,
    of_docstrings,
    of_help,
    of_markdown,
    of_messages,
    of_pages,
    offenders,
    pages,
)

EXEMPT_AT_MOST = 12
"""The number of blocks and ranges that may be marked as exceptions."""

AT_MOST = 10
"""The number of sentences, in all docstrings or all comments, that may have such wording or more than 30 words."""


def test_readme_and_docs_have_no_offender() -> None:
    """`python scripts/plain_english.py` prints the same. An exception is marked in the page, with its reason."""
    assert list(map(str, offenders(of_pages(pages())))) == []


def test_sentences_are_short() -> None:
    _, median, most = figures(of_pages(pages()))
    assert median <= 16
    assert most <= 30


def test_few_texts_are_exempt() -> None:
    marks = [
        f"{page.name}: {mark}"
        for page in pages()
        for mark in re.findall(r"^<!-- plain(?:, from here)?: \S.* -->$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(marks) <= EXEMPT_AT_MOST, marks


def test_help_texts_have_no_offender() -> None:
    """`python scripts/plain_english.py --help-texts` prints the same."""
    assert list(map(str, offenders(of_help()))) == []


def test_messages_have_no_offender() -> None:
    """Errors, warnings, log lines, reports and the live view. `# plain: reason` marks an exception."""
    assert list(map(str, offenders(of_messages(ROOT / room for room in ROOMS)))) == []


def test_few_docstrings_have_an_offender() -> None:
    """`python scripts/plain_english.py --docstrings` prints the same."""
    found = [
        str(one) for one in offenders(of_docstrings(ROOT / room for room in ROOMS)) if "bold" not in one.reason
    ]
    assert len(found) <= AT_MOST, found


def test_few_comments_have_an_offender() -> None:
    """`python scripts/plain_english.py --comments` prints the same."""
    found = list(map(str, offenders(of_comments(ROOT / room for room in ROOMS))))
    assert len(found) <= AT_MOST, found


def found_in(text: str) -> Iterator[tuple[int, str]]:
    for one in offenders(of_markdown(text, "page.md")):
        assert isinstance(one, Offender)
        yield one.line, one.reason


def test_an_offender_has_its_line_and_a_replacement() -> None:
    """Offenders are found in prose, list items and table cells."""
    text = "# Page\n\nThe call is under way.\n\n* It starts anew.\n\n| a | b |\n|---|---|\n| c | nobody |\n"
    assert [line for line, _ in found_in(text)] == [3, 5, 9]
    assert dict(found_in(text))[3] == '"under way" (write: in progress)'


def test_a_long_sentence_is_an_offender() -> None:
    """A full stop ends a sentence. Code counts as one word."""
    assert list(found_in(" ".join(["word"] * 30) + ". Another sentence.")) == []
    assert list(found_in(" ".join(["word"] * 31) + ".")) == [(1, "31 words")]
    assert list(found_in("`a b c` " + " ".join(["word"] * 29) + ".")) == []
    assert list(found_in("Call `nobody`.\n\n```text\nnobody at once\n```\n")) == []
    assert list(found_in("**What to know.** Text.")) == [(1, "bold start (use a heading)")]
    assert list(found_in("* **Term**: text.")) == []


def test_exceptions_are_marked() -> None:
    """A mark covers one block or a range."""
    assert list(found_in("<!-- plain: a quotation -->\nNobody at once.\n\nNobody.")) == [(4, found_reason())]
    text = "<!-- plain, from here: output of a program -->\nNobody.\n\nNobody.\n<!-- plain, to here -->\n\nNobody."
    assert list(found_in(text)) == [(7, found_reason())]
    assert len(list(found_in("<!-- plain: -->\nNobody."))) == 1


def found_reason() -> str:
    return '"Nobody" (write: name the subject: no caller, no reader)'


WORDS = " ".join(["word"] * 20)
ROWS = f"    Args:\n        one: {WORDS}\n        two: {WORDS} beside\n\n    - {WORDS}\n    - {WORDS}\n"
COMMENTS = "# --- Nobody ---\n# One is not\n# told.\n#\n#    nobody\nX = 1  # anew\nY = 2  # noqa: nobody\n"


@pytest.mark.parametrize(
    ("read", "source", "lines"),
    [
        (of_docstrings, '"""Nobody."""\n\nX = 1\n"""Anew.\n\nBeside it.\n"""\n', [1, 4, 6]),
        (of_docstrings, f'def f():\n    """Do.\n\n{ROWS}    """\n', [6]),
        (of_comments, COMMENTS, [6]),
        (of_comments, "# The caller is\n# told.\n", [1]),
    ],
)
def test_a_source_is_read_with_its_lines(
    read: Any, source: str, lines: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument, a list item and a row are separate texts. Consecutive comments are one text."""
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    (tmp_path / "one.py").write_text(source)
    assert [one.line for one in offenders(read([tmp_path]))] == lines
