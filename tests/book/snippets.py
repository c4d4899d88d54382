"""The code blocks of README and docs/, and the check of each.

    ```python                  run, in the order of the page, in one process, each as a program of its own
    ```python title="a.py"     written to that file, which a later block runs or imports
    ```yaml                    read as models.yaml, as prices, or as plain YAML; with a title also written
    ```console                 each line after ``$ `` is run; what stands below it is what it prints
    ```text title="output"     what the block before it prints; … stands for anything

A block after ``<!-- not run: reason -->`` is shown only. Any other language must have such a reason.
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
    """The number of its first line of code in the page, from 1."""
    title: str | None = None
    not_run: str | None = None
    """The reason for which it is only shown; None if it is run."""


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in its order."""
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
    """The code of a page's blocks of a language."""
    return [block.code for block in blocks(page) if block.language == language and block.not_run is None]


def definitions(page: Path, *, without: str = "asyncio.run(main())") -> dict[str, Any]:
    """What a page's Python blocks define, for a test that calls it.

    Args:
        page: The page.
        without: Code that is left out, because the blocks would run it at once.
    """
    names: dict[str, Any] = {}
    exec("\n".join(code.replace(without, "") for code in codes(page, "python")), names)
    return names


def matches(expected: str, printed: str) -> bool:
    """Whether this was printed; … stands for anything, and spaces at the ends of lines don't count."""
    wanted, found = (
        "\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (expected, printed)
    )
    pattern = ".*".join(re.escape(piece) for piece in wanted.split("…"))
    return re.fullmatch(pattern, found, re.DOTALL) is not None
