"""Identifiers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from bus.clock import SYSTEM_CLOCK, ulid_text


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_is_written_as_its_library_writes_it(value: bytes) -> None:
    assert ulid_text(value) == str(ULID(value))


def test_identifiers_sort_in_the_order_in_which_they_were_made() -> None:
    made = [SYSTEM_CLOCK.new_id("req") for _ in range(1000)]
    assert sorted(set(made)) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)
