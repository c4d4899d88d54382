"""A bus with the events of other processes, over a real broker that is stopped, wiped and started again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from callboard.bus import ConfigurationError, DropOldest, Envelope, Lossless, SessionMessageAppended, Subscription
from callboard.engine import Bridge, Cluster, Engine, RemoteBus
from callboard.engine.nodes import broker_streams
from callboard.engine.nodes.broker import Broker
from callboard.engine.nodes.broker_streams import BrokerEvents
from callboard.tracestore import PostgresStore, Store, TraceStore
from callboard.tracestore.codec import decode_line, encode_line
from tests.engine.nodes.bridge.event_making import events
from tests.support.engines import registry
from tests.support.nats_server import NatsServer, why_no_nats
from tests.support.postgres_server import why_not
from tests.support.scripted import Say

if TYPE_CHECKING:
    from nats.js.api import ConsumerConfig

pytestmark = [pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")]
TURNS = 30


def node(server: NatsServer, path: Path, store: str | None = None, **options: bool) -> Engine:
    """An engine of a cluster."""
    return Engine(
        models=registry(*[Say("Hello.")] * TURNS),
        store=path,
        cluster=Cluster(nats=server.url, store=store, **options),  # type: ignore[arg-type]
    )


class Reader:
    """The events that a subscription has received."""

    def __init__(self, subscription: Subscription) -> None:
        self.got: list[Envelope] = []
        self._subscription = subscription
        self._came = anyio.Event()

    async def read(self) -> None:
        async for envelope in self._subscription:
            self.got.append(envelope)
            self._came.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the received events meet the condition."""
        with anyio.fail_after(30):
            while not condition():
                self._came = anyio.Event()
                await self._came.wait()

    async def has(self, wanted: list[Envelope]) -> None:
        """Wait for the last of these events. The reader must have exactly these events of the run, in order."""
        last = wanted[-1]
        await self.until(lambda: any(_id(each) == _id(last) for each in self.got))
        assert [each for each in self.got if each.run_id == last.run_id][: len(wanted)] == wanted


def _id(envelope: Envelope) -> tuple[str, int]:
    return envelope.run_id, envelope.seq


@asynccontextmanager
async def reading(remote: RemoteBus, *patterns: str) -> AsyncIterator[Reader]:
    """A lossless reader of a remote bus."""
    with remote.subscribe(*(patterns or (">",)), policy=Lossless()) as subscription:
        async with remote, anyio.create_task_group() as group:
            reader = Reader(subscription)
            group.start_soon(reader.read)
            yield reader
            group.cancel_scope.cancel()


def stored(envelopes: list[Envelope]) -> list[Envelope]:
    """The events without content, as in a trace."""
    return [decode_line(encode_line(envelope)) for envelope in envelopes]


async def committed(engine: Engine) -> list[Envelope]:
    """All events of an engine's run, from its trace."""
    await engine.flush()
    return await engine.store.events(run_id=engine.bus.run_id, limit=None)


async def talk(engine: Engine, turns: int = 1) -> None:
    session = engine.session("s:m")
    for _ in range(turns):
        await session.send("Hi")


@pytest.mark.parametrize("kind", ["cluster", "alone", "late"])
async def test_another_process_gets_the_same_envelopes(server: NatsServer, tmp_path: Path, kind: str) -> None:
    """The engine is in a cluster, or has its own bridge from the start, or gets its own bridge later."""
    remote = RemoteBus(server.url)
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(reading(remote))
        if kind == "cluster":
            engine = await stack.enter_async_context(node(server, tmp_path / "trace.db"))
            await talk(engine, 3)
        else:
            models = registry(*[Say("Hello.")] * TURNS)
            engine = await stack.enter_async_context(Engine(models=models, store=tmp_path / "trace.db"))
            if kind == "late":
                await talk(engine)
            bridge = await stack.enter_async_context(Bridge(engine, server.url))
            await talk(engine, 3)
        wanted = await committed(engine)
        await reader.has(wanted)
        if kind != "cluster":  # The broker's acknowledgement can arrive after the reader has the events.
            with anyio.fail_after(30):
                while bridge.statistics().sent < wanted[-1].seq:
                    await anyio.lowlevel.checkpoint()
    assert remote.remote_statistics().passed_over == 0


async def test_an_engine_has_one_bridge(server: NatsServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="automatically"):
        Bridge(node(server, tmp_path / "trace.db"), server.url)
    with pytest.raises(ConfigurationError, match="keeps no trace"):
        Bridge(Engine(models=registry(Say("Hello.")), trace=False), server.url)


async def test_subscriptions_are_as_on_a_bus(server: NatsServer, tmp_path: Path) -> None:
    remote = RemoteBus(server.url)
    slow = remote.subscribe(">", policy=DropOldest(4))
    async with node(server, tmp_path / "trace.db") as engine, reading(remote, "llm.*") as reader:
        await talk(engine, 5)
        wanted = [each for each in await committed(engine) if each.topic.startswith("llm.")]
        await reader.has(wanted)
        assert slow.depth <= 4
        assert slow.statistics().dropped > 0


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_not_sent_unless_configured(server: NatsServer, tmp_path: Path, content: bool) -> None:
    async with (
        reading(RemoteBus(server.url), "session.message_appended") as reader,
        node(server, tmp_path / "trace.db", content=content) as engine,
    ):
        await talk(engine)
        await reader.until(lambda: len(reader.got) == 2)
    messages = [each.data.message for each in reader.got if isinstance(each.data, SessionMessageAppended)]
    assert [message.text for message in messages] == (["Hi", "Hello."] if content else ["", ""])


async def test_an_unavailable_broker_loses_no_event(server: NatsServer, tmp_path: Path) -> None:
    """The engine starts without the broker. The broker then stops and returns."""
    server.stop()
    async with node(server, tmp_path / "trace.db") as engine:
        await talk(engine)
        server.start()
        async with reading(RemoteBus(server.url, since=0)) as reader:
            await reader.has(await committed(engine))
            server.stop()
            await talk(engine, 5)
            server.start()
            await talk(engine, 5)
            await reader.has(await committed(engine))


async def test_a_wiped_broker_loses_no_event(server: NatsServer, tmp_path: Path) -> None:
    async with node(server, tmp_path / "trace.db") as engine:
        await talk(engine)
        await engine.flush()
        store = TraceStore.open_readonly(tmp_path / "trace.db")
        remote = RemoteBus(server.url, store=store, since=0, sweep_seconds=0.2)
        async with store, reading(remote) as reader:
            await reader.has(await committed(engine))
            for _ in range(3):
                await talk(engine, 2)
                server.stop()
                server.wipe()
                await talk(engine, 2)
                server.start()
                await talk(engine, 2)
            await reader.has(await committed(engine))
        assert remote.remote_statistics().passed_over == 0


async def test_the_end_of_a_process_that_died_comes_from_the_store(server: NatsServer, tmp_path: Path) -> None:
    """The process had committed events that it could not send."""
    async with TraceStore(tmp_path / "trace.db") as store:
        remote = RemoteBus(server.url, store=store, sweep_seconds=0.05)
        async with reading(remote) as reader:
            await store.write(events([1, 2, 5], "run_dead"))
            await reader.has(stored(events([1, 2, 5], "run_dead")))


async def test_a_reader_of_new_events_gets_no_earlier_event(server: NatsServer, tmp_path: Path) -> None:
    engine = node(server, tmp_path / "trace.db")
    connected = engine.bus.subscribe("nodes.broker_changed")
    async with engine:
        await anext(connected)
        await talk(engine, 2)
        before = await committed(engine)
        async with TraceStore.open_readonly(tmp_path / "trace.db") as store:
            async with reading(RemoteBus(server.url, store=store, sweep_seconds=0.2)) as reader:
                server.stop()
                server.wipe()
                await talk(engine, 2)
                server.start()
                await talk(engine, 2)
                await reader.has((await committed(engine))[len(before) :])


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
@pytest.mark.parametrize("shipped", [True, False])
async def test_the_shared_store_fills_gaps(
    server: NatsServer, tmp_path: Path, postgres_dsn: str, shipped: bool
) -> None:
    """The engine ships its file to the store, or writes to the store directly."""
    async with AsyncExitStack() as stack:
        if shipped:
            engine = node(server, tmp_path / "trace.db", store=postgres_dsn)
        else:
            store: Store = PostgresStore(postgres_dsn, path=tmp_path / "spill")
            models = registry(*[Say("Hello.")] * TURNS)
            engine = Engine(models=models, store=store, cluster=Cluster(nats=server.url))
        await stack.enter_async_context(engine)
        await talk(engine)
        reader = await stack.enter_async_context(
            reading(RemoteBus(server.url, store=postgres_dsn, since=0, sweep_seconds=0.2))
        )
        await reader.has(await committed(engine))
        server.stop()
        server.wipe()
        await talk(engine, 3)
        server.start()
        await talk(engine, 3)
        await reader.has(await committed(engine))


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[BrokerEvents]:
    broker = Broker(server.url, "reader")
    async with anyio.create_task_group() as group:
        group.start_soon(broker.run)
        with anyio.fail_after(10):
            await broker.reached()
        yield BrokerEvents(broker, "callboard")
        group.cancel_scope.cancel()
    await broker.close()


async def test_the_last_message_of_each_run_is_read(server: NatsServer, tmp_path: Path) -> None:
    for name in "ab":
        async with node(server, tmp_path / f"{name}.db") as engine:
            for _ in range(3):
                await engine.session("s:m").send("Hi")
            run_id = engine.bus.run_id
    async with connected(server) as broker:
        position, heads = await broker.heads()
    assert position is not None
    ends = {head.partition(":")[0]: int(head.rpartition("-")[2]) for head in heads}
    assert len(ends) == len(heads) == 2
    async with TraceStore.open_readonly(tmp_path / "b.db") as store:
        stored = await store.run_events(run_id, 0, 1000)
    assert stored[0].seq < ends[run_id] <= stored[-1].seq


async def test_a_message_that_the_broker_drops_does_not_keep_a_reader_from_starting(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker counts the last message of each run, and drops one of them before the reader requests it."""
    monkeypatch.setattr(broker_streams, "HEADS_SECONDS", 0.2)
    pulling = BrokerEvents._pulling

    @asynccontextmanager
    async def one_too_many(self: BrokerEvents, config: ConsumerConfig) -> AsyncIterator[tuple[Any, int]]:
        async with pulling(self, config) as (pull, waiting):
            yield pull, waiting + 1

    monkeypatch.setattr(BrokerEvents, "_pulling", one_too_many)
    async with connected(server) as broker:
        with anyio.fail_after(10):
            assert await broker.heads() == (None, [])
