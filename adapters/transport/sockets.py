"""Sockets on asyncio itself, for the pools of `connections`.

On asyncio httpcore reads and writes through anyio's streams. Their cancel scopes, locks and checkpoints are a
third of the cost of a token that comes alone. Our reads have cancel scopes of their own, so we need none of this.
Here the event loop hands the bytes over. The pieces that httpcore writes one by one (a request's head, then its
body) leave as one packet. On trio, httpcore's own way stays as it is.

Timeouts are in seconds. Errors are httpcore's, as in `httpcore.AsyncNetworkStream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, cast

import anyio
import httpcore
from anyio.abc import SocketAttribute

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION

HIGH_WATER_BYTES = 256 * 1024
"""With so much received and not yet read, the server is made to wait."""

CORK_BYTES = 64 * 1024
"""So much is held back for a write that may follow."""


class Line:
    """The state of one connection."""

    heard = False
    """Whether a byte came since this was last set to False."""


class AsyncioSockets(httpcore.AsyncNetworkBackend):
    """Opens TCP connections, to the address of a host that answers first.

    Args:
        line: Learns whether bytes came over the connection.
    """

    def __init__(self, line: Line | None = None) -> None:
        self._line = line or Line()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        async with _within(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
            connected = await _connected(host, port, local_address)
            try:
                _, stream = await loop.create_connection(lambda: AsyncioStream(self._line), sock=connected)
            except BaseException:
                connected.close()
                raise
        for option in socket_options or ():
            cast("socket.socket", stream.get_extra_info("socket")).setsockopt(*option)
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class AsyncioStream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One connection, read by one task at a time. The event loop calls the methods of `asyncio.Protocol`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._transport: asyncio.Transport
        self._received: list[bytes] = []
        self._size = 0
        self._corked: list[bytes] = []
        self._corked_size = 0
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # -- what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._line.heard = True
        self._received.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER_BYTES:
            self._transport.pause_reading()
        _release(self._reader)

    def eof_received(self) -> None:
        self._ended = True
        _release(self._reader)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        _release(self._reader)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _release(self._writer)
        self._writer = None

    # -- what httpcore asks

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._uncork()
        if not self._received and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                if timeout is None:
                    await self._reader
                else:
                    async with _within(timeout, httpcore.ReadTimeout, httpcore.ReadError):
                        await self._reader
            finally:
                self._reader = None
        if self._received:
            return self._take(max_bytes)
        if self._error is not None:
            raise httpcore.ReadError(str(self._error) or type(self._error).__name__) from self._error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        self._corked.append(buffer)
        self._corked_size += len(buffer)
        if self._corked_size < CORK_BYTES:
            return
        self._uncork()
        if self._writer is not None:
            async with _within(timeout, httpcore.WriteTimeout, httpcore.WriteError):
                await self._writer
        if self._ended and self._error is not None:
            raise httpcore.WriteError(str(self._error) or type(self._error).__name__) from self._error

    async def aclose(self) -> None:
        self._transport.close()
        try:
            await asyncio.sleep(0)  # in which it may say good-bye, if nothing is left to be sent
        finally:
            self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        self._uncork()
        try:
            async with _within(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
                secured = await loop.start_tls(self._transport, self, ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._transport.abort()
            raise
        if secured is None:  # the connection was lost during the handshake
            raise httpcore.ConnectError("the connection was closed during the TLS handshake")
        self._transport = secured
        return self

    def get_extra_info(self, info: str) -> object:
        match info:
            case "is_readable":  # an idle connection with something to read is one that the server has ended
                return self._ended or bool(self._received)
            case "client_addr":
                return self._transport.get_extra_info("sockname")
            case "server_addr":
                return self._transport.get_extra_info("peername")
            case _:
                return self._transport.get_extra_info(info)

    def _take(self, max_bytes: int) -> bytes:
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        if self._size > HIGH_WATER_BYTES and not self._ended:
            self._transport.resume_reading()
        rest = data[max_bytes:]
        self._size = len(rest)
        if rest:
            self._received.append(rest)
            return data[:max_bytes]
        return data

    def _uncork(self) -> None:
        if self._corked:
            self._transport.write(b"".join(self._corked))
            self._corked.clear()
            self._corked_size = 0


async def _connected(host: str, port: int, local_address: str | None) -> socket.socket:
    """A connected socket.

    anyio races a host's addresses well: asyncio leaks sockets when its own race is cancelled, and uvloop tries one
    address after the other, however long each may take.
    """
    stream = await anyio.connect_tcp(host, port, local_host=local_address)
    connected = stream.extra(SocketAttribute.raw_socket).dup()
    try:
        await stream.aclose()
    except BaseException:
        connected.close()
        raise
    return connected


def _release(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


@contextlib.asynccontextmanager
async def _within(
    seconds: float | None, late: type[httpcore.TimeoutException], failed: type[httpcore.NetworkError]
) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:  # ssl.SSLError is one
        raise failed(str(error) or type(error).__name__) from error
