"""The connection to the broker is lost and made again without help from the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from nats.aio.transport import TcpTransport

from callboard.engine.nodes.broker import Broker
from tests.support.nats_server import NatsServer, why_no_nats

pytestmark = [pytest.mark.skipif(why_no_nats() is not None, reason=why_no_nats() or "")]


@asynccontextmanager
async def running(server: NatsServer) -> AsyncIterator[Broker]:
    """A broker that runs and is connected."""
    broker = Broker(server.url, "test")
    connected = anyio.Event()
    broker.on_reconnect(connected.set)
    async with anyio.create_task_group() as group:
        group.start_soon(broker.run)
        await connected.wait()
        try:
            yield broker
        finally:
            await broker.close()
            group.cancel_scope.cancel()


class Inbox:
    """The messages that a subscription has received."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._came = anyio.Event()

    def receive(self, _subject: str, payload: bytes, _reply: str) -> None:
        self.messages.append(payload)
        self._came.set()

    async def wait_for(self, message: bytes) -> None:
        with anyio.fail_after(30):
            while message not in self.messages:
                self._came = anyio.Event()
                await self._came.wait()


async def test_messages_and_answers_arrive_in_order(server: NatsServer) -> None:
    """A receiver that fails gets the next message. A request without a listener returns None immediately."""
    inbox = Inbox()

    def receive(subject: str, payload: bytes, reply: str) -> None:
        inbox.receive(subject, payload, reply)
        if payload == b"50":
            raise ValueError(payload)

    async with running(server) as one, running(server) as other:
        await other.subscribe("a.*", receive)
        await other.subscribe("ask", lambda _subject, payload, reply: other.publish(reply, payload + b"!") or None)
        await other.arrived(30)
        for number in range(100):
            assert one.publish("a.b", b"%d" % number)
        await inbox.wait_for(b"99")
        assert await one.request("ask", b"Hello", 30) == b"Hello!"
        with anyio.fail_after(15):
            assert await one.request("nobody", b"Hello", 30) is None
    assert inbox.messages == [b"%d" % number for number in range(100)]


async def test_the_ping_follows_the_subscription(server: NatsServer) -> None:
    """The client's own ping can overtake a subscription that waits in the client."""
    sent: list[bytes] = []
    write: Any = TcpTransport.write  # The library nats-py has no types.
    write_all: Any = TcpTransport.writelines

    def noting(self: TcpTransport, line: bytes) -> None:
        sent.append(line)
        write(self, line)

    def noting_all(self: TcpTransport, lines: list[bytes]) -> None:
        sent.extend(lines)
        write_all(self, lines)

    async with running(server) as broker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TcpTransport, "write", noting)
            patch.setattr(TcpTransport, "writelines", noting_all)
            await broker.subscribe("a.*", Inbox().receive)
            await broker.arrived(30)
    subscribed = next(place for place, line in enumerate(sent) if line.startswith(b"SUB a.* "))
    assert b"PING\r\n" in sent[subscribed:]


async def test_subscriptions_survive_each_loss_and_return_of_the_broker(server: NatsServer) -> None:
    """Each change is reported once, also an absence at the start. Messages during an absence are lost."""
    server.stop()
    inbox, changes, changed = Inbox(), list[bool](), anyio.Event()

    def change(connected: bool) -> None:
        nonlocal changed
        changes.append(connected)
        changed.set()
        changed = anyio.Event()

    broker = Broker(server.url, "test")
    broker.on_change(change)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(broker.run)
            await changed.wait()
            await broker.subscribe("a", inbox.receive)
            assert await broker.request("a", b"", 1) is None
            server.start()
            await changed.wait()
            assert broker.publish("a", b"1")
            await inbox.wait_for(b"1")
            server.stop()
            await changed.wait()
            assert not broker.publish("a", b"lost")
            server.start()
            await changed.wait()
            assert broker.publish("a", b"again")
            await inbox.wait_for(b"again")
            assert broker.reconnects == 1
            await broker.close()
            group.cancel_scope.cancel()
    assert changes == [False, True, False, True]
    assert inbox.messages == [b"1", b"again"]


@pytest.mark.deep("a wait for a real time limit")
@pytest.mark.timeout(30)
async def test_a_server_that_hangs_has_one_open_connection(server: NatsServer) -> None:
    """The server accepts connections and sends nothing. Each attempt closes the previous connection."""
    broker = Broker(server.url, "test")
    opened: list[asyncio.StreamWriter] = []
    connect = TcpTransport.connect

    async def noting(self: TcpTransport, *arguments: Any, **options: Any) -> None:
        await connect(self, *arguments, **options)
        assert self._io_writer is not None
        opened.append(self._io_writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TcpTransport, "connect", noting)
        async with anyio.create_task_group() as group:
            with server.hanging():
                group.start_soon(broker.run)
                while len(opened) < 3:  # noqa: ASYNC110 - an attempt has no event of its own
                    await anyio.sleep(0.01)
                assert [writer.is_closing() for writer in opened] == [True, True, False]
            await broker.close()
            group.cancel_scope.cancel()
