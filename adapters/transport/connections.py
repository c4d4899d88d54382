"""Connections that are kept alive: httpcore's connections, in a pool of our own.

On asyncio their sockets are our own, see `sockets`. On trio they are httpcore's.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Protocol, Self, cast

import anyio
import httpcore

from bus.backend import on_asyncio

from .public_addresses import PublicSockets
from .sockets import AsyncioSockets, Line

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION

KEPT_SECONDS = 5.0
"""How long an idle connection is kept for later."""


class Request(httpcore.Request):
    """A request whose parts have the types already that httpcore keeps, so that nothing looks at each."""

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
        self._left = body

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        piece, self._left = self._left, b""
        return piece


class AgedConnectionError(httpcore.NetworkError):
    """A connection that had served before broke, and the server had said nothing to this request.

    So it may have let go of the connection before the request came.
    """


class ConnectionPool:
    """Connections to any number of servers: one for each request under way, and some idle ones for later requests.

    In httpcore's own pool, requests wait in a queue for a connection. Here no request ever waits. The queue takes
    three cancel scopes and two walks over all requests and connections for every request, which is a twentieth of
    a call.

    Args:
        context: The settings of TLS; None if the pool is never used for https.
        idle: The number of idle connections that are kept.
        public_only: Whether to connect to public addresses alone, see `public_addresses`.
    """

    def __init__(self, context: ssl.SSLContext | None, idle: int, *, public_only: bool = False) -> None:
        self._context = context
        self._public_only = public_only
        self._most_idle = idle
        self._idle: list[_Connection] = []  # the one that was used last is the last
        self._busy: set[_Connection] = set()

    @property
    def connections(self) -> list[_Connection]:
        """All that are open, or being opened."""
        return [*self._busy, *self._idle]

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request. Its connection is in use until the response is closed. Raises as httpcore does."""
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
        """Keep a connection whose response is closed, if it can be used again."""
        self._busy.discard(connection)
        if connection.is_closed():
            return
        if not connection.is_idle():  # whoever was about to close it was cancelled
            await _close([connection])
            return
        self._idle.append(connection)
        if len(self._idle) > self._most_idle:
            await _close([self._idle.pop(0)])

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        connections = self.connections
        self._idle, self._busy = [], set()
        await _close(connections)

    async def _pick(self, origin: httpcore.Origin) -> _Connection:
        """The connection that was used last, or a new one."""
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
        kind = _AsyncioConnection if on_asyncio() else _Connection
        sockets = AsyncioSockets(line) if on_asyncio() else _WatchedSockets(line)
        return kind(origin, self._context, line, PublicSockets(sockets) if self._public_only else sockets)


async def _close(connections: Iterable[_Connection]) -> None:
    with anyio.CancelScope(shield=True):
        for connection in connections:
            await connection.aclose()


class _Body:
    """The body of a response, whose connection goes back when it is closed."""

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
    """The body of a response of httpcore's."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Connection(httpcore.AsyncHTTPConnection):
    """A connection that says whether it may have broken of its age."""

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
        self._line.heard = False
        reused, self._used = self._used, True
        try:
            return await self._send(request)
        except (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError) as error:
            if reused and not self._line.heard:
                raise AgedConnectionError(str(error)) from error
            raise

    async def _send(self, request: httpcore.Request) -> httpcore.Response:
        return await super().handle_async_request(request)


class _NoLock:
    """A lock that is always free."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


class _AsyncioConnection(_Connection):
    """A connection whose second and later requests wait for no lock, and whose replies are read directly.

    For every request httpcore takes three locks, each with a cancel scope and a turn of the event loop: 30 µs, a
    thirtieth of a whole call. One lock guards the connecting, which is over by then. The two others guard a change
    of state without an `await`. On one event loop nothing can come between. The conditions behind these locks are
    still checked.
    """

    _open: httpcore.AsyncHTTP11Connection | None = None

    async def _send(self, request: httpcore.Request) -> httpcore.Response:
        if self._open is not None:
            response = await self._open.handle_async_request(request)
            response.stream = _Received(self._open)
            return response
        response = await super()._send(request)
        # The names are httpcore's own. Where a version has others, its locks and its streams stay.
        made = getattr(self, "_connection", None)
        if isinstance(made, httpcore.AsyncHTTP11Connection) and all(hasattr(made, name) for name in _USED):
            made._state_lock = _NoLock()  # type: ignore[assignment]  # all that is asked of it is `async with`
            self._open = made
        return response


_USED = ("_state_lock", "_receive_event", "_response_closed")


class _Received:
    """The body of a reply, read event by event.

    httpcore's own stream is a generator over a generator, each of which the event loop keeps a list of. They cost
    10 µs for a reply, and 2 µs for a token that comes alone.
    """

    def __init__(self, connection: httpcore.AsyncHTTP11Connection) -> None:
        self._connection = connection
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = None if self._closed else getattr(await self._connection._receive_event(), "data", None)
        if data is None:  # the event is the end of the message
            raise StopAsyncIteration
        return bytes(data)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._connection._response_closed()


class _WatchedSockets(httpcore.AsyncNetworkBackend):
    """Opens httpcore's sockets for trio, and tells the line what they read."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sockets = httpcore.TrioBackend()

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
            self._line.heard = True
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
