"""The lock of asyncio: one task at a time, in the order in which they ask, whatever becomes of those who wait."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given
from hypothesis import strategies as st

from callboard.bus.backend import LoopLock

from ..support.virtual_time import run_virtual


async def entered(patience: list[int], holds: int) -> list[int]:
    """Who got the lock, in order, of tasks that ask for it one after the other, a second apart.

    Args:
        patience: Seconds after which each task is cancelled, wherever it is.
        holds: Seconds for which each keeps the lock.
    """
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
