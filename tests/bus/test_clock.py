"""Ids, deadlines that move, and a lock for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from callboard.bus.backend import LoopLock, MovingDeadline, current_time, new_scope
from callboard.bus.clock import SYSTEM_CLOCK, Ulids, letters

from ..support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio


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


# -- A deadline that moves ends its scope at the last time that it was moved to, and at no other.


async def ended_at(first: float, moves: list[tuple[float, float]]) -> float:
    """When a scope ended."""
    with new_scope() as scope:
        deadline = MovingDeadline(scope, current_time() + first)
        for pause, left in moves:
            await anyio.sleep(pause)
            deadline.move(current_time() + left)
        await anyio.sleep(10_000)
    deadline.stop()
    return current_time()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 9)), max_size=6))
@pytest.mark.parametrize("backend", ["virtual-asyncio", "virtual-trio"])
def test_it_ends_when_it_was_last_moved_to(backend: str, moves: list[tuple[int, int]]) -> None:
    """Sooner than before, later, or as often as one likes."""
    at, ends = 0, 5
    for pause, left in moves:
        at += pause
        ends = at + left
    assert run_virtual(lambda: ended_at(5, [*moves]), backend) == pytest.approx(ends)


async def test_it_may_have_no_end() -> None:
    with anyio.move_on_after(50) as outer, new_scope() as scope:
        deadline = MovingDeadline(scope, math.inf)
        deadline.move(current_time() + 5)
        deadline.move(math.inf)
        await anyio.sleep(100)
    deadline.stop()
    assert outer.cancelled_caught
    assert not scope.cancel_called


async def test_a_scope_that_was_left_is_let_alone() -> None:
    with new_scope() as scope:
        deadline = MovingDeadline(scope, current_time() + 5)
    deadline.stop()
    await anyio.sleep(10)
    assert not scope.cancel_called or scope.deadline < current_time()  # trio says so of any past deadline


# -- The lock of asyncio: one task at a time, in the order in which they ask, whatever becomes of those who
# wait.


async def entered(patience: list[int], holds: int) -> list[int]:
    """Who got the lock, in order, of tasks that ask for it one after the other, a second apart."""
    lock, order, inside = LoopLock(), list[int](), set[int]()

    async def one(number: int) -> None:
        async with lock:
            assert not inside
            inside.add(number)
            order.append(number)
            try:
                await asyncio.sleep(holds)
            finally:
                inside.remove(number)

    async def limited(number: int, seconds: int) -> None:
        await asyncio.sleep(number)
        task = asyncio.get_running_loop().create_task(one(number))
        await asyncio.wait([task], timeout=seconds + 0.5)
        task.cancel()
        await asyncio.wait([task])

    await asyncio.gather(*(limited(number, seconds) for number, seconds in enumerate(patience)))
    async with asyncio.timeout(1):
        await lock.acquire()  # nobody has kept it
    return order


def expected(patience: list[int], holds: int) -> list[int]:
    """The same, worked out: each gets it when all before it are through or gone, if it still waits then."""
    free, order = 0.0, list[int]()
    for number, seconds in enumerate(patience):
        given_up = number + seconds + 0.5
        begins = max(free, number)
        if begins < given_up:
            order.append(number)
            free = min(begins + holds, given_up)
    return order


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 4))
def test_it_is_had_in_the_order_of_asking_by_all_who_are_not_cancelled_before(
    patience: list[int], holds: int
) -> None:
    assert run_virtual(lambda: entered(patience, holds)) == expected(patience, holds)


def test_a_task_that_is_cancelled_as_it_gets_the_lock_passes_it_on() -> None:
    async def go() -> list[str]:
        lock, got = LoopLock(), list[str]()
        await lock.acquire()

        async def one(name: str) -> None:
            async with lock:
                got.append(name)

        loop = asyncio.get_running_loop()
        first, second = loop.create_task(one("first")), loop.create_task(one("second"))
        await asyncio.sleep(1)
        lock.release()
        first.cancel()
        await asyncio.wait([first, second])
        return got

    assert run_virtual(go) == ["second"]


def test_tasks_that_gave_up_are_not_kept() -> None:
    """However many they are while one task has the lock."""

    async def go() -> int:
        lock = LoopLock()
        await lock.acquire()
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await lock.acquire()
        return len(lock._waiters)

    assert run_virtual(go) == 0


def test_it_is_no_event_loops_own() -> None:
    """A session outlives the event loop on which turns have waited for each other."""
    lock = LoopLock()

    async def two() -> None:
        async def one() -> None:
            async with lock:
                await asyncio.sleep(1)

        await asyncio.gather(one(), one())

    run_virtual(two)
    run_virtual(two)
