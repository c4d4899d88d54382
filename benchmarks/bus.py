"""The event bus, compared with a bare deque and event for each subscriber, drained in batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial

from callboard.bus import Bus, LlmCallStarted, Lossless, Subscription

from .table import Row, against, in_turns, micros, per_second, percentile, run

BURST = 64
EVENT = LlmCallStarted(provider="p", model="p:m", requested_model="p:m", streamed=True)


class BareQueue:
    """A subscriber without any features, as the floor."""

    def __init__(self) -> None:
        self.items: deque[object] = deque()
        self.waiter: asyncio.Event | None = None

    def push(self, item: object) -> None:
        self.items.append(item)
        if self.waiter is not None:
            self.waiter.set()
            self.waiter = None

    async def read(self, count: int) -> None:
        items = self.items
        while count:
            if not items:
                self.waiter = asyncio.Event()
                await self.waiter.wait()
            while items:
                items.popleft()
                count -= 1


async def bare(events: int, subscribers: int) -> None:
    queues = [BareQueue() for _ in range(subscribers)]
    readers = [asyncio.create_task(queue.read(events)) for queue in queues]
    await asyncio.sleep(0)
    for index in range(events):
        for queue in queues:
            queue.push(EVENT)
        if index % BURST == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*readers)


async def _iterate(subscription: Subscription, count: int) -> None:
    async for _ in subscription:
        count -= 1
        if count == 0:
            return


async def _take(subscription: Subscription, count: int) -> None:
    while count:
        await subscription.wait()
        for _ in subscription.take():
            count -= 1


async def whole(events: int, subscribers: int, *, batches: bool) -> None:
    bus = Bus()
    subscriptions = [bus.subscribe("llm.*", policy=Lossless()) for _ in range(subscribers)]
    read = _take if batches else _iterate
    readers = [asyncio.create_task(read(subscription, events)) for subscription in subscriptions]
    await asyncio.sleep(0)
    for index in range(events):
        bus.publish(EVENT)
        if index % BURST == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*readers)
    bus.close()


async def publish_only(events: int, *, subscribed: bool) -> None:
    bus = Bus()
    if subscribed:
        bus.subscribe("llm.*", policy=Lossless())
    for _ in range(events):
        bus.publish(EVENT)


async def append_only(events: int) -> None:
    items: deque[object] = deque()
    for _ in range(events):
        items.append(EVENT)


async def bare_latency(samples: int) -> list[float]:
    queue, seen = BareQueue(), asyncio.Event()
    times: list[float] = []

    async def reader() -> None:
        for _ in range(samples):
            await queue.read(1)
            times.append(time.perf_counter() - sent)
            seen.set()

    task = asyncio.create_task(reader())
    await asyncio.sleep(0)
    for _ in range(samples):
        seen.clear()
        sent = time.perf_counter()
        queue.push(EVENT)
        await seen.wait()
        await asyncio.sleep(0.0002)
    await task
    return times


async def bus_latency(samples: int) -> list[float]:
    bus, seen = Bus(), asyncio.Event()
    times: list[float] = []

    async def reader() -> None:
        async for _ in subscription:
            times.append(time.perf_counter() - sent)
            seen.set()

    subscription = bus.subscribe("llm.*", policy=Lossless())
    task = asyncio.create_task(reader())
    await asyncio.sleep(0)
    for _ in range(samples):
        seen.clear()
        sent = time.perf_counter()
        bus.publish(EVENT)
        await seen.wait()
        await asyncio.sleep(0.0002)
    bus.close()
    await task
    return times


async def _rows(quick: bool) -> list[Row]:
    events = 5_000 if quick else 100_000
    repetitions = 2 if quick else 7
    found: list[Row] = []
    for subscribers, gate in ((1, 500_000), (10, 150_000)):
        count = events if subscribers == 1 else events // 5
        spent = await in_turns(
            {
                "floor": partial(bare, count, subscribers),
                "async for": partial(whole, count, subscribers, batches=False),
                "wait and take": partial(whole, count, subscribers, batches=True),
            },
            repetitions=repetitions,
        )
        floor = count / spent["floor"]
        for way in ("async for", "wait and take"):
            rate = count / spent[way]
            name = f"events to {subscribers} subscriber{'s' * (subscribers > 1)}, {way}"
            limit = f"≥ {gate // 1000}k/s"
            found.append(Row(name, per_second(rate), per_second(floor), floor / rate, limit, rate >= gate))
    spent = await in_turns(
        {
            "floor": partial(append_only, events),
            "nobody": partial(publish_only, events, subscribed=False),
            "one": partial(publish_only, events, subscribed=True),
        },
        repetitions=repetitions,
    )
    floor = spent["floor"] / events
    found.append(against("publish, nobody subscribed", spent["nobody"] / events, floor))
    found.append(against("publish, one subscriber that doesn't wait", spent["one"] / events, floor))
    samples = 200 if quick else 3_000
    bare_p99 = percentile(await bare_latency(samples), 0.99)
    p99 = percentile(await bus_latency(samples), 0.99)
    found.append(
        Row("idle latency p99, wall", micros(p99), micros(bare_p99), p99 / bare_p99, "< 250 µs", p99 < 250e-6)
    )
    return found


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
