"""Actors, compared with an asyncio.Queue and a task that reads it."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio

from callboard.bus import SYSTEM_CLOCK, Actor, ActorRef, Bus, ChildSpec, Supervisor

from .table import Row, against, in_turns, run

BURST = 16
"""Messages between two iterations of the event loop, as many as an actor handles in one."""


class Counter(Actor):
    """Counts its messages, and signals when the expected number has arrived."""

    def __init__(self) -> None:
        self.left = 0
        self.done = asyncio.Event()

    async def receive(self, message: object) -> object:
        self.left -= 1
        if self.left == 0:
            self.done.set()
        return message


async def tell(ref: ActorRef, count: int) -> None:
    actor = ref.actor
    assert isinstance(actor, Counter)
    actor.left, actor.done = count, asyncio.Event()
    for index in range(count):
        if not ref.tell(index):
            raise RuntimeError("a message was refused")
        if index % BURST == 0:
            await asyncio.sleep(0)
    await actor.done.wait()


async def ask(ref: ActorRef, count: int) -> None:
    for index in range(count):
        await ref.ask(index)


async def queue_tell(count: int) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(256)

    async def reader() -> None:
        for _ in range(count):
            await queue.get()

    task = asyncio.create_task(reader())
    for index in range(count):
        await queue.put(index)
        if index % BURST == 0:
            await asyncio.sleep(0)
    await task


async def queue_ask(count: int) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue(256)

    async def reader() -> None:
        for _ in range(count):
            message, answer = await queue.get()
            answer.set_result(message)

    task = asyncio.create_task(reader())
    for index in range(count):
        answer: asyncio.Future[int] = loop.create_future()
        await queue.put((index, answer))
        await answer
    await task


async def _rows(quick: bool) -> list[Row]:
    count = 2_000 if quick else 20_000
    async with anyio.create_task_group() as group:
        root = Supervisor("bench", bus=Bus(), clock=SYSTEM_CLOCK)
        await group.start(root.run)
        ref = await root.start_child(ChildSpec("counter", Counter))
        spent = await in_turns(
            {
                "queue tell": partial(queue_tell, count),
                "tell": partial(tell, ref, count),
                "queue ask": partial(queue_ask, count),
                "ask": partial(ask, ref, count),
            },
            repetitions=2 if quick else 7,
        )
        await root.stop()
    return [
        against("tell, and the message handled", spent["tell"] / count, spent["queue tell"] / count),
        against("ask, and the answer received", spent["ask"] / count, spent["queue ask"] / count),
    ]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
