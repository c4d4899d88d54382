"""JSON paths as people read them: ``$.people[0]['full name']``."""

from __future__ import annotations

from collections.abc import Iterable


def json_path(steps: Iterable[str | int], start: str = "$") -> str:
    """The path of keys and positions, from the root of a value or from another path."""
    path = start
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if step.isidentifier() else f"[{step!r}]"
    return path
