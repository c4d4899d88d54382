"""The names that somebody may have meant who wrote an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """The known names that are like a name, the nearest first; none if it is like none."""
    from difflib import get_close_matches  # only ever needed on the way to an error

    return get_close_matches(name, known, n=most)
