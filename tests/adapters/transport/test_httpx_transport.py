"""The pool of connections: the connection of each request, and the connections that stay open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpcore
import pytest
from anyio.abc import SocketAttribute, SocketStream

from callboard.adapters.transport.httpx_transport import ConnectionPool

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Server:
    """A server that replies ok to each request."""

    def __init__(self) -> None:
        self.url = ""
        """The server's address."""
        self.opened = 0
        """The number of connections so far."""
        self.silent = False
        """Whether the server no longer replies."""
        self.last = False
        """Whether the server closes each connection after a reply."""
        self.asked = anyio.Event()
        """Set with the first request."""
        self.more = b""
        """Data that the server sends on each connection after a reply, once `speak` is set."""
        self.speak = anyio.Event()

    async def serve(self, stream: SocketStream) -> None:
        self.opened += 1
        async with stream:
            try:
                while await stream.receive():
                    self.asked.set()
                    if self.silent:
                        await anyio.sleep_forever()
                    await stream.send(OK)
                    if self.last:
                        return
                    if self.more:
                        await self.speak.wait()
                        await stream.send(self.more)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.serve)
            yield server
            tasks.cancel_scope.cancel()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(None, 2)
    yield made
    await made.aclose()


async def begin(pool: ConnectionPool, server: Server) -> httpcore.Response:
    return await pool.handle_async_request(httpcore.Request("GET", server.url, headers={"Host": "a"}))


async def whole(pool: ConnectionPool, server: Server) -> bytes:
    reply = await begin(pool, server)
    body = await reply.aread()
    await reply.aclose()
    return body


async def test_requests_one_after_another_share_a_connection(pool: ConnectionPool, server: Server) -> None:
    """The server keeps the connection open. A connection is only used for its own server."""
    async with serving() as other:
        for _ in range(5):
            assert await whole(pool, server) == b"ok"
            assert await whole(pool, other) == b"ok"
        assert (server.opened, other.opened, len(pool.connections)) == (1, 1, 2)


async def test_concurrent_requests_do_not_wait_and_few_connections_are_kept(
    pool: ConnectionPool, server: Server
) -> None:
    """Each request has its own connection. Afterwards, the pool only keeps its maximum."""
    replies = [await begin(pool, server) for _ in range(4)]
    assert server.opened == len(pool.connections) == 4
    for reply in replies:
        assert await reply.aread() == b"ok"
        await reply.aclose()
        await reply.aclose()
    assert len(pool.connections) == 2


async def test_a_connection_that_the_server_closed_is_not_used_again(pool: ConnectionPool, server: Server) -> None:
    """The end is detected before the next request is sent."""
    server.last = True
    assert await whole(pool, server) == b"ok"
    with anyio.fail_after(10):
        while not pool.connections[0].has_expired():  # its end has not arrived yet
            await anyio.lowlevel.checkpoint()
    assert await whole(pool, server) == b"ok"
    assert server.opened == 2
    assert len(pool.connections) == 1


@pytest.mark.parametrize("more", [b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n", OK, b"x"])
async def test_a_connection_with_unexpected_data_is_not_used_again(
    pool: ConnectionPool, server: Server, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data would be taken for the reply to the next request, although the connection is still open."""
    monkeypatch.setattr("callboard.adapters.transport.httpx_transport.KEPT_SECONDS", 3600.0)
    server.more = more
    assert await whole(pool, server) == b"ok"
    assert not pool.connections[0].has_expired()
    server.speak.set()
    with anyio.fail_after(10):
        while not pool.connections[0].has_expired():  # the data has not arrived yet
            await anyio.lowlevel.checkpoint()
    assert await whole(pool, server) == b"ok"
    assert server.opened == 2
    assert len(pool.connections) == 1


async def test_an_unread_reply_closes_its_connection(pool: ConnectionPool, server: Server) -> None:
    """The unread rest would be taken for the next reply."""
    await (await begin(pool, server)).aclose()
    assert pool.connections == []
    assert await whole(pool, server) == b"ok"


async def test_a_cancelled_request_leaves_no_connection(pool: ConnectionPool, server: Server) -> None:
    """The request was already sent, or was still connecting."""
    with anyio.move_on_after(0):
        await begin(pool, server)
    assert pool.connections == []
    server.silent = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin, pool, server)
        await server.asked.wait()
        tasks.cancel_scope.cancel()
    assert pool.connections == []


async def test_closing_also_closes_connections_in_use(pool: ConnectionPool, server: Server) -> None:
    """A reader of such a connection gets an error."""
    reply = await begin(pool, server)
    await pool.aclose()
    assert pool.connections == []
    await reply.aclose()
    assert pool.connections == []
