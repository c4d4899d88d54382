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
    """An identifier of a later millisecond sorts after an earlier one, regardless of the random part."""
    now = 1_700_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now * 1_000_000)
    made = []
    for pause in (1, 1, 30, 1023, 1024, 1025, 86_400_000):
        now += pause
        made.append(SYSTEM_CLOCK.new_id("req"))
    assert sorted(made) == made
    assert all(name.startswith("req_") and len(name) == 30 for name in made)


def test_an_identifier_does_not_predict_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among 4,000 identifiers of one millisecond, no two share half of their random letters."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    made = [SYSTEM_CLOCK.new_id("trn")[-16:] for _ in range(4000)]
    assert len({name[:8] for name in made}) == len({name[8:] for name in made}) == 4000
    assert sorted(made) != made
    every = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    assert all({name[place] for name in made} == set(every) for place in range(16))


def test_the_random_part_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte from the operating system becomes one letter of one identifier."""
    drawn = bytes(range(256)) * 16
    monkeypatch.setattr(os, "urandom", lambda count: drawn[:count])
    ulids = Ulids()
    assert {ulids.next()[-16:] for _ in range(256)} == {"0123456789ABCDEF", "GHJKMNPQRSTVWXYZ"}


def test_identifiers_made_by_several_threads_at_once_are_all_different() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(lambda: [SYSTEM_CLOCK.new_id("req") for _ in range(2000)]) for _ in range(4)]
    names = [name for each in made for name in each.result()]
    assert len(set(names)) == len(names) == 8000


def test_an_identifier_contains_the_time_of_its_creation() -> None:
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


# -- A scope ends at the last time that its deadline was moved to.


async def ended_at(first: float, moves: list[tuple[float, float]]) -> float:
    """Return the time at which the scope ended."""
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
def test_a_scope_ends_at_the_last_deadline(backend: str, moves: list[tuple[int, int]]) -> None:
    at, ends = 0, 5
    for pause, left in moves:
        at += pause
        ends = at + left
    assert run_virtual(lambda: ended_at(5, [*moves]), backend) == pytest.approx(ends)


async def test_a_deadline_may_be_infinite() -> None:
    with anyio.move_on_after(50) as outer, new_scope() as scope:
        deadline = MovingDeadline(scope, math.inf)
        deadline.move(current_time() + 5)
        deadline.move(math.inf)
        await anyio.sleep(100)
    deadline.stop()
    assert outer.cancelled_caught
    assert not scope.cancel_called


async def test_a_finished_scope_is_not_cancelled() -> None:
    with new_scope() as scope:
        deadline = MovingDeadline(scope, current_time() + 5)
    deadline.stop()
    await anyio.sleep(10)
    assert not scope.cancel_called or scope.deadline < current_time()  # trio also reports this for a past deadline


# -- The lock of asyncio: one task at a time, in the order of the requests, also if waiting tasks are cancelled.


async def entered(patience: list[int], holds: int) -> list[int]:
    """Request the lock from several tasks, one second apart. Return the tasks that got the lock, in order."""
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
        await lock.acquire()  # the lock is free
    return order


def expected(patience: list[int], holds: int) -> list[int]:
    """Calculate the expected order. A task that still waits gets the lock after all earlier tasks."""
    free, order = 0.0, list[int]()
    for number, seconds in enumerate(patience):
        given_up = number + seconds + 0.5
        begins = max(free, number)
        if begins < given_up:
            order.append(number)
            free = min(begins + holds, given_up)
    return order


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 4))
def test_tasks_get_the_lock_in_the_order_of_their_requests(patience: list[int], holds: int) -> None:
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


def test_tasks_that_stopped_waiting_are_removed() -> None:
    async def go() -> int:
        lock = LoopLock()
        await lock.acquire()
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await lock.acquire()
        return len(lock._waiters)

    assert run_virtual(go) == 0


def test_the_lock_works_on_several_event_loops() -> None:
    lock = LoopLock()

    async def two() -> None:
        async def one() -> None:
            async with lock:
                await asyncio.sleep(1)

        await asyncio.gather(one(), one())

    run_virtual(two)
    run_virtual(two)
