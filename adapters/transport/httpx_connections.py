"""httpcore's connections in Callboard's own pool, for trio and also for asyncio."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Protocol, Self, cast

import anyio
import httpcore

from callboard.bus.backend import on_asyncio

from .addresses import public_addresses

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION


KEPT_SECONDS = 5.0
"""Seconds for which an idle connection is kept."""


class Request(httpcore.Request):
    """A request that already has httpcore's types, so that httpcore need not convert it."""

    def __init__(
        self,
        method: str,
        url: httpcore.URL,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        extensions: dict[str, dict[str, float]],
    ) -> None:
        self.method = method.encode("ascii")
        self.url = url
        self.headers = headers
        self.stream = _Whole(body)
        self.extensions = extensions


class _Whole:
    """A request's body in one piece."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        piece, self._rest = self._rest, b""
        return piece


class Line:
    received = False
    """Whether a byte has arrived since this attribute was last set to False."""


class AgedConnectionError(httpcore.NetworkError):
    """A used connection broke before the server answered a request.

    The server may have closed it before the request arrived.
    """


class ConnectionPool:
    """Connections to any number of servers: one for each request in progress, and some idle ones.

    No request waits in this pool. httpcore's own pool uses three cancel scopes per request and walks twice over
    all requests and connections. This takes 5 % of a call's time.

    Args:
        context: The settings of TLS; None if the pool is never used for https.
        idle: The number of idle connections that are kept.
        public_only: Whether to connect to public addresses only, see `public_addresses`.
    """

    def __init__(self, context: ssl.SSLContext | None, idle: int, *, public_only: bool = False) -> None:
        self._context = context
        self._public_only = public_only
        self._most_idle = idle
        self._idle: list[_Connection] = []  # the most recently used is last
        self._busy: set[_Connection] = set()

    @property
    def connections(self) -> list[_Connection]:
        return [*self._busy, *self._idle]

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request. Its connection is in use until the response is closed. Raises httpcore's errors."""
        connection = await self._pick(request.url.origin)
        self._busy.add(connection)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self.take_back(connection)
            raise
        response.stream = _Body(response.stream, self, connection)
        return response

    async def take_back(self, connection: _Connection) -> None:
        """Keep a connection after its response, if it can be used again."""
        self._busy.discard(connection)
        if connection.is_closed():
            return
        if not connection.is_idle():  # closing was cancelled halfway
            await _close([connection])
            return
        self._idle.append(connection)
        if len(self._idle) > self._most_idle:
            await _close([self._idle.pop(0)])

    async def aclose(self) -> None:
        """Close all connections, including those in use."""
        connections = self.connections
        self._idle, self._busy = [], set()
        await _close(connections)

    async def _pick(self, origin: httpcore.Origin) -> _Connection:
        """The most recently used connection, or a new one."""
        expired = [connection for connection in self._idle if connection.has_expired()]
        if expired:
            self._idle = [connection for connection in self._idle if connection not in expired]
            await _close(expired)
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].can_handle_request(origin):
                return self._idle.pop(at)
        return self._new(origin)

    def _new(self, origin: httpcore.Origin) -> _Connection:
        line = Line()
        sockets = _WatchedSockets(line)
        return _Connection(origin, self._context, line, PublicSockets(sockets) if self._public_only else sockets)


async def _close(connections: Iterable[_Connection]) -> None:
    with anyio.CancelScope(shield=True):
        for connection in connections:
            await connection.aclose()


class _Body:
    """The body of a response. Closing it returns the connection."""

    def __init__(self, stream: object, pool: ConnectionPool, connection: _Connection) -> None:
        self._stream = cast("_Stream", stream)
        self._pool = pool
        self._connection = connection
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            await self._pool.take_back(self._connection)


class _Stream(Protocol):
    """The body of an httpcore response."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Connection(httpcore.AsyncHTTPConnection):
    """A connection that raises AgedConnectionError if it broke after it was kept idle for too long."""

    def __init__(
        self,
        origin: httpcore.Origin,
        context: ssl.SSLContext | None,
        line: Line,
        sockets: httpcore.AsyncNetworkBackend,
    ) -> None:
        super().__init__(origin, context, keepalive_expiry=KEPT_SECONDS, network_backend=sockets)
        self._line = line
        self._used = False

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        self._line.received = False
        reused, self._used = self._used, True
        try:
            return await super().handle_async_request(request)
        except (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError) as error:
            if reused and not self._line.received:
                raise AgedConnectionError(str(error)) from error
            raise


class _WatchedSockets(httpcore.AsyncNetworkBackend):
    """Opens httpcore's sockets, and records what they read."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sockets = httpcore.AnyIOBackend() if on_asyncio() else httpcore.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._sockets.connect_tcp(host, port, timeout, local_address, socket_options)
        return _WatchedStream(stream, self._line)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class _WatchedStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, line: Line) -> None:
        self._stream = stream
        self._line = line

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        if data:
            self._line.received = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _WatchedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._line)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class PublicSockets(httpcore.AsyncNetworkBackend):
    """Opens connections to public addresses only. Raises StreamError for any other."""

    def __init__(self, sockets: httpcore.AsyncNetworkBackend) -> None:
        self._sockets = sockets

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in await _public_addresses(host, port, timeout):
            try:
                return await self._sockets.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


async def _public_addresses(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        with anyio.fail_after(timeout):
            return await public_addresses(host, port)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from error
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
