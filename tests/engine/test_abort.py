"""Giving up from anywhere: the signal and its controller."""

from __future__ import annotations

import asyncio
import threading

import pytest

from callboard import AbortController, CancelledError

from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


def test_the_first_reason_stays() -> None:
    """A second abort changes nothing, and the signal never goes back."""
    controller = AbortController()
    controller.signal.raise_if_aborted()
    assert (controller.signal.aborted, controller.signal.reason) == (False, "")
    controller.abort("the user left")
    controller.abort("something else")
    assert (controller.signal.aborted, controller.signal.reason) == (True, "the user left")
    with pytest.raises(CancelledError, match="the user left"):
        controller.signal.raise_if_aborted()


def test_every_watcher_is_called_once_even_if_one_fails() -> None:
    """A watcher that raises keeps none of the others from hearing of it."""
    controller, heard = AbortController(), list[int]()
    controller.signal.watch(lambda: heard.append(1))
    controller.signal.watch(lambda: 1 / 0)
    forget = controller.signal.watch(lambda: heard.append(2))
    controller.signal.watch(lambda: heard.append(3))
    forget()
    forget()
    controller.abort()
    controller.abort()
    controller.signal.watch(lambda: heard.append(4))
    assert heard == [1, 3, 4]


@pytest.mark.anyio
async def test_a_task_awaits_what_another_thread_gives_up() -> None:
    """`await signal` gives the reason, before and after."""
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    thread = threading.Thread(target=controller.abort, args=("elsewhere",))
    thread.start()
    assert await waiting == "elsewhere"
    assert await controller.signal == "elsewhere"
    thread.join()


def test_a_loop_that_is_gone_holds_nobody_up() -> None:
    """What watched from a loop that has ended is not called, and nothing is raised."""
    controller, heard = AbortController(), list[int]()

    async def watch() -> None:
        controller.signal.watch_from_loop(lambda: heard.append(1))

    asyncio.run(watch())
    controller.abort()
    assert heard == []


def test_a_thread_sleeps_until_it_is_given_up() -> None:
    """`wait_in_thread` says whether it was, and doesn't wait if it already was."""
    controller = AbortController()
    assert controller.signal.wait_in_thread(0) is False
    controller.abort()
    assert controller.signal.wait_in_thread() is True
