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

from callboard.bus.clock import SYSTEM_CLOCK, Ulids, letters


@given(st.binary(min_size=16, max_size=16))
def test_numbers_are_written_as_the_library_of_ulids_writes_them(value: bytes) -> None:
    assert letters(int.from_bytes(value, "big"), 26) == str(ULID(value))


def test_an_identifier_has_a_prefix_and_sorts_by_its_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identifiers of a later millisecond are later in the order of texts, whatever their random part."""
    now = 1_700_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    made = []
    for pause in (1, 1, 30, 1023, 1024, 1025, 86_400_000):
        now += pause
        made.append(SYSTEM_CLOCK.new_id("req"))
    assert sorted(made) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)


def test_no_identifier_tells_anything_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,000 of one millisecond no two share more than half of their random letters, and none are counted up."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    made = [SYSTEM_CLOCK.new_id("trn")[-16:] for _ in range(4000)]
    assert len({name[:8] for name in made}) == len({name[8:] for name in made}) == 4000
    assert sorted(made) != made
    every = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    assert all({name[place] for name in made} == set(every) for place in range(16))


def test_the_random_part_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of it is one letter of one identifier."""
    drawn = bytes(range(256)) * 16
    monkeypatch.setattr(os, "urandom", lambda count: drawn[:count])
    ulids = Ulids()
    assert {ulids.next()[-16:] for _ in range(256)} == {"0123456789ABCDEF", "GHJKMNPQRSTVWXYZ"}


def test_identifiers_made_by_several_threads_at_once_are_all_different() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(lambda: [SYSTEM_CLOCK.new_id("req") for _ in range(2000)]) for _ in range(4)]
    names = [name for each in made for name in each.result()]
    assert len(set(names)) == len(names) == 8000


def test_an_identifier_tells_when_it_was_made() -> None:
    before = time.time()
    made = ULID.from_str(SYSTEM_CLOCK.new_id("req").removeprefix("req_"))
    assert before - 0.001 <= made.timestamp <= time.time()


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
