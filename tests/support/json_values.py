"""Random JSON values that survive writing and reading: integers in the exact range of a double, no NaN."""

from __future__ import annotations

from hypothesis import strategies as st

from callboard.bus.values.base import Json, JsonObject

JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def json_objects(max_size: int) -> st.SearchStrategy[JsonObject]:
    """Objects with at most `max_size` values."""
    return st.dictionaries(st.text(), JSON_VALUES, max_size=max_size)
