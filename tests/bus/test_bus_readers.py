"""Readers of the bus: that wait, share, leave, are slow, or live in another thread or loop."""

from __future__ import annotations

import threading

import anyio
import pytest

from callboard.bus import DropOldest, Gap, Lossless, Subscription, WrongLoop
from tests.support.virtual_time import run_virtual

from ..support.virtual_time import on_both
from .published import new_bus, seqs, started

pytestmark = pytest.mark.anyio


async def test_a_waiting_reader_gets_the_event() -> None:
    """A reader that waits is woken, reads in order, and ends when the bus closes."""
    bus = new_bus()
    got: list[int] = []

    async def read(subscription: Subscription) -> None:
        got.extend([envelope.seq async for envelope in subscription])

    async with anyio.create_task_group() as group:
        group.start_soon(read, bus.subscribe(">"))
        await anyio.wait_all_tasks_blocked()
        bus.publish(started())
        bus.publish(started())
        await anyio.wait_all_tasks_blocked()
        bus.publish(started())
        bus.close()
    assert got == [1, 2, 3]


async def test_a_subscriber_may_publish_far_beyond_its_own_capacity() -> None:
    """Publishing from a reader neither blocks nor recurses; it only fills its own buffer."""
    bus = new_bus()
    gaps = 0
    async with bus.subscribe("actor.*", policy=DropOldest(8)) as subscription:
        bus.publish(started())
        async for envelope in subscription:
            if isinstance(envelope.data, Gap):
                gaps += envelope.data.count
            elif envelope.seq == 1:
                for _ in range(80):
                    bus.publish(started())
            elif envelope.seq == 81:
                break
    assert gaps == 72


async def test_a_reader_that_never_reads_costs_the_others_nothing() -> None:
    """Whoever reads gets everything, at once, whatever its neighbour does."""
    bus = new_bus()
    with bus.subscribe(">", policy=DropOldest(1)) as stuck, bus.subscribe(">", policy=Lossless()) as good:
        for _ in range(1000):
            bus.publish(started())
        assert len(good.take()) == 1000
        assert stuck.depth == 1


async def test_a_busy_reader_lets_others_run() -> None:
    """A reader that always finds something still yields now and then."""
    bus = new_bus()
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        with bus.subscribe(">", policy=Lossless()) as subscription:
            for _ in range(2000):
                bus.publish(started())
            async for envelope in subscription:
                if envelope.seq == 2000:
                    break
            done = True
    assert turns >= 5


async def test_two_tasks_share_a_subscription() -> None:
    """Each event of a shared subscription goes to exactly one of its readers."""
    bus = new_bus()
    subscription = bus.subscribe(">", policy=Lossless())
    got: list[int] = []

    async def read() -> None:
        async for envelope in subscription:
            got.append(envelope.seq)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(read)
        for _ in range(20):
            bus.publish(started())
            await anyio.lowlevel.checkpoint()
        bus.close()
    assert sorted(got) == list(range(1, 21))


@on_both
async def test_a_cancelled_reader_loses_nothing() -> None:
    """Cancelled at any of its waits, the reader's next read goes on where it was."""
    bus = new_bus()
    subscription = bus.subscribe(">", policy=Lossless())
    got: list[int] = []

    async def read() -> None:
        async for envelope in subscription:  # not a comprehension: what was read must outlive a cancellation
            got.append(envelope.seq)  # noqa: PERF401

    for round_ in range(6):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                for step in range(6):
                    if step == round_:
                        scope.cancel()
                    bus.publish(started())
                    await anyio.lowlevel.checkpoint()
    bus.close()
    await read()
    assert got == list(range(1, bus.last_seq + 1))


async def test_what_waits_is_still_read_after_closing() -> None:
    """close() ends the coming, not the reading; on a closed bus events are counted and reach nobody."""
    bus = new_bus()
    subscription = bus.subscribe(">")
    bus.publish(started())
    bus.close()
    bus.close()
    assert bus.publish(started()) == 2
    assert [envelope.seq async for envelope in subscription] == [1]
    await subscription.wait()
    assert subscription.closed
    assert bus.statistics().after_close == 1
    assert bus.subscribe(">").closed


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # virtual time would run out over the thread
async def test_another_thread_is_told_what_to_do() -> None:
    """A foreign thread gets WrongLoop, which names publish_threadsafe, and that works."""
    bus = new_bus()
    errors: list[WrongLoop] = []

    def foreign() -> None:
        try:
            bus.publish(started())
        except WrongLoop as error:
            errors.append(error)
        for name in "xyz":
            bus.publish_threadsafe(started(name), session_id="s")

    async with bus.subscribe(">") as subscription:
        thread = threading.Thread(target=foreign)
        thread.start()
        thread.join()
        got = [await anext(subscription) for _ in range(3)]
    assert [envelope.data for envelope in got] == [started(name) for name in "xyz"]
    assert {envelope.session_id for envelope in got} == {"s"}
    assert "publish_threadsafe" in str(errors[0])


def test_without_a_loop_publish_threadsafe_says_so() -> None:
    """There is no loop to publish on: before the first, and after the last."""
    bus = new_bus()
    with pytest.raises(WrongLoop, match="no event loop yet"):
        bus.publish_threadsafe(started())

    async def use() -> None:
        bus.publish(started())

    run_virtual(use)
    with pytest.raises(WrongLoop, match="has ended"):
        bus.publish_threadsafe(started())


def test_a_reader_left_in_a_dead_loop_does_not_break_publish() -> None:
    """The waiter of a loop that is gone is dropped, and publish() goes on."""
    bus = new_bus()
    subscription = bus.subscribe(">")

    class Dead:
        """An asyncio event whose loop was closed under it."""

        def set(self) -> None:
            raise RuntimeError("Event loop is closed")

    subscription._waiter = Dead()  # type: ignore[assignment]
    assert bus.publish(started()) == 1
    assert seqs(subscription.take()) == [1]
