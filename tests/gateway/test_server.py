"""The server of the gateway on a real socket: floods, slow clients, smuggled requests, and clients that
disconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
import uvicorn

from callboard.bus import LlmCallFailed, Lossless
from callboard.engine import Engine
from callboard.engine.cli.serve import serve_until_interrupt
from callboard.engine.gateway import GatewayLimits, gateway, server
from callboard.engine.gateway.server import server_options
from tests.support.engines import registry
from tests.support.scripted import Say

BODY = msgspec.json.encode({"model": "s:m", "messages": [{"role": "user", "content": "Hi"}]})
STREAM = msgspec.json.encode({"model": "s:m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]})
PATH = "/v1/chat/completions"


@asynccontextmanager
async def serving(
    *replies: Say,
    limits: GatewayLimits = GatewayLimits(),  # noqa: B008 (frozen)
) -> AsyncIterator[tuple[Engine, int]]:
    """Serve an engine with the gateway's own server. Yields the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with Engine(models=registry(*replies), trace=False) as engine:
        app = gateway(engine, keyless=True, limits=limits)
        config = uvicorn.Config(app, **(server_options() | {"lifespan": "off"}))
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(running.serve(sockets=[listener]))
        try:
            yield engine, listener.getsockname()[1]
        finally:
            running.should_exit = True
            await task


def request(body: bytes, *headers: str, path: str = PATH, method: str = "POST") -> bytes:
    own = ["host: 127.0.0.1", f"content-length: {len(body)}", *headers]
    return f"{method} {path} HTTP/1.1\r\n".encode() + "\r\n".join(own).encode() + b"\r\n\r\n" + body


class Connection:
    """A client that writes bytes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        return int((await asyncio.wait_for(self.reader.readline(), 10)).split()[1])

    async def answers(self) -> list[int]:
        """The status of each response until the server closes the connection. A reset ends the list early."""
        received = b""
        with contextlib.suppress(ConnectionResetError):  # the server closed before it had read everything
            while piece := await asyncio.wait_for(self.reader.read(65536), 10):
                received += piece
        return [int(line[9:12]) for line in received.splitlines() if line.startswith(b"HTTP/1.1 ")]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with serving(Say("one"), Say("two")) as (_, port), connected(port) as client:
        for text in (b"one", b"two"):
            client.send(request(BODY))
            assert await client.status() == 200
            head = await client.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert text in await client.reader.readexactly(length)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/x HTTP/1.1\r\nhost: a\r\nx: " + b"1" * 200_000, 431),
        (b"POST /v1/x HTTP/1.1\r\nhost: a\r\n" + b"x: 1\r\n" * 50_000, 431),
        (b"POST /" + b"x" * 200_000, 431),
        (request(BODY, *(f"x-{number}: 1" for number in range(150))), 431),
        (request(b"", "content-length: 1", "transfer-encoding: chunked"), 400),
        (b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 3\r\n"
         b"transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (request(b"", f"content-length: {2**30}").replace(b"content-length: 0\r\n", b""), 413),
    ],
    ids=["long header", "many headers", "long path", "150 headers", "two lengths", "smuggled", "unequal",
         "negative", "no request", "a gigabyte"],
)  # fmt: skip
async def test_a_flood_or_a_smuggled_request_is_refused_and_its_connection_closed(
    head: bytes, status: int
) -> None:
    async with serving(Say("Hello")) as (_, port), connected(port) as client:
        client.send(head)
        assert await client.answers() in ([status], [])


@pytest.mark.parametrize("depth", [300, 900, 1_000, 100_000])
async def test_too_deep_json_is_refused(depth: int) -> None:
    """JSON that can be decoded may still be too deep for later steps."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth},
    }
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "x"}]  # fmt: skip
    bodies = (msgspec.json.encode({"model": "s:m", "messages": messages}), b"[" * depth + b"]" * depth)
    async with serving(Say("Hello")) as (_, port):
        for body in bodies:
            async with connected(port) as client:
                client.send(request(body))
                assert await client.status() in (200, 400)


async def test_a_body_without_an_end_is_refused_when_it_is_too_large() -> None:
    limits = GatewayLimits(body_bytes=1000)
    async with serving(limits=limits) as (_, port), connected(port) as client:
        head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head.encode() + b"190\r\n" + b"x" * 400 + b"\r\n")
        client.send(b"320\r\n" + b"x" * 800 + b"\r\n")
        assert await client.answers() in ([413], [])


async def test_headers_that_do_not_arrive_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.05)
    async with serving() as (_, port), connected(port) as silent, connected(port) as slow:
        slow.send(b"POST / HTTP/1.1\r\nhost: 127")
        assert await slow.status() == 408
        assert await silent.status() == 408


async def test_a_client_that_stops_reading_is_given_up_and_its_call_cancelled() -> None:
    text = "x" * 1_000_000
    replies = Say(*[text] * 30, pause=_forever_after(29))
    async with serving(replies, limits=GatewayLimits(write_seconds=0.1)) as (engine, port):
        events = engine.bus.subscribe("llm.call_failed", policy=Lossless())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(request(STREAM))
            with anyio.fail_after(10):
                failed = (await anext(aiter(events))).data
    assert isinstance(failed, LlmCallFailed)
    assert failed.error_class == "cancelled"


def _forever_after(number: int) -> Any:
    """A pause that ends this number of times, and then never."""
    count = 0

    async def pause() -> None:
        nonlocal count
        count += 1
        if count > number:
            await anyio.sleep_forever()

    return pause


async def test_responses_do_not_wait_for_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, asyncio's sockets of `socket.create_server` use Nagle's algorithm."""
    made: list[socket.socket] = []
    connection_made = server.BoundedProtocol.connection_made

    def noting(self: Any, transport: Any) -> None:
        connection_made(self, transport)
        made.append(transport.get_extra_info("socket"))

    monkeypatch.setattr(server.BoundedProtocol, "connection_made", noting)
    async with serving(Say("Hello")) as (_, port), connected(port) as client:
        client.send(request(BODY))
        assert await client.status() == 200
        assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_every_server_of_the_command_line_has_these_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`callboard web` and `mcp serve` have the same limits, so that no response waits 40 ms."""
    served: list[uvicorn.Config] = []

    async def serve(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        served.append(self.config)

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await serve_until_interrupt(None, listener)
    assert [config.http for config in served] == [server.BoundedProtocol]


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_client_of_http_1_0_gets_no_chunks(body: bytes) -> None:
    """A stream ends with the connection. A complete response also has its length."""
    async with serving(Say("Hello")) as (_, port), connected(port) as client:
        client.send(request(body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, _, data = (await asyncio.wait_for(client.reader.read(), 10)).partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert b"transfer-encoding" not in head.lower()
    assert (b"content-length: %d" % len(data) in head.lower()) is (body is BODY)
    assert data.startswith(b"{" if body is BODY else b"data: {")
    assert data.endswith(b"}" if body is BODY else b"data: [DONE]\n\n")
