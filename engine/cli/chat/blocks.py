"""Messages of several lines, between three quotation marks. Pure.

\"\"\"
The first line.
The second.
\"\"\"
"""

from __future__ import annotations

MARK = '"""'


def is_open(text: str) -> bool:
    """Whether a message has begun with three quotation marks and is not at its end."""
    stripped = text.strip()
    return stripped.startswith(MARK) and not (len(stripped) >= 2 * len(MARK) and stripped.endswith(MARK))


def unwrapped(text: str) -> str:
    """A message as it is meant: without the marks around it, and blanks at its ends."""
    stripped = text.strip()
    if stripped.startswith(MARK):
        stripped = stripped.removeprefix(MARK).removesuffix(MARK).strip("\r\n")
    return stripped
