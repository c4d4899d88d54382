"""Our sockets under the connection pool: the bytes are those that were sent, and no end of one is missed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import httpcore
import pytest

from adapters.transport.connections import ConnectionPool
from adapters.transport.sockets import CORK_BYTES, HIGH_WATER_BYTES, AsyncioSockets, AsyncioStream
from bus.backend import on_asyncio
from tests.support.certificate import local_tls

from ...support.virtual_time import Backend, backend

pytestmark = pytest.mark.anyio

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


class Contexts(NamedTuple):
    """server: with a certificate for 127.0.0.1. trusting, strange: of clients that know it, and that don't."""

    server: ssl.SSLContext
    trusting: ssl.SSLContext
    strange: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    strange = ssl.create_default_context()
    with local_tls(tmp_path_factory.mktemp("tls")) as server:
        return Contexts(server, ssl.create_default_context(), strange)


@asynccontextmanager
async def connected(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[httpcore.AsyncNetworkStream]:
    """A stream to a server that does as the script says, once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    stream = await AsyncioSockets().connect_tcp("127.0.0.1", server.sockets[0].getsockname()[1], timeout=5)
    try:
        yield stream
    finally:
        await stream.aclose()
        server.close()
        await server.wait_closed()


async def read_all(stream: httpcore.AsyncNetworkStream, size: int = 65536) -> bytes:
    parts = []
    while part := await stream.read(size):
        parts.append(part)
    return b"".join(parts)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_a_head_and_its_body_arrive_together() -> None:
    """What is written before the next read leaves as one packet."""
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def first_packet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await reader.read(65536))
        writer.write(b"done")

    async with connected(first_packet) as stream:
        await stream.write(b"head")
        await stream.write(b"")
        await stream.write(b"body")
        assert await stream.read(100) == b"done"
        assert received.get_nowait() == b"headbody"


@pytest.mark.parametrize("size", [1, CORK_BYTES - 1, CORK_BYTES, 5_000_000])
async def test_what_is_sent_comes_back_as_it_was(size: int) -> None:
    """Also when neither side can take it all at once."""
    sent = bytes(index % 251 for index in range(1000)) * (size // 1000 + 1)
    async with connected(echo) as stream:
        got = bytearray()

        async def write() -> None:
            for start in range(0, len(sent), 100_000):
                await stream.write(sent[start : start + 100_000])

        if len(sent) < CORK_BYTES:
            await write()
            while len(got) < len(sent):
                got += await stream.read(1000)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(write)
                while len(got) < len(sent) - len(sent) % 100_000:
                    got += await stream.read(65536)
            while len(got) < len(sent):
                got += await stream.read(65536)
        assert bytes(got) == sent


async def test_a_server_that_sends_more_than_is_read_is_made_to_wait() -> None:
    """What waits here is bounded, and nothing of it is lost."""
    blocks = 64
    block = b"x" * HIGH_WATER_BYTES

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(blocks):
            writer.write(block)
            await writer.drain()

    async with connected(flood) as stream:
        assert isinstance(stream, AsyncioStream)
        first = await stream.read(1)
        while stream._transport.is_reading():  # noqa: ASYNC110 (the loop tells nobody)
            await asyncio.sleep(0)
        assert HIGH_WATER_BYTES < stream._size < 3 * HIGH_WATER_BYTES
        assert len(first + await read_all(stream)) == blocks * len(block)


async def test_no_read_returns_more_than_was_asked_for() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"0123456789")

    async with connected(say) as stream:
        parts = []
        while part := await stream.read(3):
            parts.append(part)
        assert all(len(part) <= 3 for part in parts)
        assert b"".join(parts) == b"0123456789"


async def test_an_end_that_comes_between_two_requests_is_seen_before_the_next_one() -> None:
    """That is how the pool learns that a connection it kept is dead."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(10))

    async with connected(leave) as stream:
        await stream.write(b"hello")
        assert await stream.read(10) == b"hello"
        while not stream.get_extra_info("is_readable"):  # noqa: ASYNC110 (the loop tells nobody)
            await asyncio.sleep(0)
        assert await stream.read(10) == b""


async def test_what_comes_between_two_requests_is_seen_before_the_next_one() -> None:
    """Though the server goes on: as with a time-out that it reports, or a reply to nothing."""

    async def say_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(10))
        writer.write(await reader.read(10))
        await reader.read(10)

    async with connected(say_more) as stream:
        assert isinstance(stream, AsyncioStream)
        await stream.write(b"hello")
        assert await stream.read(10) == b"hello"
        assert not stream.get_extra_info("is_readable")
        stream._line.heard = False
        await stream.write(b"more")
        stream._uncork()
        with anyio.fail_after(10):
            while not stream._line.heard:  # noqa: ASYNC110 (the loop tells nobody)
                await asyncio.sleep(0)
        assert stream.get_extra_info("is_readable")


async def test_a_reset_connection_is_a_read_error() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET,
            socket.SO_LINGER,
            struct.pack("ii", 1, 0),
        )
        writer.transport.abort()

    async with connected(reset) as stream:
        await stream.write(b"hello")
        with pytest.raises(httpcore.ReadError):
            await read_all(stream)


async def test_a_read_out_of_time_says_so_and_the_next_one_still_finds_what_came() -> None:
    go = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(b"at last")

    async with connected(late) as stream:
        with pytest.raises(httpcore.ReadTimeout):
            await stream.read(10, timeout=0.01)
        go.set()
        assert await stream.read(10) == b"at last"


async def test_a_cancelled_read_loses_nothing() -> None:
    go = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(b"at last")

    async with connected(late) as stream:
        with anyio.move_on_after(0.01):
            await stream.read(10)
        go.set()
        assert await stream.read(10) == b"at last"


async def test_nobody_listening_is_a_connect_error() -> None:
    with pytest.raises(httpcore.ConnectError):
        await AsyncioSockets().connect_tcp("127.0.0.1", 1, timeout=5)


async def test_tls_carries_the_same_bytes(tls: Contexts) -> None:
    async with connected(echo, tls.server) as stream:
        secured = await stream.start_tls(tls.trusting, "127.0.0.1", timeout=5)
        sent = b"0123456789" * 20_000
        async with anyio.create_task_group() as group:
            group.start_soon(secured.write, sent)
            got = bytearray()
            while len(got) < len(sent):
                got += await secured.read(65536)
        assert bytes(got) == sent
        assert secured.get_extra_info("ssl_object") is not None


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_certificate_that_is_not_trusted_or_of_another_host_is_a_connect_error(
    tls: Contexts, trusted: bool
) -> None:
    """The check is ssl's own: the context decides."""
    async with connected(echo, tls.server) as stream:
        context, host = (tls.trusting, "elsewhere.test") if trusted else (tls.strange, "127.0.0.1")
        with pytest.raises(httpcore.ConnectError, match="certificate verify failed"):
            await stream.start_tls(context, host, timeout=5)


async def test_a_server_that_speaks_no_tls_is_a_connect_error(tls: Contexts) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with connected(plain) as stream:
        with pytest.raises(httpcore.ConnectError):
            await stream.start_tls(tls.trusting, "127.0.0.1", timeout=5)


async def test_asyncio_is_told_from_what_only_runs_inside_it() -> None:
    """A callback of the loop is no task; neither is trio as the loop's guest."""
    seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: seen.set_result(on_asyncio()))
    assert on_asyncio()
    assert not await seen


async def test_a_warm_connection_waits_for_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the three that httpcore takes for every request; should it rename them, they are back and this tells."""
    kind = type(anyio.Lock())  # anyio's own for asyncio
    acquire, waits = kind.acquire, []

    async def counted(lock: anyio.Lock) -> None:
        waits.append(lock)
        await acquire(lock)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    monkeypatch.setattr(kind, "acquire", counted)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    pool = ConnectionPool(None, 5)
    async with server:
        for expected in (True, False, False):
            waits.clear()
            reply = await pool.handle_async_request(httpcore.Request("GET", url, headers={"Host": "a"}))
            assert await reply.aread() == b"ok"
            await reply.aclose()
            assert bool(waits) is expected
        assert len(pool.connections) == 1
        await pool.aclose()
