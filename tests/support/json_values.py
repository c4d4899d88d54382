"""JSON values: random ones that survive writing and reading, and the differences of two.

The random ones have integers in the exact range of a double, and no NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from callboard.bus.values.base import Json, JsonObject

JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8,
)  # fmt: skip


def json_objects(max_size: int) -> st.SearchStrategy[JsonObject]:
    """Objects with at most `max_size` values."""
    return st.dictionaries(st.text(), JSON_VALUES, max_size=max_size)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The paths at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            if name in one and name in other:
                yield from differences(one[name], other[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for first, second in zip(one, other, strict=True):
            yield from differences(first, second, f"{path}[]")
    elif one != other or type(one) is not type(other):
        yield path
