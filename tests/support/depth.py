"""Selects the cases of quick and deep runs: `make test` is quick, `make test-all` is deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import hypothesis
import pytest


def is_quick() -> bool:
    """Whether this run tries only a few examples of each property."""
    return hypothesis.settings.get_current_profile_name() == "quick"


def first_is_quick(values: Iterable[Any], reason: str, *, quick: int = 1) -> list[Any]:
    """The values of a parameter. A quick run has only the first ones.

    Args:
        values: The values.
        reason: Why the others add depth and no promise.
        quick: The number of values in a quick run.
    """
    return quick_if(values, lambda n: n < quick, reason)


def each_nth_is_quick(values: Iterable[Any], nth: int, reason: str, *, rows: bool = False) -> list[Any]:
    """The values of a parameter. A quick run has the first one of each `nth`."""
    return quick_if(values, lambda n: n % nth == 0, reason, rows=rows)


def quick_if(values: Iterable[Any], quick: Callable[[int], bool], reason: str, *, rows: bool = False) -> list[Any]:
    """The values of a parameter. A quick run has those whose number is quick.

    Args:
        values: The values; with `rows` a tuple for each row of several parameters.
        quick: Whether a quick run has the value of this number.
        reason: Why the others add depth and no promise.
        rows: Whether there are several parameters.
    """
    deep = pytest.mark.deep(reason)
    return [
        pytest.param(*(value if rows else (value,)), marks=() if quick(n) else deep)
        for n, value in enumerate(values)
    ]


def examples(number: int) -> int:
    """The number of examples for a property that is tested within a test, where `settings` are not found."""
    return fewer(number) if is_quick() else number


def fewer(number: int) -> int:
    """A quick run tries a tenth of the examples that a property test asks for, and at least five."""
    return max(number // 10, min(number, 5))
