"""A deadline that moves ends its scope at the last time that it was moved to, and at no other."""

from __future__ import annotations

import math

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus.backend import MovingDeadline, current_time, new_scope

from ..support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio


async def ended_at(first: float, moves: list[tuple[float, float]]) -> float:
    """When a scope ended.

    Args:
        first: The seconds that are left in the beginning.
        moves: The moves of the deadline. Each has the seconds that pass, and the seconds that are left from then
            on.
    """
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
