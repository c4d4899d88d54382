"""HTTP, for all providers: bytes out, bytes in, and every failure as an AdapterError. The only home of httpx.

A transport knows no endpoint. Time limits other than the connection's are the caller's, who scopes each read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import anyio
import msgspec

from bus.errors import AdapterError, InvalidRequestError, NetworkError, RequestTimeoutError, StreamError

if TYPE_CHECKING:
    import ssl

    import httpx

CALLS_PER_CLIENT = 16
"""One connection pool serves this many calls at once; httpcore's bookkeeping is quadratic in its connections."""

MAX_BODY_BYTES = 256 * 1024 * 1024
"""The largest whole reply that is read into memory."""


class HttpRequest(msgspec.Struct, frozen=True):
    """What to send. headers: may hold keys, so this is never logged. connect_timeout: in seconds."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    connect_timeout: float = 10.0

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url}, {len(self.body)} bytes)"


class HttpReply(Protocol):
    """A reply whose head has arrived. headers: lower-case names. Must be closed, whatever happens."""

    status: int
    headers: Mapping[str, str]

    async def chunk(self) -> bytes | None:
        """The next bytes of the body, decompressed; None at its end. Raises NetworkError."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        ...


class TransportStatistics(msgspec.Struct, frozen=True):
    """clients: connection pools that are open. in_use: connections with a request or a reply on them.

    Not counted are connections kept alive for later, at most 20 in each pool, and the second try after one of
    those turned out to be dead.
    """

    clients: int
    in_use: int


class Transport(Protocol):
    """Sends requests. Safe to use by many calls at once."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send, and wait for the reply's head. Raises AdapterError and nothing else."""
        ...

    async def aclose(self) -> None: ...


async def read_body(reply: HttpReply, limit: int = MAX_BODY_BYTES) -> bytes:
    """The whole body. Raises StreamError if it is larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while (chunk := await reply.chunk()) is not None:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise StreamError(f"the reply is larger than {limit} bytes", retryable=False)
    return b"".join(parts)


async def close_reply(reply: HttpReply) -> None:
    """Close a reply whatever is being cancelled, but not for ever."""
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
        await reply.aclose()


class _Client:
    """A connection pool and how many calls use it now. single_use: it is closed with its one reply.

    pool: where the environment names proxies, a whole client, which knows which of them is for whom; otherwise
    only what a client has below it, because what the client adds (cookies, redirects, authentication, defaults to
    be merged) is of no use here and costs as much as the request itself.
    """

    def __init__(self, pool: httpx.AsyncClient | httpx.AsyncHTTPTransport, *, single_use: bool = False) -> None:
        self.pool = pool
        self.calls = 0
        self.single_use = single_use


class _Kind(NamedTuple):
    """What a client is made for."""

    secure: bool
    loopback: bool


@lru_cache(maxsize=128)
def _kind_of(url: str) -> _Kind:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return _Kind(parts.scheme == "https", host in ("localhost", "::1") or host.startswith("127."))


@lru_cache(maxsize=128)
def _parsed(url: str) -> httpx.URL:
    import httpx

    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise httpx.UnsupportedProtocol("the URL needs http:// or https://, and a host")
    return parsed


class HttpxTransport:
    """Connections kept alive in httpx clients: one for each 16 calls at once, opened as needed."""

    def __init__(self) -> None:
        self._clients: dict[_Kind, list[_Client]] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def statistics(self) -> TransportStatistics:
        """A snapshot."""
        homes = [home for clients in self._clients.values() for home in clients]
        return TransportStatistics(clients=len(homes), in_use=sum(home.calls for home in homes))

    async def send(self, request: HttpRequest) -> HttpReply:
        import httpx

        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            kind = _kind_of(request.url)
            try:
                return await self._send_on(self._pick(kind), request)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # The server dropped a kept-alive connection before a byte of the reply came: once more, on a
                # connection of its own, because the pool may hold several that are just as dead.
                return await self._send_on(_Client(self._open_client(kind), single_use=True), request)
        except Exception as error:
            failure, cause = translate(error), _harmless(error)
        raise failure from cause  # out here, or the original would stay attached as its context

    async def _send_on(self, home: _Client, request: HttpRequest) -> HttpReply:
        import httpx

        home.calls += 1
        try:
            built = httpx.Request(
                request.method,
                _parsed(request.url),
                headers={"accept-encoding": "gzip, deflate", **request.headers},
                content=request.body,
                extensions={"timeout": {"connect": request.connect_timeout}},
            )
            if isinstance(home.pool, httpx.AsyncClient):
                return _HttpxReply(await home.pool.send(built, stream=True), home)
            response = await home.pool.handle_async_request(built)
            response.request = built
            return _HttpxReply(response, home)
        except BaseException:
            await _release(home)
            raise

    def _pick(self, kind: _Kind) -> _Client:
        clients = self._clients.setdefault(kind, [])
        for home in clients:
            if home.calls < CALLS_PER_CLIENT:
                return home
        home = _Client(self._open_client(kind))
        clients.append(home)
        return home

    def _open_client(self, kind: _Kind) -> httpx.AsyncClient | httpx.AsyncHTTPTransport:
        from urllib.request import getproxies

        import httpx

        secure, loopback = kind
        if secure and self._context is None:
            self._context = httpx.create_ssl_context()
        verify = self._context if secure and self._context is not None else False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        if getproxies() and not loopback:  # no proxy can reach this machine's own servers
            return httpx.AsyncClient(verify=verify, limits=limits, follow_redirects=False)
        return _on_own_sockets(httpx.AsyncHTTPTransport(verify=verify, limits=limits), verify, limits)

    async def aclose(self) -> None:
        self._closed = True
        homes = [home for clients in self._clients.values() for home in clients]
        self._clients = {}
        for home in homes:
            await home.pool.aclose()


def _on_own_sockets(
    transport: httpx.AsyncHTTPTransport, context: ssl.SSLContext | bool, limits: httpx.Limits
) -> httpx.AsyncHTTPTransport:
    """The transport with a pool like its own, over our sockets; httpx has no parameter for that.

    Where httpx keeps its pool elsewhere one day, or on trio, it stays as it was: slower, and otherwise alike.
    """
    from . import sockets

    if sockets.on_asyncio() and hasattr(transport, "_pool"):
        secured = context if not isinstance(context, bool) else None
        transport._pool = sockets.connection_pool(
            secured, limits.max_keepalive_connections, limits.keepalive_expiry
        )
    return transport


async def _release(home: _Client) -> None:
    home.calls -= 1
    if home.single_use:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
            await home.pool.aclose()


class _HttpxReply:
    def __init__(self, response: httpx.Response, home: _Client) -> None:
        self._response = response
        self._home = home
        self._body: AsyncIterator[bytes] | None = None
        self._closed = False
        self.status = response.status_code
        self.headers: Mapping[str, str] = _as_dict(response.headers.raw)

    async def chunk(self) -> bytes | None:
        if self._body is None:
            encoded = "content-encoding" in self.headers
            stream = cast("AsyncIterable[bytes]", self._response.stream)
            self._body = self._response.aiter_bytes() if encoded else aiter(stream)
        try:
            return await anext(self._body, None)
        except Exception as error:
            raise translate(error) from error

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                with contextlib.suppress(Exception):  # a connection that fails while it is closed is closed
                    await self._response.aclose()
            finally:
                await _release(self._home)


def _as_dict(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their lower-case names; those that were sent twice are joined by a comma."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _harmless(error: Exception) -> Exception | None:
    """The error as the cause to show, unless its text may quote a header, and with it a key."""
    import httpx

    return None if isinstance(error, httpx.LocalProtocolError | UnicodeError | ValueError) else error


def translate(error: Exception) -> AdapterError:
    """The AdapterError for whatever the HTTP library raised; most specific first. Never holds request headers."""
    import httpx

    if isinstance(error, AdapterError):
        return error
    said = str(error) or type(error).__name__
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return RequestTimeoutError("no connection to the provider within the connect timeout")
        case httpx.TimeoutException():
            return RequestTimeoutError(f"the provider took too long: {said}")
        case httpx.ConnectError():
            return NetworkError(f"could not connect to the provider: {said}")
        case httpx.RemoteProtocolError():
            return StreamError(f"the connection broke: {said}")
        case httpx.LocalProtocolError() | httpx.UnsupportedProtocol() | httpx.InvalidURL() | UnicodeError():
            reason = "base_url, api_key or extra_headers can't be sent as they are"
            return InvalidRequestError(f"{reason} ({type(error).__name__})")
        case httpx.DecodingError():
            return StreamError(f"the reply's compression is broken: {said}")
        case httpx.TransportError() | httpx.StreamError() | OSError():
            return NetworkError(f"the connection failed: {said}")
        case _:
            return AdapterError(f"the request could not be made: {type(error).__name__}: {said}")
