"""Identifiers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from callboard.bus import clock
from callboard.bus.clock import SYSTEM_CLOCK, Ulids, letters


@given(st.binary(min_size=16, max_size=16))
def test_numbers_are_written_as_the_library_of_ulids_writes_them(value: bytes) -> None:
    assert letters(int.from_bytes(value, "big"), 26) == str(ULID(value))


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


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(0, 2**80 - 1))
def test_identifiers_differ_and_sort_whatever_time_passes_between_them(pauses: list[int], random: int) -> None:
    """Also where their random part has no number left to count on with."""
    now = 1_700_000_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "_ulid", lambda: lambda: ULID((now << 80 | random).to_bytes(16, "big")))
        patch.setattr(time, "time_ns", lambda: now * 1_000_000)
        ulids, made = Ulids(), []
        for pause in pauses:
            now += pause
            made += [ulids.next() for _ in range(2)]
            assert [ULID.from_str(each).milliseconds for each in made[-2:]] == [now, now]
    if random < 2**80 - 100:
        assert sorted(set(made)) == made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_makes_other_identifiers() -> None:
    program = (
        "import os\nfrom callboard.bus.clock import SYSTEM_CLOCK\n"
        "SYSTEM_CLOCK.new_id('req')\nchild = os.fork()\nmade = SYSTEM_CLOCK.new_id('req')\n"
        "if child: os.waitpid(child, 0)\nprint(made, flush=True)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    theirs, ours = (made[-16:-4] for made in said.stdout.split())
    assert theirs != ours
