"""Identifiers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from bus.clock import SYSTEM_CLOCK, ulid_text


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_is_written_as_its_library_writes_it(value: bytes) -> None:
    assert ulid_text(value) == str(ULID(value))


@given(st.lists(st.binary(min_size=1, max_size=2).map(lambda end: bytes(16 - len(end)) + end), max_size=20))
def test_ulids_that_begin_alike_are_written_as_their_library_writes_them(values: list[bytes]) -> None:
    assert [ulid_text(value) for value in values] == [str(ULID(value)) for value in values]


def test_identifiers_sort_in_the_order_in_which_they_were_made() -> None:
    made = [SYSTEM_CLOCK.new_id("req") for _ in range(1000)]
    assert sorted(set(made)) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)
