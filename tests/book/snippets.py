"""The code blocks of README and docs/, and the check of each.

    ```python                  run as a separate program, in the order of the page, all in one process
    ```python title="a.py"     written to that file, which a later block runs or imports
    ```yaml                    read as models.yaml, as prices, or as plain YAML; with a title also written
    ```console                 each line after ``$ `` is run; its output must be the lines below it
    ```text title="output"     the output of the block before it; … matches any text

A block after ``<!-- not run: reason -->`` is only shown. A block in any other language needs such a reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTPUT = "output"

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    code: str
    line: int
    """The line number of its first line of code in the page, from 1."""
    title: str | None = None
    not_run: str | None = None
    """The reason for which the block is only shown. None if it is run."""


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            found["code"],
            text.count("\n", 0, found.start("code")) + 1,
            found["title"],
            found["reason"],
        )
        for found in _FENCE.finditer(text)
    ]


def codes(page: Path, language: str) -> list[str]:
    """The code of a page's blocks in one language."""
    return [block.code for block in blocks(page) if block.language == language and block.not_run is None]


def definitions(page: Path, *, without: str = "asyncio.run(main())") -> dict[str, Any]:
    """The names that a page's Python blocks define, for a test that calls them.

    Args:
        page: The page.
        without: Code that is removed, because the blocks would run it immediately.
    """
    names: dict[str, Any] = {}
    exec("\n".join(code.replace(without, "") for code in codes(page, "python")), names)
    return names


def matches(expected: str, printed: str) -> bool:
    """Whether the output matches. … matches any text, and spaces at the ends of lines are ignored."""
    wanted, found = (
        "\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (expected, printed)
    )
    pattern = ".*".join(re.escape(piece) for piece in wanted.split("…"))
    return re.fullmatch(pattern, found, re.DOTALL) is not None
