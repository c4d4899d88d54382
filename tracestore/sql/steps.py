"""Schemas as numbered steps, each of them literal text in a file of SQL.

A file has a line ``-- step N: NAME`` before each step. A line with nothing but a semicolon ends each statement,
because statements that make triggers and functions have semicolons of their own.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Steps: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Name and statements of each step; the step at index i brings a trace to version i + 1."""

_HEADING = re.compile(r"^-- step (\d+): (.+)$", re.MULTILINE)
_END = re.compile(r"^;$", re.MULTILINE)


def read_steps(text: str) -> Steps:
    """The steps of a file, given its text.

    Raises:
        ValueError: A step is out of order, has no statement, or has one without an end.
    """
    _, *parts = _HEADING.split(text)
    steps = []
    for place, (number, name, body) in enumerate(zip(parts[::3], parts[1::3], parts[2::3], strict=True), 1):
        *statements, rest = (part.strip() for part in _END.split(body))
        if int(number) != place or rest or not statements:
            raise ValueError(f"steps.sql: step {number} ({name}) is out of order or not complete")
        steps.append((name, tuple(statements)))
    return tuple(steps)
