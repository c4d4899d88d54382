"""Streams that are read on another node: the sender's CPU time for frames, and the reader's delay.

Both nodes are in this process, each with its own connection to a real NATS server, so the delay includes the work
of both sides. The floor is nats-py alone, from publish to subscribe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from callboard.bus import SYSTEM_CLOCK, StreamChannel, TextDelta
from callboard.bus.streams.events import TurnComplete
from callboard.engine import Cluster
from callboard.engine.nodes.broker import Broker
from callboard.engine.nodes.broker_streams import BrokerFrames
from callboard.engine.nodes.frame_sender import Frames
from callboard.engine.nodes.frames import Subjects
from tests.support.nats_server import own_nats_server, why_no_nats

from .table import Row, against, in_turns, micros, percentile, run

DELTA = TextDelta("a few words ", 0, "msg_b")
STREAMS = 100
PACE_SECONDS = 0.02
"""The seconds between two deltas of one stream: 50 deltas a second."""


class Node:
    """The streams of one node, without its engine."""

    def __init__(self, url: str, name: str) -> None:
        self.broker = Broker(url, name)
        self.streams = StreamChannel(clock=SYSTEM_CLOCK, retain_seconds=0, max_bytes=0)
        kept = BrokerFrames(self.broker, "bench", Subjects("bench").stored_pattern)
        cluster = Cluster(nats=url, name="bench")
        self.frames = Frames(
            cluster.name,
            name,
            kept,
            self.streams,
            lambda _: 0,
            None,
            patience=cluster.lease_seconds + 5.0,
            frame_seconds=cluster.frame_seconds,
            frame_bytes=cluster.frame_bytes,
        )

    async def ready(self) -> None:
        while not self.broker.connected or self.frames.mirrors._group is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)


@asynccontextmanager
async def nodes(url: str, *names: str) -> AsyncIterator[list[Node]]:
    made = [Node(url, name) for name in names]
    work = [asyncio.ensure_future(part.run()) for node in made for part in (node.broker, node.frames)]
    try:
        for node in made:
            await node.ready()
        yield made
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for node in made:
            await node.frames.close()
            await node.broker.close()


_numbers = iter(range(10**9))


async def paced(node: Node, ticks: int, *, followed: bool) -> None:
    """Send this number of deltas in each of a hundred streams, at a fixed pace."""
    logs = [node.streams.open(f"trn_{next(_numbers)}") for _ in range(STREAMS)]
    if followed:
        for log in logs:
            node.frames.sender.follow(log, "ses_b", lambda: False)
    began = time.perf_counter()
    for tick in range(ticks):
        for log in logs:
            log.append(DELTA)
        await asyncio.sleep(max(0.0, began + (tick + 1) * PACE_SECONDS - time.perf_counter()))
    for log in logs:
        log.append(TurnComplete("completed"))
        log.close()
    await asyncio.sleep(2 * node.frames.sender.frame_seconds)


async def burst(node: Node, count: int, *, followed: bool) -> None:
    """Send a stream as fast as possible, ten deltas at a time, with a frame after each hundred."""
    log = node.streams.open(f"trn_{next(_numbers)}")
    if followed:
        node.frames.sender.follow(log, "ses_b", lambda: False)
    for index in range(count):
        log.append(DELTA)
        if index % 100 == 99:
            node.frames.sender.flush()
            await asyncio.sleep(0)
    log.append(TurnComplete("completed"))
    log.close()
    node.frames.sender.flush()
    await node.broker.drain()


async def behind(sender: Node, reader: Node, count: int) -> list[float]:
    """The delay in seconds of each delta at a reader on another node, compared with the owner's log."""
    log = sender.streams.open(f"trn_{next(_numbers)}")
    sender.frames.sender.follow(log, "ses_b", lambda: False)
    sent_at: list[float] = []
    late: list[float] = []

    async def read() -> None:
        async for event in reader.frames.mirrors.attach(log.stream_id, 0, _nothing):
            if isinstance(event, TextDelta):
                late.append(time.perf_counter() - sent_at[len(late)])

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0.2)
    for _ in range(count):
        sent_at.append(time.perf_counter())
        log.append(DELTA)
        await asyncio.sleep(PACE_SECONDS)
    log.append(TurnComplete("completed"))
    log.close()
    await reading
    return late


async def bare(url: str, count: int) -> list[float]:
    """The seconds from publish to subscribe with only nats-py."""
    import nats

    sender, receiver = await nats.connect(url), await nats.connect(url)
    late: list[float] = []

    async def take(message: object) -> None:
        late.append(time.perf_counter() - sent_at)

    await receiver.subscribe("floor", cb=take)
    await receiver.flush()
    for _ in range(count):
        sent_at = time.perf_counter()
        await sender.publish("floor", b"x" * 200)
        await asyncio.sleep(PACE_SECONDS)
    await sender.close()
    await receiver.close()
    return late


async def _nothing() -> None:
    """Do nothing, because the node already runs."""


async def _rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    with own_nats_server() as server:
        async with nodes(server.url, "a", "b") as (sender, reader):
            ticks, count, repetitions = (10, 2_000, 1) if quick else (100, 20_000, 5)
            spent = await in_turns(
                {
                    "without": partial(paced, sender, ticks, followed=False),
                    "frames": partial(paced, sender, ticks, followed=True),
                },
                repetitions=repetitions,
            )
            deltas = STREAMS * ticks
            more = (spent["frames"] - spent["without"]) / deltas
            name = f"a delta more, {STREAMS} streams of 50 a second"
            found.append(Row(name, micros(more), micros(spent["without"] / deltas)))
            found.append(Row("  a stream of 50 a second for a second", micros(more * 50)))
            spent = await in_turns(
                {
                    "without": partial(burst, sender, count, followed=False),
                    "frames": partial(burst, sender, count, followed=True),
                },
                repetitions=repetitions,
            )
            found.append(
                against("a delta, a hundred at a time", spent["frames"] / count, spent["without"] / count)
            )
            floor = await bare(server.url, 20 if quick else 200)
            late = await behind(sender, reader, 20 if quick else 200)
            interval = sender.frames.sender.frame_seconds
            for word, share in (("median", 0.5), ("of a hundred the last but one", 0.98)):
                figure, least = percentile(late, share), interval + percentile(floor, share)
                name = f"a reader elsewhere is behind, {word} (floor: + 25 ms), wall"
                found.append(Row(name, micros(figure), micros(least), figure / least, "≤ 1×", figure <= least))
    return found


def rows(quick: bool) -> list[Row]:
    if (reason := why_no_nats()) is not None:
        return [Row(reason, "")]
    return run(_rows(quick))
