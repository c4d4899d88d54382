"""Slots: never more than there are, none lost, the earliest turn first."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.engine.runtime.adapters import CallSlots

from ..support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio


async def test_the_earliest_turn_goes_first() -> None:
    """A later request of an earlier turn passes the requests of later turns; within a turn the order stays."""
    slots, order = CallSlots(1), []
    await slots.acquire()

    async def call(turn: int, name: str) -> None:
        await slots.acquire(turn)
        order.append(name)
        slots.release()

    async with anyio.create_task_group() as group:
        for turn, name in ((3, "3a"), (3, "3b"), (1, "1a"), (2, "2a"), (1, "1b")):
            group.start_soon(call, turn, name)
            await anyio.lowlevel.checkpoint()
        slots.release()
    assert order == ["1a", "1b", "2a", "3a", "3b"]


async def test_a_slot_that_is_given_to_a_cancelled_call_goes_on_to_the_next() -> None:
    """Cancelling at the very moment of the hand-over loses nothing."""
    slots = CallSlots(1)
    await slots.acquire()
    got: list[str] = []

    async def call(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await slots.acquire()
            got.append(name)
            slots.release()

    scopes = [anyio.CancelScope(), anyio.CancelScope()]
    async with anyio.create_task_group() as group:
        for name, scope in zip("ab", scopes, strict=True):
            group.start_soon(call, name, scope)
            await anyio.sleep(0.1)
        slots.release()
        scopes[0].cancel()
    assert got[-1] == "b"
    assert (slots.used, slots.waiting) == (0, 0)


async def test_fewer_and_more_slots_while_calls_wait() -> None:
    """Resizing lets waiting calls in at once, and takes no slot from a running one."""
    slots = CallSlots(1)
    await slots.acquire()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(slots.acquire)
        await anyio.lowlevel.checkpoint()
        slots.resize(3)
        await anyio.lowlevel.checkpoint()
        assert (slots.used, slots.waiting) == (3, 1)
        slots.resize(1)
        for left in (1, 1, 1, 0):  # three end before the fourth may begin
            assert slots.waiting == left
            slots.release()
    assert (slots.used, slots.waiting) == (0, 0)


@given(seed=st.integers(0, 2**32), total=st.integers(1, 4), calls=st.integers(1, 25))
def test_no_slot_is_lost_whatever_is_cancelled_when(seed: int, total: int, calls: int) -> None:
    """Random waits, holds and cancels: never more at once than slots, and all are free in the end."""
    rng = random.Random(seed)

    async def scenario() -> None:
        slots, running, most = CallSlots(total), 0, 0

        async def call() -> None:
            nonlocal running, most
            await anyio.sleep(rng.randrange(4))
            with anyio.move_on_after(rng.choice([0, 1, 2, 3, 50])):
                await slots.acquire(rng.randrange(5))
                running += 1
                most = max(most, running)
                try:
                    await anyio.sleep(rng.randrange(3))
                finally:
                    running -= 1
                    slots.release()

        async with anyio.create_task_group() as group:
            for _ in range(calls):
                group.start_soon(call)
        assert most <= total
        assert (slots.used, slots.waiting) == (0, 0)
        with anyio.fail_after(1):
            for _ in range(total):
                await slots.acquire()

    run_virtual(scenario)
