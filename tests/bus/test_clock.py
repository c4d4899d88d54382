"""Identifiers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from bus.clock import SYSTEM_CLOCK, Ulids


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_is_written_as_its_library_writes_it(value: bytes) -> None:
    assert Ulids().text(int.from_bytes(value, "big")) == str(ULID(value))


@given(st.lists(st.binary(min_size=1, max_size=2).map(lambda end: bytes(16 - len(end)) + end), max_size=20))
def test_ulids_that_begin_alike_are_written_as_their_library_writes_them(values: list[bytes]) -> None:
    ulids = Ulids()
    assert [ulids.text(int.from_bytes(value, "big")) for value in values] == [str(ULID(value)) for value in values]


def test_identifiers_sort_in_the_order_in_which_they_were_made() -> None:
    made = [SYSTEM_CLOCK.new_id("req") for _ in range(1000)]
    assert sorted(set(made)) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)


def test_identifiers_made_by_several_threads_at_once_are_all_different() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(lambda: [SYSTEM_CLOCK.new_id("req") for _ in range(2000)]) for _ in range(4)]
    names = [name for each in made for name in each.result()]
    assert len(set(names)) == len(names) == 8000


def test_an_identifier_tells_when_it_was_made() -> None:
    before = time.time()
    made = ULID.from_str(SYSTEM_CLOCK.new_id("req").removeprefix("req_"))
    assert before - 0.001 <= made.timestamp <= time.time()
