"""What a quick run leaves to a deep one: `make test` is quick, `make test-all` is deep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest


def is_quick() -> bool:
    """Whether this run tries few examples of each property."""
    return hypothesis.settings.get_current_profile_name() == "quick"


def first_is_quick(values: Iterable[Any], reason: str, *, quick: int = 1) -> list[Any]:
    """The values of a parameter. A quick run has only the first ones.

    Args:
        values: The values.
        reason: Why the others add depth and no promise.
        quick: The number of values in a quick run.
    """
    deep = pytest.mark.deep(reason)
    return [value if n < quick else pytest.param(value, marks=deep) for n, value in enumerate(values)]
