"""A block that one may be in at a time, among all who use a trace."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel
import pytest

from tests.support.programs import started
from callboard.tracestore import Store

from .conftest import Place

pytestmark = pytest.mark.anyio

HOLDS_UNTIL_KILLED = """
    import sys
    import anyio
    from pathlib import Path
    from callboard.tracestore import PostgresStore, TraceStore

    folder, dsn = sys.argv[1:]

    async def hold():
        place = Path(folder)
        store = PostgresStore(dsn, path=place / "trace") if dsn else TraceStore(place / "trace.db")
        async with store, store.exclusive("night"):
            print("inside", flush=True)
            await anyio.sleep_forever()

    anyio.run(hold)
"""


async def test_one_at_a_time_is_inside(place: Place) -> None:
    """Of many, in several stores, each has its turn, and no two have it at once."""
    inside = most = turns = 0

    async def enter(store: Store) -> None:
        nonlocal inside, most, turns
        async with store.exclusive("night"):
            inside += 1
            most = max(most, inside)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            inside -= 1
            turns += 1

    async with place.store() as one, place.store() as other, anyio.create_task_group() as group:
        for store in (one, other, one, other):
            group.start_soon(enter, store)
    assert (most, turns) == (1, 4)


async def test_another_name_is_another_block(store: Store) -> None:
    """Nobody waits for what others do under other names."""
    with anyio.fail_after(30):
        async with store.exclusive("night"), store.exclusive("day"):
            pass


async def test_who_fails_or_gives_up_has_left(place: Place) -> None:
    """An exception inside, or a cancellation before one's turn, leaves the block to the others."""
    async with place.store() as one, place.store() as other:
        with pytest.raises(ZeroDivisionError):
            async with one.exclusive("night"):
                async with anyio.create_task_group() as group:
                    group.start_soon(other.exclusive("night").__aenter__)
                    await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
                raise ZeroDivisionError
        with anyio.fail_after(30):
            async with other.exclusive("night"), one.exclusive("day"):
                pass
    assert not list(place.folder.glob("*.lock-*"))


async def test_the_next_writer_takes_away_what_the_dead_left(place: Place) -> None:
    """And nothing of those who live."""
    program = started(HOLDS_UNTIL_KILLED, place.folder, place.dsn or "")
    assert program.stdout is not None
    assert program.stdout.readline() == "inside\n"
    async with place.store() as store:
        held = list(place.folder.glob("*.lock-*"))
        await store.close_lost_runs()
        assert list(place.folder.glob("*.lock-*")) == held
        program.kill()
        program.communicate()
        await store.close_lost_runs()
    assert not list(place.folder.glob("*.lock-*"))


async def test_who_dies_has_left(place: Place) -> None:
    """A process that is killed inside holds nobody up."""
    program = started(HOLDS_UNTIL_KILLED, place.folder, place.dsn or "")
    assert program.stdout is not None
    assert program.stdout.readline() == "inside\n"
    async with place.store() as store:
        entered = anyio.Event()

        async def enter() -> None:
            async with store.exclusive("night"):
                entered.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(enter)
                await anyio.wait_all_tasks_blocked()
                assert not entered.is_set()
                program.send_signal(signal.SIGKILL)
                await entered.wait()
    program.communicate()
