"""Virtual time passes when nobody has anything to do: not while a thread works for the loop."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiosqlite
import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from callboard.engine.tools.running import run_in_thread

from ..support.virtual_time import backend, run_virtual

InThread = Callable[[Callable[[], object]], Awaitable[object]]


async def in_sqlite(work: Callable[[], object]) -> None:
    async with aiosqlite.connect(":memory:") as connection:
        await connection.create_function("work", 0, work)
        await connection.execute("SELECT work()")


THREADS: dict[str, tuple[str, InThread]] = {
    "anyio on asyncio": ("virtual-asyncio", anyio.to_thread.run_sync),
    "anyio on trio": ("virtual-trio", anyio.to_thread.run_sync),
    "asyncio": ("virtual-asyncio", asyncio.to_thread),
    "aiosqlite": ("virtual-asyncio", in_sqlite),
    "a plain tool": ("virtual-asyncio", run_in_thread),
}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when an asyncio loop waits in real time, without an end."""
    said = threading.Event()
    select = selectors.DefaultSelector.select

    def told(selector: Any, timeout: float | None = None) -> Any:
        if timeout is None:
            said.set()
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", told)
    return said


class TrioWaits:
    """The same for trio, as its instrument."""

    def __init__(self, said: threading.Event) -> None:
        self._said = said

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:
            self._said.set()


@pytest.mark.parametrize("name", THREADS)
def test_no_time_passes_while_a_thread_works(name: str, waits: threading.Event) -> None:
    """The thread works until the loop really waits, or until a timer has run out: the former comes first."""
    kind, in_thread = THREADS[name]
    order: list[tuple[str, float]] = []
    began = 0.0

    async def timer() -> None:
        await anyio.sleep(1)
        order.append(("timer", anyio.current_time() - began))
        waits.set()

    async def main() -> None:
        nonlocal began
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(timer)
            await anyio.wait_all_tasks_blocked()
            waits.clear()
            await in_thread(waits.wait)
            order.append(("thread", anyio.current_time() - began))

    library, options = backend(kind)
    if (instruments := options.get("instruments")) is not None:
        assert isinstance(instruments, list)
        instruments.append(TrioWaits(waits))
    anyio.run(main, backend=library, backend_options=options)
    assert [what for what, _ in order] == ["thread", "timer"]
    assert order[0][1] < order[1][1] == 1.0


async def with_anyio(released: threading.Event) -> None:
    await anyio.to_thread.run_sync(released.wait, abandon_on_cancel=True)


async def with_asyncio(released: threading.Event) -> None:
    await asyncio.to_thread(released.wait)


async def with_a_tool(released: threading.Event) -> None:
    await run_in_thread(released.wait)


@pytest.mark.parametrize("in_thread", [with_anyio, with_asyncio, with_a_tool])
def test_for_a_thread_that_was_given_up_nobody_waits(
    in_thread: Callable[[threading.Event], Awaitable[None]],
) -> None:
    """Time passes while it still works, and its end is no error."""
    released, ended = threading.Event(), anyio.Event()

    async def work() -> None:
        try:
            await in_thread(released)
        finally:
            ended.set()

    async def main() -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert ended.is_set()
        await anyio.sleep(5)
        released.set()
        await anyio.to_thread.run_sync(lambda: None)
        return anyio.current_time()

    assert run_virtual(main) == 5


async def with_a_thread_of_its_own() -> None:
    done = asyncio.Event()
    threading.Thread(target=asyncio.get_running_loop().call_soon_threadsafe, args=(done.set,)).start()
    await done.wait()


def test_a_thread_that_can_t_be_waited_for_is_refused() -> None:
    """Else its test would fail only on a busy machine, where a time limit runs out over it."""
    with pytest.raises(RuntimeError, match="works for a loop with virtual time"):
        run_virtual(with_a_thread_of_its_own)
