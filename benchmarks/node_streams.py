"""What frames cost the node of a stream, and how late a reader on another node is."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from functools import partial

from engine import Cluster, Engine
from engine.nodes.nats.broker import Broker
from tests.support.nats_server import NatsServer
from tests.support.reply_server import reply_server

from .hosts import engine_on
from .table import Row, against, in_turns, micros, percentile

PER_SECOND = 50
FRAME_SECONDS = Cluster(nats="nats://any").frame_seconds


async def rows(server: NatsServer, quick: bool) -> list[Row]:
    """The rows of streams."""
    return [await _burst(server, quick), await _paced(server, quick), await _lag(server, quick)]


async def _streams(engine: Engine, number: int) -> None:
    async def one() -> None:
        async with engine.session("chat:bench").stream("Go on.", max_output_tokens=1000) as turn:
            async for _ in turn:
                pass

    await asyncio.gather(*(one() for _ in range(number)))


async def _burst(server: NatsServer, quick: bool) -> Row:
    """Replies that come as fast as they are read."""
    deltas, number, repetitions = 500, 5 if quick else 20, 1 if quick else 7
    spent = await _beside(server, None, deltas, number, repetitions)
    return against("CPU per delta of a node, burst", spent["node"], spent["alone"])


async def _paced(server: NatsServer, quick: bool) -> Row:
    """Fifty deltas a second in each of many streams."""
    deltas, number, repetitions = (50, 5, 1) if quick else (200, 50, 3)
    spent = await _beside(server, PER_SECOND, deltas, number, repetitions)
    return against(f"CPU per delta of a node, paced, {number} streams", spent["node"], spent["alone"])


async def _beside(
    server: NatsServer, pace: float | None, deltas: int, number: int, repetitions: int
) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(deltas, pace))
        alone = await stack.enter_async_context(engine_on(url))
        node = await stack.enter_async_context(engine_on(url, cluster=Cluster(nats=server.url, name="frames")))
        spent = await in_turns(
            {"alone": partial(_streams, alone, number), "node": partial(_streams, node, number)},
            repetitions=repetitions,
        )
    return {name: seconds / number / deltas for name, seconds in spent.items()}


async def _lag(server: NatsServer, quick: bool) -> Row:
    """How much later a reader on another node has each event of a stream than one on its own."""
    deltas, number = (50, 2) if quick else (200, 10)
    cluster = Cluster(nats=server.url, name="lag")
    lags: list[float] = []

    async def read(engine: Engine, stream_id: str) -> list[float]:
        async with engine.attach(stream_id) as reader:
            return [time.perf_counter() async for _ in reader]

    async def one(owner: Engine, other: Engine) -> None:
        async with owner.session("chat:bench").stream("Go on.", max_output_tokens=1000) as turn:
            here, there = await asyncio.gather(read(owner, turn.stream_id), read(other, turn.stream_id))
        assert len(here) == len(there)
        lags.extend(late - soon for soon, late in zip(here, there, strict=True))

    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(deltas, PER_SECOND))
        owner = await stack.enter_async_context(engine_on(url, cluster=cluster))
        other = await stack.enter_async_context(engine_on(url, cluster=cluster))
        await owner.start()
        await other.start()
        await asyncio.sleep(0.5)  # both connected
        await asyncio.gather(*(one(owner, other) for _ in range(number)))
    floor = FRAME_SECONDS + await _bare_latency(server, 50 if quick else 500)
    late = percentile(lags, 0.99)
    name = f"a reader elsewhere is behind, 99th of 100 events (median {micros(statistics.median(lags))})"
    return Row(name, micros(late), micros(floor), late / floor)


async def _bare_latency(server: NatsServer, messages: int) -> float:
    """Of a message that is sent and not kept: the 99th of 100."""
    waits, came = [], asyncio.Event()
    async with AsyncExitStack() as stack:
        brokers = []
        for name in ("one", "other"):
            broker, connected = Broker(server.url, name), asyncio.Event()
            broker.on_reconnect(connected.set)
            task = asyncio.create_task(broker.run())
            await connected.wait()
            stack.push_async_callback(broker.close)
            stack.callback(task.cancel)
            brokers.append(broker)
        await brokers[1].subscribe("bare.latency", lambda _subject, _payload, _reply: came.set())
        await brokers[1].drain()
        for _ in range(messages):
            came.clear()
            began = time.perf_counter()
            brokers[0].publish("bare.latency", b"x" * 300)
            await came.wait()
            waits.append(time.perf_counter() - began)
    return percentile(waits, 0.99)
