"""Requests over httpx and httpcore, for proxies, trio and a host's own client.

On trio, requests use httpcore's connections in Callboard's own pools. If the environment has proxies, a whole
httpx client is used, which selects the proxy. This module is imported when a program needs one of them.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

import anyio
import httpcore
import httpx

from callboard.bus.backend import on_asyncio
from callboard.bus.errors import AdapterError, NetworkError, RequestTimeoutError

from .addresses import UrlKind, check_literal, has_proxy, host_of, kind_of, public_addresses
from .transport import (
    ClosableReply,
    HttpReply,
    HttpRequest,
    TransportStatistics,
    broken,
    check_sendable,
    failed,
    not_in_time,
    not_made,
    unpacked,
    unreachable,
    unsendable,
)

if TYPE_CHECKING:
    from httpcore import SOCKET_OPTION


# --- Errors of HTTP libraries ---


def translate(error: Exception, url: str = "") -> AdapterError:
    """The most specific AdapterError for a transport's exception. The text never contains request headers."""
    if isinstance(error, AdapterError):
        return error
    reason, host = str(error) or type(error).__name__, host_of(url)
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout() | httpcore.ConnectTimeout() | httpcore.PoolTimeout():
            return not_in_time(host)
        case httpx.TimeoutException() | httpcore.TimeoutException():
            return RequestTimeoutError(f"{host} took too long: {reason}")
        case httpx.ConnectError() | httpcore.ConnectError():
            return unreachable(host, reason)
        case httpx.RemoteProtocolError() | httpcore.RemoteProtocolError():
            return broken(host, reason)
        case (
            httpx.LocalProtocolError()
            | httpcore.LocalProtocolError()
            | httpx.UnsupportedProtocol()
            | httpcore.UnsupportedProtocol()
            | httpx.InvalidURL()
            | UnicodeError()
        ):
            return unsendable(type(error).__name__)
        case (
            httpx.TransportError()
            | httpx.StreamError()
            | httpcore.NetworkError()
            | httpcore.ProxyError()
            | httpcore.ConnectionNotAvailable()
            | OSError()
        ):
            return failed(host, reason)
        case _:
            return not_made(error)


def without_secrets(error: Exception) -> Exception | None:
    """The error to use as a cause; None if its text may quote a header with a key."""
    quoting = httpx.LocalProtocolError | httpcore.LocalProtocolError | UnicodeError | ValueError
    return None if isinstance(error, quoting) else error


# --- Connections of httpcore ---

KEPT_SECONDS = 5.0
"""Seconds for which an idle connection is kept."""


class _AgedConnection(httpcore.NetworkError):
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
        return _Connection(origin, self._context, public_only=self._public_only)


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
    """A connection that raises _AgedConnection if it broke after it was kept idle for too long."""

    def __init__(self, origin: httpcore.Origin, context: ssl.SSLContext | None, *, public_only: bool) -> None:
        self._watched = _WatchedSockets()
        sockets = PublicSockets(self._watched) if public_only else self._watched
        super().__init__(origin, context, keepalive_expiry=KEPT_SECONDS, network_backend=sockets)
        self._used = False

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        self._watched.received = False
        reused, self._used = self._used, True
        try:
            return await super().handle_async_request(request)
        except (httpcore.RemoteProtocolError, httpcore.ReadError, httpcore.WriteError) as error:
            if reused and not self._watched.received:
                raise _AgedConnection(str(error)) from error
            raise


class _WatchedSockets(httpcore.AsyncNetworkBackend):
    """Opens httpcore's sockets, and records what they read."""

    def __init__(self) -> None:
        self.received = False
        """Whether a byte has arrived since this attribute was last set to False."""
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
        return _WatchedStream(stream, self)


class _WatchedStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, watched: _WatchedSockets) -> None:
        self._stream = stream
        self._watched = watched

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        if data:
            self._watched.received = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _WatchedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._watched)

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


async def _public_addresses(host: str, port: int, timeout: float | None) -> list[str]:
    try:
        with anyio.fail_after(timeout):
            return await public_addresses(host, port)
    except TimeoutError as error:
        raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from error
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error


# --- Connections on trio, and in an environment with proxies ---

CALLS_PER_CLIENT = 16
"""The largest number of concurrent calls in one connection pool, because httpcore's bookkeeping is quadratic in
the connections.
"""

IDLE_PER_CLIENT = 20
"""The number of idle connections that a pool keeps."""

_ACCEPTED = {"accept-encoding": "gzip, deflate"}


class Client:
    """A connection pool and its number of calls. With `single_use` it is closed after its one reply."""

    def __init__(self, pool: httpx.AsyncClient | ConnectionPool, *, single_use: bool = False) -> None:
        self.pool = pool
        self.calls = 0
        self.single_use = single_use


@lru_cache(maxsize=128)
def _checked_url(url: str) -> httpx.URL:
    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise httpx.UnsupportedProtocol("the URL needs http:// or https://, and a host")
    return parsed


class HttpxTransport:
    """Kept-alive connections, one pool for each 16 concurrent calls."""

    def __init__(self) -> None:
        self._clients: dict[UrlKind, list[Client]] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def statistics(self) -> TransportStatistics:
        homes = [home for clients in self._clients.values() for home in clients]
        return TransportStatistics(clients=len(homes), in_use=sum(home.calls for home in homes))

    async def send(self, request: HttpRequest) -> HttpReply:
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            kind = kind_of(request.url)
            if request.public_only:
                check_literal(urlsplit(request.url).hostname or "")
            if request.once or request.public_only:
                home = Client(self._open_client(kind, public_only=request.public_only), single_use=True)
                return await self._send_on(home, request)
            return await self._send_or_resend(kind, request)
        except Exception as error:
            failure, cause = translate(error, request.url), without_secrets(error)
        raise failure from cause  # raised outside of `except`, because the original error would become its context

    async def _send_or_resend(self, kind: UrlKind, request: HttpRequest) -> HttpReply:
        """Send a request, and send it again if the server had closed a kept-alive connection.

        The second attempt uses a new connection, because other kept connections may be closed, too.
        """
        try:
            return await self._send_on(self._pick(kind), request)
        except Exception as error:
            if not isinstance(error, _AgedConnection):
                raise
            if request.on_resend is not None:
                request.on_resend()
        return await self._send_on(Client(self._open_client(kind), single_use=True), request)

    async def _send_on(self, home: Client, request: HttpRequest) -> HttpReply:
        timeouts = {"timeout": {"connect": request.connect_timeout}}
        if isinstance(home.pool, httpx.AsyncClient):
            headers = sendable(request)
            built = httpx.Request(
                request.method, request.url, headers=headers, content=request.body, extensions=timeouts
            )
            return await send_built(home, home.pool, built)
        home.calls += 1
        try:
            check_sendable(request.headers)
            url = _checked_url(request.url)
            pairs = [(b"Host", url.netloc), (b"Content-Length", b"%d" % len(request.body))]
            for name, value in {**_ACCEPTED, **request.headers}.items():
                pairs.append((name.encode("ascii"), value.encode("ascii")))
            target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
            response = await home.pool.handle_async_request(
                httpcore.Request(request.method, target, headers=pairs, content=request.body, extensions=timeouts)
            )
        except BaseException:
            await _release(home)
            raise
        body = cast("_Body", response.stream)  # closing it closes the response
        return _Reply(response.status, response.headers, body, body.aclose, home)

    def _pick(self, kind: UrlKind) -> Client:
        clients = self._clients.setdefault(kind, [])
        for home in clients:
            if home.calls < CALLS_PER_CLIENT:
                return home
        home = Client(self._open_client(kind))
        clients.append(home)
        return home

    def _open_client(self, kind: UrlKind, *, public_only: bool = False) -> httpx.AsyncClient | ConnectionPool:
        if kind.secure and self._context is None:
            self._context = httpx.create_ssl_context()
        if has_proxy(kind):
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_PER_CLIENT)
            verify = self._context if kind.secure and self._context is not None else False
            return httpx.AsyncClient(verify=verify, limits=limits, follow_redirects=False)
        context = self._context if kind.secure else None
        return ConnectionPool(context, IDLE_PER_CLIENT, public_only=public_only)

    async def aclose(self) -> None:
        self._closed = True
        homes = [home for clients in self._clients.values() for home in clients]
        self._clients = {}
        for home in homes:
            await home.pool.aclose()


# --- Requests and replies ---


def sendable(request: HttpRequest) -> dict[str, str]:
    """The headers of a request for an httpx client. Raises httpx's errors for its address."""
    check_sendable(request.headers)
    _checked_url(request.url)
    return {**_ACCEPTED, **request.headers}


async def send_built(home: Client, client: httpx.AsyncClient, built: httpx.Request) -> HttpReply:
    """Send over a whole httpx client. Raises httpx's errors."""
    home.calls += 1
    try:
        response = await client.send(built, stream=True, follow_redirects=False)
    except BaseException:
        await _release(home)
        raise
    if response.is_stream_consumed:  # a hook of the client has read and unpacked it
        plain = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
        return _Reply(response.status_code, plain, httpx.ByteStream(response.content), response.aclose, home)
    return _Reply(response.status_code, response.headers.raw, response.stream, response.aclose, home)


async def _release(home: Client) -> None:
    home.calls -= 1
    if home.single_use:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
            await home.pool.aclose()


class _Reply(ClosableReply):
    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        stream: object,
        close: Callable[[], Awaitable[None]],
        home: Client,
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = _as_dict(headers)
        self._stream = cast("AsyncIterable[bytes]", stream)
        self._close = close
        self._home = home
        self._body: AsyncIterator[bytes] | None = None

    async def chunk(self) -> bytes | None:
        try:
            if self._body is None:
                coding = self.headers.get("content-encoding")
                self._body = aiter(self._stream) if coding is None else unpacked(coding, self._stream)
            data = await anext(self._body, None)
        except Exception as error:
            raise translate(error) from error
        if data is None:
            await self.aclose()  # close now, which needs no wait
        return data

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            try:
                with contextlib.suppress(Exception):  # if closing fails, the connection is closed anyway
                    await self._close()
            finally:
                await _release(self._home)


def _as_dict(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name. The values of a repeated header are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


# --- The host's client ---


class ClientTransport:
    """Requests over the host's own client.

    A request is sent only once, because only the client knows the age of its connections. If a connection breaks,
    the call is retried by its policy. A request that must not arrive twice raises OutcomeUnknownError. In URLs
    from replies, numeric addresses must be public. Host names are resolved by the client and not checked.

    Args:
        client: The client. It must stay open during use.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._home = Client(client)
        self._client = client
        self._closed = False

    def statistics(self) -> TransportStatistics:
        return TransportStatistics(clients=1, in_use=self._home.calls)

    async def send(self, request: HttpRequest) -> HttpReply:
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            if request.public_only:
                check_literal(urlsplit(request.url).hostname or "")
            return await send_built(self._home, self._client, self._built(request))
        except Exception as error:
            failure, cause = translate(error, request.url), without_secrets(error)
        raise failure from cause  # raised outside of `except`, because the original error would become its context

    async def aclose(self) -> None:
        self._closed = True

    def _built(self, request: HttpRequest) -> httpx.Request:
        return self._client.build_request(
            request.method,
            request.url,
            headers=sendable(request),
            content=request.body,
            timeout=httpx.Timeout(None, connect=request.connect_timeout),
        )
