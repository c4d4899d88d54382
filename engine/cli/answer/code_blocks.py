"""The fenced blocks of code in a reply. Pure."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Which: TypeAlias = Literal["first", "last"]

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)")


def code_blocks(text: str) -> list[str]:
    """The code of each fenced block, as CommonMark has them: a block ends with a fence of the same character that
    is at least as long, or with the text.
    """
    found: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        match = _FENCE.fullmatch(line.rstrip("\r\n"))
        if not fence:
            if match is not None and not ("`" in match["info"] and match["fence"][0] == "`"):
                fence = match["fence"]
        elif match is not None and match["fence"].startswith(fence) and not match["info"].strip():
            found.append("".join(lines))
            lines, fence = [], ""
        else:
            lines.append(line)
    return [*found, "".join(lines)] if fence else found


def extracted(text: str, which: Which) -> str | None:
    """The first or the last block of code; None if there is none."""
    blocks = code_blocks(text)
    return (blocks[0] if which == "first" else blocks[-1]) if blocks else None
