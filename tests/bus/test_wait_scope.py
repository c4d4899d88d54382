"""A wait on a connection ends at its time limit, when it is cancelled, or with its work, and at no other time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus.backend import WaitScope, WaitScopes

from ..support.virtual_time import run_virtual

SECONDS = st.integers(1, 9)


def now() -> float:
    return asyncio.get_running_loop().time()


def running_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


def on_asyncio(test: Callable[[], Awaitable[None]]) -> None:
    run_virtual(test, "virtual-asyncio")


async def waited(scopes: WaitScopes, seconds: float, limit: float) -> float:
    """The duration of a wait of some seconds with a limit."""
    begun = now()
    with scopes.until(begun + limit):
        await asyncio.sleep(seconds)
    assert running_task().cancelling() == 0
    return now() - begun


@given(st.lists(st.lists(st.tuples(SECONDS, SECONDS | st.just(math.inf)), max_size=8), min_size=1, max_size=5))
def test_a_wait_ends_with_its_work_or_at_its_limit(tasks: list[list[tuple[int, float]]]) -> None:
    """Earlier waits in the scope, and concurrent waits, have no effect. At the same time, either may end it."""

    async def test() -> None:
        scopes = WaitScopes()

        async def one_after_the_other(waits: list[tuple[int, float]]) -> None:
            for seconds, limit in waits:
                assert await waited(scopes, seconds, limit) == pytest.approx(min(seconds, limit))

        await asyncio.gather(*map(one_after_the_other, tasks))

    on_asyncio(test)


@given(SECONDS, st.lists(st.tuples(st.integers(0, 3), st.integers(4, 9)), max_size=6))
def test_a_wait_ends_at_its_last_deadline(first: int, moves: list[tuple[int, int]]) -> None:
    """The deadline can move to an earlier or a later time, any number of times. Each of `moves` has the seconds
    that pass and the seconds that are then left.
    """

    async def test() -> None:
        ends = first + 3.0
        with WaitScopes().until(ends) as scope:
            for pause, left in moves:
                await asyncio.sleep(pause)
                ends = scope.deadline = now() + left
            await asyncio.sleep(10_000)
        assert now() == pytest.approx(ends)

    on_asyncio(test)


def test_the_timer_of_a_wait_is_used_for_later_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand waits that end in time set two timers."""

    async def test() -> None:
        loop, scopes, timers = asyncio.get_running_loop(), WaitScopes(), 0
        call_at = loop.call_at

        def counted(when: float, callback: Callable[..., object], *more: object, **context: Any) -> object:
            nonlocal timers
            timers += isinstance(getattr(callback, "__self__", None), WaitScope)
            return call_at(when, callback, *more, **context)

        monkeypatch.setattr(loop, "call_at", counted)
        for _ in range(1000):
            assert await waited(scopes, 0.1, 60) == pytest.approx(0.1)
        assert timers == 2

    on_asyncio(test)


def test_a_finished_wait_is_not_cancelled_later() -> None:
    """Neither its deadline nor its scope's owner cancels it later, or cancels the next wait in the scope. A task
    that cancels its own wait goes on until it waits. Scopes of an event loop that ended are used no more.
    """
    scopes = WaitScopes()

    async def test() -> None:
        with scopes.until(now() + 2) as scope:
            scope.cancel()  # takes effect later, because this task runs now
        scope.cancel()
        assert await waited(scopes, 5, 9) == 5
        reached = []
        with scopes.until(math.inf) as scope:
            scope.cancel()
            reached.append("the end of its step")
            await asyncio.sleep(5)
            reached.append("the end of its wait")
        assert (reached, now(), running_task().cancelling()) == (["the end of its step"], 5, 0)

    for _ in range(2):
        on_asyncio(test)


def test_a_wait_is_cancelled_by_another_task_once() -> None:
    async def test() -> None:
        caught = []
        with WaitScopes().until(4) as scope:
            asyncio.get_running_loop().call_later(1, scope.cancel)
            asyncio.get_running_loop().call_later(2, scope.cancel)
            try:
                await asyncio.sleep(9)
            finally:
                caught.append(now())
                await asyncio.sleep(5)  # an orderly close of a connection may wait
        assert (caught, now(), running_task().cancelling()) == ([1], 6, 0)

    on_asyncio(test)


def test_what_a_cancelled_wait_raises_is_raised() -> None:
    async def test() -> None:
        with pytest.raises(ConnectionError), WaitScopes().until(1):
            try:
                await asyncio.sleep(9)
            except asyncio.CancelledError:
                raise ConnectionError from None
        assert running_task().cancelling() == 0

    on_asyncio(test)


def test_a_cancellation_of_the_task_is_never_taken_for_that_of_the_wait() -> None:
    """The task is cancelled before the wait ends, at the same time, or during the cleanup."""

    async def waiting(limit: float) -> None:
        with WaitScopes().until(limit):
            try:
                await asyncio.sleep(9)
            finally:
                await asyncio.sleep(1)

    async def test(at: float) -> None:
        task = asyncio.create_task(waiting(1))
        asyncio.get_running_loop().call_later(at, task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()

    for at in (0.5, 1, 1.5):
        on_asyncio(partial(test, at))


@pytest.mark.parametrize("at", [0.5, 1, 1.5])
@pytest.mark.parametrize("first", [True, False])
def test_a_scope_around_a_wait_ends_both(at: float, first: bool) -> None:
    """anyio's scope ends before the wait, at the same time, or during the cleanup. At the same time, either may be
    first.
    """

    async def test() -> None:
        with anyio.move_on_after(at if first else math.inf) as around:
            with WaitScopes().until(1):
                around.deadline = at
                try:
                    await asyncio.sleep(9)
                finally:
                    await asyncio.sleep(1)
            await asyncio.sleep(9)
        assert around.cancelled_caught
        assert (now(), running_task().cancelling()) == (at, 0)
        await asyncio.sleep(1)  # no scope cancels this

    on_asyncio(test)


def test_a_limited_number_of_scopes_is_kept() -> None:
    """A thousand concurrent waits leave only a limited number of scopes."""

    async def test() -> None:
        scopes = WaitScopes()
        assert set(await asyncio.gather(*map(partial(waited, scopes, 5), [2.0] * 1000))) == {2.0}
        assert len(scopes._pool) == 64

    on_asyncio(test)
