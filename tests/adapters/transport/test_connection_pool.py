"""Connections over real sockets, on both loops of asyncio: connecting, keeping, closing, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
import pytest

from callboard.adapters.transport import connection_pool as http1_pool
from callboard.adapters.transport import http1_connection as http1_connection
from callboard.adapters.transport.connection_pool import Http1Transport, Pool, connect, target_of, tls_context
from callboard.adapters.transport.http1_connection import Connection as Made
from callboard.adapters.transport.transport import HttpRequest, exchange, read_body
from callboard.bus.errors import NetworkError, RequestTimeoutError

from ...support.certificate import local_tls
from ...support.http1_wire import Line, Wire
from ...support.scripted_server import Connection, echo, serving
from ...support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("asyncio", "uvloop")

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def transport() -> AsyncIterator[Http1Transport]:
    made = Http1Transport()
    try:
        yield made
    finally:
        await made.aclose()


def post(url: str, body: bytes = b"{}", **changes: object) -> HttpRequest:
    return msgspec.structs.replace(HttpRequest("POST", url, {}, body), **changes)


async def talk(via: Http1Transport, url: str, body: bytes = b"{}") -> bytes:
    return (await exchange(via, post(url, body)))[1]


@asynccontextmanager
async def raw_server(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve raw connections with the script, one after the other. Yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()


async def test_each_request_at_once_has_a_connection_and_later_ones_share_them() -> None:
    arrived, release, calls = anyio.Event(), anyio.Event(), 40

    async def script(connection: Connection) -> None:
        body = await connection.request()
        if len(connection.server.requests) == calls:
            arrived.set()
        await release.wait()
        await connection.reply(body)

    async with serving(script) as server, transport() as via:
        async with anyio.create_task_group() as tasks:
            for _ in range(calls):
                tasks.start_soon(talk, via, server.url)
            await arrived.wait()
            assert (via.statistics().clients, via.statistics().in_use) == (1, calls)
            release.set()
        for _ in range(calls):
            await talk(via, server.url)
        assert server.connections == server.open == calls
        assert via.statistics().in_use == 0


async def test_servers_are_distinguished() -> None:
    """Servers differ by name, port and scheme."""
    async with serving(echo) as one, serving(echo) as other, transport() as via:
        for _ in range(3):
            assert await talk(via, one.url, b"1") == b"said 1"
            assert await talk(via, other.url, b"2") == b"said 2"
        assert (one.connections, other.connections) == (1, 1)
        assert via.statistics().clients == 2
        await talk(via, one.url.replace("127.0.0.1", "localhost"))
        assert one.connections == 2


async def test_an_idle_connection_is_closed_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed without another request. Its server is removed with the next new one."""
    monkeypatch.setattr(http1_connection, "KEPT_SECONDS", 0.0)
    async with serving(echo) as server, serving(echo) as other, transport() as via:
        await talk(via, server.url)
        await server.until_open(0)
        assert via.statistics().clients == 1
        await talk(via, other.url)
        assert via.statistics().clients == 1


async def test_a_server_that_closes_an_idle_connection_is_noticed() -> None:
    """The next request uses a new connection and is sent once."""
    closed = anyio.Event()

    async def script(connection: Connection) -> None:
        await connection.reply(await connection.request())
        if connection.number == 0:
            await closed.wait()
            raise anyio.EndOfStream

    async with serving(script) as server, transport() as via:
        await talk(via, server.url)
        (pool,) = via._pools.values()
        assert len(pool._idle) == 1
        closed.set()
        with anyio.fail_after(10):
            while pool._idle:  # noqa: ASYNC110 (the loop tells nobody)
                await asyncio.sleep(0)
        told: list[str] = []
        await (await via.send(post(server.url, on_resend=lambda: told.append("resent")))).aclose()
        assert (len(server.requests), server.connections, told) == (2, 2, [])


async def test_closing_also_closes_connections_in_use() -> None:
    """A reader of such a connection gets an error. All sockets are closed when the method returns."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.start_chunks()
        await connection.request()

    async with serving(script) as server:
        via = Http1Transport()
        reply = await via.send(post(server.url))
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                with pytest.raises(NetworkError, match="closed"):
                    await reply.chunk()

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            (pool,) = via._pools.values()
            connections = list(pool._open)
            await via.aclose()
            assert [connection._lost for connection in connections] == [True]
        await server.until_open(0)
        await reply.aclose()


def test_another_event_loop_gets_its_own_connections() -> None:
    """A host may call `asyncio.run` several times with one adapter for one server."""
    via, listener = Http1Transport(), socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    async def once() -> bytes:
        async with await asyncio.start_server(answer, sock=listener.dup()):
            said = await talk(via, url)
            (pool,) = via._pools.values()
            for connection in list(pool._open):
                connection.abort()  # otherwise the garbage collector would find its socket
                await connection.wait_closed()
            return said

    with listener:
        assert [asyncio.run(once()) for _ in range(2)] == [b"ok"] * 2


async def test_an_expired_connection_is_not_used_even_if_its_timer_is_late() -> None:
    """The event loop may have been busy for longer than the connection's time."""
    pool, line = Pool(target_of("http://api.test/").origin, "api.test", ssl.create_default_context), Line()
    pool._keep(line.connection)
    assert line.connection.kept_until == 0.0
    assert pool.pick() is None
    assert line.wire.ended
    pool.close()


async def test_connecting_to_a_slow_server_has_a_time_limit() -> None:
    """The request was not sent, so any attempt may follow."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        started.set()
        await reader.read()  # the rest of the client's data, until the client closes
        ended.set()

    started, ended = asyncio.Event(), asyncio.Event()
    async with raw_server(silent) as port, transport() as via:
        with pytest.raises(RequestTimeoutError, match="within the connect timeout") as raised:
            await via.send(post(f"https://127.0.0.1:{port}/", connect_timeout=0.05))
        assert raised.value.before_sending
        assert via.statistics().in_use == 0
        with anyio.fail_after(10):
            await ended.wait()
        started.clear()
        ended.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(via.send, post(f"https://127.0.0.1:{port}/"))
            await started.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            await ended.wait()


@pytest.mark.parametrize("how", ["ended", "spoke", "closed"])
async def test_a_connection_that_ended_before_the_request_is_not_used(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was not sent, so any attempt may follow. The old connection would never reply."""
    wires = []

    async def connect(origin: object, context: object, make: Callable[[], Made], *, public_only: bool) -> Made:
        connection = make()
        wires.append(wire := Wire())
        connection.connection_made(wire)
        match how:
            case "ended":
                connection.eof_received()
            case "spoke":
                connection.data_received(b"HTTP/1.1 503 No\r\n\r\n")
            case _:
                asyncio.get_running_loop().call_soon(via._pools[target_of("http://api.test/").origin].close)
                await asyncio.sleep(0)
        return connection

    monkeypatch.setattr(http1_pool, "connect", connect)
    via = Http1Transport()
    with pytest.raises(NetworkError, match="could not connect") as raised:
        await via.send(post("http://api.test/"))
    assert raised.value.before_sending
    assert via.statistics().in_use == 0
    assert wires[0].ended
    assert wires[0].sent == []


class Contexts(NamedTuple):
    """The TLS contexts of both sides."""

    server: ssl.SSLContext
    """The context of a server with a certificate for 127.0.0.1."""
    trusting: ssl.SSLContext
    """The context of clients that trust the certificate."""
    strange: ssl.SSLContext
    """The context of clients that don't trust it."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    from callboard.adapters.transport.connection_pool import tls_context

    strange = tls_context()
    with local_tls(tmp_path_factory.mktemp("tls")) as server:
        server.set_alpn_protocols(["h2", "http/1.1"])
        return Contexts(server, tls_context(), strange)


async def test_tls_transfers_the_same_bytes_with_http_1(tls: Contexts) -> None:
    """Many requests use one connection, one after the other."""
    sent = b"0123456789" * 50_000
    async with serving(echo, tls=tls.server) as server, transport() as via:
        via._context = tls.trusting
        for _ in range(3):
            assert await talk(via, server.url, sent) == b"said " + sent
        assert server.connections == 1
        (pool,) = via._pools.values()
        (connection,) = pool._open
        assert connection._transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("trusted", [True, False])
async def test_an_untrusted_certificate_or_one_of_another_host_is_refused(tls: Contexts, trusted: bool) -> None:
    """The context of `ssl` checks the certificate."""
    async with serving(echo, tls=tls.server) as server, transport() as via:
        via._context = tls.trusting if trusted else tls.strange
        url = server.url.replace("127.0.0.1", "localhost") if trusted else server.url
        with pytest.raises(NetworkError, match="certificate verify failed") as raised:
            await via.send(post(url))
        assert raised.value.before_sending
        await server.until_open(0)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_server_without_tls_is_refused(said: bytes) -> None:
    """A server that ends the connection during the handshake is refused, too."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)

    async with raw_server(plain) as port, transport() as via:
        with pytest.raises(NetworkError, match="could not connect"):
            await via.send(post(f"https://127.0.0.1:{port}/"))


async def test_an_end_without_tls_s_notice_is_an_end(tls: Contexts) -> None:
    """Some servers don't send TLS's notice. A body that ends with the connection is complete, and a shorter one is
    not.
    """

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = b"" if b"whole" in head else b"Content-Length: 10\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\nhello")
        await writer.drain()
        writer.transport.abort()

    async with raw_server(script, tls.server) as port, transport() as via:
        via._context = tls.trusting
        reply = await via.send(post(f"https://127.0.0.1:{port}/whole"))
        assert await read_body(reply) == b"hello"
        with pytest.raises(NetworkError):
            await exchange(via, post(f"https://127.0.0.1:{port}/"))


# -- A connection that is cancelled during its creation leaves nothing, and does not affect other sockets.


AFTERWARDS = 20
"""The turns of the event loop in which the rest of a connection could act."""


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def contexts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[ssl.SSLContext, ssl.SSLContext] | None]:
    """The contexts of the server and the client. None without TLS."""
    if not request.param:
        yield None
        return
    with local_tls(tmp_path) as server:
        yield server, tls_context()


def made() -> Made:
    return Made("a server", lambda connection: None, lambda connection: None)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def talk_over_a_new_socket() -> None:
    """Use a new socket, which has the number of the last closed socket."""
    ours, theirs = socket.socketpair()
    with theirs, anyio.fail_after(5):
        reader, writer = await asyncio.open_connection(sock=ours)
        await turns(AFTERWARDS)
        theirs.send(b"heard")
        assert await reader.readexactly(5) == b"heard"
        writer.close()
        await writer.wait_closed()


async def test_the_next_socket_with_the_same_number_is_not_affected(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None,
) -> None:
    """The connection is cancelled at any turn of the event loop, including the end of the handshake."""

    async def silent(connection: object) -> None:
        await anyio.sleep_forever()

    server_context, client_context = contexts or (None, None)
    async with serving(silent, tls=server_context) as server:
        origin = target_of(server.url).origin
        for at in range(1000):
            task = asyncio.create_task(connect(origin, client_context, made, public_only=False))
            await turns(at)
            if task.done():
                (await task).abort()
                break
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await talk_over_a_new_socket()
        assert 1 < at < 999
