"""Requests over httpx and httpcore, for proxies, trio and a host's own client.

On trio, requests use httpcore's connections in Callboard's own pools. If the environment has proxies, a whole
httpx client is used, which selects the proxy.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import anyio

from callboard.bus.errors import AdapterError, NetworkError, RequestTimeoutError

from .addresses import UrlKind, check_literal, has_proxy, host_of, kind_of
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
    import ssl

    import httpcore
    import httpx

    from .httpx_connections import ConnectionPool


# --- Errors of HTTP libraries ---


def translate(error: Exception, url: str = "") -> AdapterError:
    """The most specific AdapterError for a transport's exception. The text never contains request headers."""
    import httpcore
    import httpx

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
    import httpcore
    import httpx

    quoting = httpx.LocalProtocolError | httpcore.LocalProtocolError | UnicodeError | ValueError
    return None if isinstance(error, quoting) else error


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


class _Address(NamedTuple):
    """A URL in the pool's form, and the `host` header."""

    url: httpcore.URL
    host: tuple[bytes, bytes]


@lru_cache(maxsize=128)
def _address_of(url: str) -> _Address:
    import httpcore
    import httpx

    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise httpx.UnsupportedProtocol("the URL needs http:// or https://, and a host")
    target = httpcore.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path)
    return _Address(target, (b"Host", parsed.netloc))


class HttpxTransport:
    """Kept-alive connections in httpx clients, one client for each 16 concurrent calls."""

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
            # Not at the top: at this point the module is already loaded.
            from .httpx_connections import AgedConnectionError

            if not isinstance(error, AgedConnectionError):
                raise
            if request.on_resend is not None:
                request.on_resend()
        return await self._send_on(Client(self._open_client(kind), single_use=True), request)

    async def _send_on(self, home: Client, request: HttpRequest) -> HttpReply:
        import httpx

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
            address = _address_of(request.url)
            return await self._send_to_pool(home, home.pool, request, address, timeouts)
        except BaseException:
            await _release(home)
            raise

    async def _send_to_pool(
        self,
        home: Client,
        pool: ConnectionPool,
        request: HttpRequest,
        address: _Address,
        timeouts: dict[str, dict[str, float]],
    ) -> HttpReply:
        from .httpx_connections import Request

        headers = [address.host, (b"Content-Length", b"%d" % len(request.body))]
        for name, value in {**_ACCEPTED, **request.headers}.items():
            headers.append((name.encode("ascii"), value.encode("ascii")))
        response = await pool.handle_async_request(
            Request(request.method, address.url, headers, request.body, timeouts)
        )
        body = cast("_Closable", response.stream)  # closing it closes the response
        return _Reply(response.status, response.headers, body, body, home)

    def _pick(self, kind: UrlKind) -> Client:
        clients = self._clients.setdefault(kind, [])
        for home in clients:
            if home.calls < CALLS_PER_CLIENT:
                return home
        home = Client(self._open_client(kind))
        clients.append(home)
        return home

    def _open_client(self, kind: UrlKind, *, public_only: bool = False) -> httpx.AsyncClient | ConnectionPool:
        import httpx

        from .httpx_connections import ConnectionPool

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


def sendable(request: HttpRequest) -> dict[str, str]:
    """The headers of a request for an httpx client. Raises httpx's errors for its address."""
    check_sendable(request.headers)
    _address_of(request.url)
    return {**_ACCEPTED, **request.headers}


async def send_built(home: Client, client: httpx.AsyncClient, built: httpx.Request) -> HttpReply:
    """Send over a whole httpx client. Raises httpx's errors."""
    import httpx

    home.calls += 1
    try:
        response = await client.send(built, stream=True, follow_redirects=False)
    except BaseException:
        await _release(home)
        raise
    if response.is_stream_consumed:  # a hook of the client has read and unpacked it
        plain = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
        return _Reply(response.status_code, plain, httpx.ByteStream(response.content), response, home)
    return _Reply(response.status_code, response.headers.raw, response.stream, response, home)


async def _release(home: Client) -> None:
    home.calls -= 1
    if home.single_use:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
            await home.pool.aclose()


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class _Reply(ClosableReply):
    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        stream: object,
        response: _Closable,
        home: Client,
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = _as_dict(headers)
        self._stream = cast("AsyncIterable[bytes]", stream)
        self._response = response
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
                    await self._response.aclose()
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
        import httpx

        return self._client.build_request(
            request.method,
            request.url,
            headers=sendable(request),
            content=request.body,
            timeout=httpx.Timeout(None, connect=request.connect_timeout),
        )
