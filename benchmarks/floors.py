"""The floors: the same requests with raw httpx and msgspec, and with hand-written HTTP/1.1 over asyncio and
msgspec.

Both have the same methods, and decode every reply and every event of a stream. httpx is what a program without
Callboard would use. The hand-written client is the minimum in Python: it has no TLS, no redirects and no timeouts,
and fails on any unexpected reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httpx
import msgspec

CALLS_PER_CLIENT = 16
"""Concurrent calls that share an httpx client. With more, its pool costs more than the calls."""

decode = msgspec.json.Decoder().decode


class Clients(Protocol):
    """A client of the reply server."""

    events: int
    """The number of stream events read so far."""

    opened: int
    """The number of streams whose reply has begun."""

    async def post(self, path: str, body: object, index: int = 0) -> Any: ...

    async def stream(self, path: str, body: object, index: int = 0) -> None: ...

    async def aclose(self) -> None: ...


class Events:
    """The events of one stream, decoded as the bytes arrive."""

    def __init__(self) -> None:
        self._rest = b""
        self._end = b""

    def take(self, piece: bytes) -> int:
        """Decode the complete events and keep the remaining bytes. Returns the number of events."""
        received = self._rest + piece
        if not self._end:
            self._end = b"\r\n\r\n" if b"\r\n" in received else b"\n\n"
        *frames, self._rest = received.split(self._end)
        for frame in frames:
            data = frame[frame.find(b"data: ") + 6 :]
            if data != b"[DONE]":
                decode(data)
        return len(frames)


class RawClients:
    """Only httpx and msgspec, with one client for each `CALLS_PER_CLIENT` concurrent calls."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.events = 0
        self.opened = 0
        self._url = url
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._clients: list[httpx.AsyncClient] = []

    def client(self, index: int) -> httpx.AsyncClient:
        while len(self._clients) <= index // CALLS_PER_CLIENT:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._clients.append(httpx.AsyncClient(limits=limits, timeout=None, trust_env=False))
        return self._clients[index // CALLS_PER_CLIENT]

    async def post(self, path: str, body: object, index: int = 0) -> Any:
        sent = msgspec.json.encode(body)
        reply = await self.client(index).post(self._url + path, content=sent, headers=self._headers)
        return decode(reply.content)

    async def stream(self, path: str, body: object, index: int = 0) -> None:
        """Read a streamed reply to its end."""
        sent = msgspec.json.encode(body)
        request = self.client(index).stream("POST", self._url + path, content=sent, headers=self._headers)
        async with request as reply:
            self.opened += 1
            events = Events()
            async for piece in reply.aiter_raw():
                self.events += events.take(piece)

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def __aenter__(self) -> RawClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Connection(asyncio.Protocol):
    """A connection of the hand-written client: the received bytes, and the waiter for more."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionResetError())

    async def more(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def up_to(self, end: bytes) -> bytes:
        """Read up to a delimiter. Returns the bytes before it."""
        while (at := self.received.find(end)) < 0:
            await self.more()
        return self._taken(at, at + len(end))

    async def exactly(self, count: int) -> bytes:
        while len(self.received) < count:
            await self.more()
        return self._taken(count, count)

    def _taken(self, count: int, forgotten: int) -> bytes:
        piece = bytes(self.received[:count])
        del self.received[:forgotten]
        return piece


class HandClients:
    """Hand-written HTTP/1.1 and msgspec, with one connection for each concurrent call."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.events = 0
        self.opened = 0
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port)
        all_headers = {"host": parts.netloc, "content-type": "application/json", **(headers or {})}
        self._told = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self._idle: list[Connection] = []

    async def _asked(self, path: str, body: object) -> tuple[Connection, bytes]:
        """Send a request. Returns the connection and the head of the reply."""
        if self._idle:
            connection = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, *self._address)
        sent = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\n{self._told}content-length: {len(sent)}\r\n\r\n"
        connection.transport.write(head.encode() + sent)
        return connection, (await connection.up_to(b"\r\n\r\n")).lower()

    async def post(self, path: str, body: object, index: int = 0) -> Any:
        connection, head = await self._asked(path, body)
        _, _, length = head.partition(b"content-length: ")
        reply = decode(await connection.exactly(int(length.partition(b"\r\n")[0])))
        self._idle.append(connection)
        return reply

    async def stream(self, path: str, body: object, index: int = 0) -> None:
        """Read a streamed reply to its end."""
        connection, _ = await self._asked(path, body)
        self.opened += 1
        events = Events()
        while size := int(await connection.up_to(b"\r\n"), 16):
            self.events += events.take((await connection.exactly(size + 2))[:-2])
        await connection.exactly(2)
        self._idle.append(connection)

    async def aclose(self) -> None:
        for connection in self._idle:
            connection.transport.close()

    async def __aenter__(self) -> HandClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
