"""The cost of being a node of a cluster, compared with the same engine alone.

    python -m benchmarks nodes

The first rows are the CPU time of a process for each call that isn't streamed, all its threads, until the broker
has acknowledged all events: with a bridge of its own, and as a node of a cluster. The floor is the same engine
without.

Then the time from an event's commit until a reader of a `RemoteBus` has it, the median over many. The
floor is a bare message of that size through the same broker: kept with an acknowledgement, and read by a consumer.

At last the time from the end of a process, killed amid a turn, until its session goes on elsewhere. It may take
the lease and a second. What frames cost, and how late readers of streams are, is the subject `frames`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from callboard.bus import ActorStarted, Envelope, Lossless
from callboard.engine import Bridge, Cluster, Engine, RemoteBus, Session
from callboard.engine.nodes.bridge import EventBridge
from callboard.engine.nodes.broker import Broker
from callboard.engine.nodes.broker_streams import BrokerEvents
from tests.support.cluster_engines import node_of
from tests.support.nats_server import NatsServer, own_nats_server, why_no_nats
from tests.support.reply_server import reply_server

from . import takeover
from .hosts import engine_on, history, tools
from .per_call import MESSAGES, TOOLS, through_engine
from .table import Row, against, in_turns, micros

_CALLS, _TURNS = 400, 9
_GATE = 1.05
_EVENTS = 300


async def _through(engine: Engine, session: Session, bridge: EventBridge | Bridge | None, calls: int) -> None:
    await through_engine(engine, session, calls)
    while bridge is not None and bridge.statistics().sent < bridge.statistics().committed:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def _beside_calls(server: NatsServer, quick: bool) -> list[Row]:
    calls, repetitions = (20, 1) if quick else (_CALLS, _TURNS)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(50))
        alone = await stack.enter_async_context(engine_on(url))
        bridged = await stack.enter_async_context(engine_on(url))
        bridge = await stack.enter_async_context(Bridge(bridged, server.url, cluster="bench"))
        node = await stack.enter_async_context(engine_on(url, cluster=Cluster(nats=server.url)))
        await node.start()
        contestants = {}
        for name, engine, sends in (
            ("alone", alone, None),
            ("bridge", bridged, bridge),
            ("node", node, node_of(node).bridge),
        ):
            session = engine.session("chat:bench", system_prompt="You are brief.", tools=tools(TOOLS))
            engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES))
            contestants[name] = partial(_through, engine, session, sends, calls)
        spent = await in_turns(contestants, repetitions=repetitions)
        floor = spent["alone"] / calls
        return [
            against("CPU per call with a bridge", spent["bridge"] / calls, floor, gate=_GATE),
            against("CPU per call as a node of a cluster with a broker", spent["node"] / calls, floor),
        ]


async def _event_latency(server: NatsServer, quick: bool) -> Row:
    """Publish one event after another, each when the event before has arrived."""
    events = 20 if quick else _EVENTS
    committed: dict[int, float] = {}

    def note(envelopes: Sequence[Envelope]) -> None:
        committed.update(dict.fromkeys((each.seq for each in envelopes), time.perf_counter()))

    waits = []
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(50))
        engine = await stack.enter_async_context(engine_on(url))
        await engine._runtime.host.watch_commits(note)
        await stack.enter_async_context(Bridge(engine, server.url, cluster="latency"))
        remote = await stack.enter_async_context(RemoteBus(server.url, cluster="latency"))
        with remote.subscribe("actor.started", policy=Lossless()) as subscription:
            for _ in range(events):
                seq = engine.bus.publish(ActorStarted(actor="bench"))
                await engine.flush()
                async for envelope in subscription:
                    if envelope.seq == seq:
                        break
                waits.append(time.perf_counter() - committed[seq])
    floor = await _bare_latency(server, events)
    latency = statistics.median(waits)
    return Row("an event at a reader elsewhere, after its commit", micros(latency), micros(floor), latency / floor)


async def _bare_latency(server: NatsServer, messages: int) -> float:
    broker = Broker(server.url, "bench")
    connected = asyncio.Event()
    broker.on_reconnect(connected.set)
    task = asyncio.create_task(broker.run())
    await connected.wait()
    events, waits = BrokerEvents(broker, "bare"), []
    while not await events.publish("run", "first", b"x" * 300):  # noqa: ASYNC110 (no event reports it)
        await asyncio.sleep(0.01)
    reading = events.read(None)
    await anext(reading)
    for number in range(messages):
        began = time.perf_counter()
        await events.publish("run", str(number), b"x" * 300)
        await anext(reading)
        waits.append(time.perf_counter() - began)
    await reading.aclose()  # type: ignore[attr-defined]
    await broker.close()
    task.cancel()
    return statistics.median(waits)


async def _rows(quick: bool) -> list[Row]:
    with own_nats_server() as server:
        return [
            *await _beside_calls(server, quick),
            await _event_latency(server, quick),
            *await takeover.rows(server, quick),
        ]


def rows(quick: bool) -> list[Row]:
    """The rows of the table of nodes."""
    if (reason := why_no_nats()) is not None:
        return [Row("nodes", reason)]
    return asyncio.run(_rows(quick))
