"""Identifiers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from bus.clock import SYSTEM_CLOCK, ulid_text


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_is_written_as_the_library_for_them_writes_it(value: bytes) -> None:
    assert ulid_text(int.from_bytes(value, "big")) == str(ULID(value))


def test_an_identifier_says_when_it_was_made() -> None:
    """Whoever reads a trace can take its moment from any of its identifiers."""
    before = time.time_ns() // 1_000_000
    made = ULID.from_str(SYSTEM_CLOCK.new_id("run").removeprefix("run_"))
    assert before <= made.milliseconds <= time.time_ns() // 1_000_000


def test_identifiers_of_several_threads_are_all_different() -> None:
    """Also where they are made in the same millisecond."""
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: SYSTEM_CLOCK.new_id("req"), range(4000)))
    assert len(set(made)) == 4000


def test_identifiers_sort_in_the_order_in_which_they_were_made() -> None:
    made = [SYSTEM_CLOCK.new_id("req") for _ in range(1000)]
    assert sorted(set(made)) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)
