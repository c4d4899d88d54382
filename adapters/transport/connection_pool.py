"""The HTTP/1.1 client: heads of requests, new connections, pools, the transport, and the choice of a transport."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute

from callboard.bus.backend import on_asyncio
from callboard.bus.errors import AdapterError, NetworkError

from .addresses import UrlKind, has_proxy, kind_of, public_addresses
from .http1_connection import AgedConnectionError, Connection
from .transport import (
    HttpReply,
    HttpRequest,
    Transport,
    TransportStatistics,
    check_sendable,
    not_in_time,
    not_made,
    unreachable,
    unsendable,
)

if TYPE_CHECKING:
    import httpx

    from .httpx_transport import HttpxTransport


# --- Heads of requests and targets of URLs ---

_PORTS = {"http": 80, "https": 443}
_MOST_URL_BYTES = 65536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[!$&'()*+,;=\-._~0-9a-z%]+")
_UNSAFE = re.compile(r"[^\x21-\x7e]|[\"#<>]")  # in a query
_UNSAFE_IN_PATH = re.compile(r"[^\x21-\x7e]|[\"#<>?`{}]")
_ACCEPTED = "gzip, deflate"


class Origin(NamedTuple):
    """A server. Requests to the same origin share connections."""

    secure: bool
    host: str
    port: int


class Target(NamedTuple):
    """The server and path of a URL."""

    origin: Origin
    path: str
    """The path and the query, as sent."""
    authority: str
    """Host and port for the header `Host`."""


@lru_cache(maxsize=256)
def target_of(url: str) -> Target:
    """Parse a URL. A user, a password and a fragment are dropped."""
    try:
        return _parsed(url)
    except (ValueError, KeyError) as error:  # UnicodeError is a ValueError, and idna's errors are UnicodeErrors
        reason = type(error).__name__
    # raised outside of `except`: the original error would become the context, and may quote a key
    raise unsendable(reason)


def write_head(method: str, target: Target, headers: Mapping[str, str], length: int) -> bytes:
    """The request line and the headers."""
    check_sendable(headers)
    if not _is_token(method):
        raise unsendable("the method")
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", f"Content-Length: {length}"]
    packed = True
    for name, value in headers.items():
        match _framing_header(name):
            case None:
                pass
            case "host":
                lines[1] = f"Host: {value}"
                continue
            case "accept-encoding":
                packed = False
            case "content-length" if value.strip() == str(length):
                continue
            case _:  # this header would contradict the header written above
                raise unsendable(f"a reserved header {name}")
        lines.append(f"{name}: {value}")
    if packed:
        lines.append(f"Accept-Encoding: {_ACCEPTED}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class HeadWriter:
    """Writes heads like `write_head`. The latest is kept, because the next often differs only in its length."""

    def __init__(self) -> None:
        self._latest: tuple[str, Target, Mapping[str, str]] | None = None
        self._before = self._after = b""  # the parts of the latest head around the length

    def write(self, method: str, target: Target, headers: Mapping[str, str], length: int) -> bytes:
        if self._latest == (method, target, headers):
            return b"%bContent-Length: %d%b" % (self._before, length, self._after)
        head = write_head(method, target, headers, length)
        if "content-length" not in map(str.lower, headers):
            self._before, _, self._after = head.partition(b"Content-Length: %d" % length)
            self._latest = method, target, dict(headers)
        return head


@lru_cache(maxsize=512)
def _framing_header(name: str) -> str | None:
    """The lower-case name of a header with special handling; None for all others."""
    if not _is_token(name):
        raise unsendable("a header's name")
    header = name.lower()
    return header if header in ("host", "content-length", "transfer-encoding", "accept-encoding") else None


@lru_cache(maxsize=32)
def _is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def _parsed(url: str) -> Target:
    if len(url) > _MOST_URL_BYTES or any(character < " " or character == "\x7f" for character in url):
        raise ValueError("too long, or a control character")
    parts = urlsplit(url)
    host, port = _host_of(parts.hostname or ""), parts.port
    standard = _PORTS[parts.scheme]
    path = _UNSAFE_IN_PATH.sub(_encoded, parts.path) or "/"
    if "?" in url.partition("#")[0]:
        path += "?" + _UNSAFE.sub(_encoded, parts.query)
    named = f"[{host}]" if ":" in host else host
    authority = named if port in (None, standard) else f"{named}:{port}"
    return Target(Origin(parts.scheme == "https", host, standard if port is None else port), path, authority)


def _host_of(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host.replace("%25", "%")))
    if not host.isascii():
        import idna

        host = idna.encode(host).decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError("no host")
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host):
        ipaddress.IPv4Address(host)
    return host


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


# --- New connections ---


async def connect(
    origin: Origin, context: ssl.SSLContext | None, make: Callable[[], Connection], *, public_only: bool
) -> Connection:
    if public_only:
        connected = await _connected_to_public(origin.host, origin.port)
    else:
        connected = await _connected(origin.host, origin.port)
    connection = make()
    name = None if context is None else origin.host.partition("%")[0]
    try:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, sock=connected, ssl=context, server_hostname=name)
    except BaseException:
        # Otherwise the event loop would close the socket again at the end of the handshake. By then, its file
        # number may belong to another socket.
        connection.give_up()
        connected.close()
        raise
    return connection


async def _connected(host: str, port: int) -> socket.socket:
    """Open a connected socket.

    If a host has several addresses, anyio tries them concurrently: asyncio leaks sockets if such a race is
    cancelled, and uvloop tries the addresses one after another. For a single address anyio is not used, because
    its task and stream cost 10 KB per connection.
    """
    if (family := _family_of(host)) is not None:
        return await _connected_at(family, host, port)
    stream = await anyio.connect_tcp(host, port)
    connected = stream.extra(SocketAttribute.raw_socket).dup()
    try:
        await stream.aclose()
    except BaseException:
        connected.close()
        raise
    return connected


def _family_of(host: str) -> socket.AddressFamily | None:
    """The family of an address; None for a name."""
    try:
        return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return None


async def _connected_at(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, (address, port))
    except BaseException:
        connected.close()
        raise
    return connected


async def _connected_to_public(host: str, port: int) -> socket.socket:
    failure: OSError = OSError("the name has no address")
    for address in await public_addresses(host, port):
        try:
            return await _connected(address, port)
        except OSError as error:
            failure = error
    raise failure


def tls_context() -> ssl.SSLContext:
    """The TLS settings. Certificates are from `SSL_CERT_FILE` or `SSL_CERT_DIR`, or else from certifi."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        context = ssl.create_default_context(cafile=file)
    elif folder:
        context = ssl.create_default_context(capath=folder)
    else:
        import certifi

        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


# --- Connections to one server ---


class Pool:
    """The connections to one server."""

    def __init__(self, origin: Origin, name: str, context: Callable[[], ssl.SSLContext]) -> None:
        self._origin = origin
        self._host = name
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the most recently used is last
        self._closing: list[Connection] = []
        self._opening = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        """The number of connections that are being opened or are not idle."""
        return self._opening + len(self._open) - len(self._idle)

    @property
    def is_empty(self) -> bool:
        """Whether there is no connection, open or opening."""
        return not self._open and not self._opening

    def pick(self) -> Connection | None:
        """The idle connection that was used last; None if there is none."""
        now = self._loop.time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if now < connection.kept_until:
                return connection
            connection.close()
        return None

    async def open(self, timeout: float, *, single_use: bool = False, public_only: bool = False) -> Connection:
        def make() -> Connection:
            return Connection(self._host, Connection.close if single_use else self._keep, self._forget)

        context = self._context() if self._origin.secure else None
        self._opening += 1
        try:
            async with asyncio.timeout(timeout):
                connection = await connect(self._origin, context, make, public_only=public_only)
        except TimeoutError:
            late = not_in_time(self._host)
        except OSError as error:  # includes ssl.SSLError
            raise unreachable(self._host, str(error) or type(error).__name__) from error
        else:
            return self._admit(connection)
        finally:
            self._opening -= 1
        raise late

    def _admit(self, connection: Connection) -> Connection:
        if connection.is_over:
            raise unreachable(self._host, "the server ended the connection before the request")
        if self._closed:
            connection.close()
            raise unreachable(self._host, "this adapter was closed")
        self._open.add(connection)
        return connection

    def close(self) -> None:
        """Close all connections, including those in use or opening."""
        self._closed = True
        self._closing = list(self._open)
        for connection in self._closing:
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until all closed connections have released their sockets."""
        for connection in self._closing:
            await connection.wait_closed()

    def _keep(self, connection: Connection) -> None:
        self._idle[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_at(connection.kept_until, self._expire)

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if not self._idle and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in [each for each in self._idle if each.kept_until <= now]:
            connection.close()
        if self._idle:
            self._timer = self._loop.call_at(min(each.kept_until for each in self._idle), self._expire)


# --- The transport over HTTP/1.1 ---


class Http1Transport:
    """Kept-alive connections to any number of servers, for one event loop at a time."""

    def __init__(self) -> None:
        self._pools: dict[Origin, Pool] = {}
        self._heads = HeadWriter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def statistics(self) -> TransportStatistics:
        pools = self._pools.values()
        return TransportStatistics(clients=len(pools), in_use=sum(pool.in_use for pool in pools))

    async def send(self, request: HttpRequest) -> HttpReply:
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            target = target_of(request.url)
            head = self._heads.write(request.method, target, request.headers, len(request.body))
            pool, new = self._pool(target), request.once or request.public_only
            if not new:
                connection = pool.pick() or await pool.open(request.connect_timeout)
                try:
                    return await connection.exchange(request.method, head, request.body)
                except AgedConnectionError:
                    pass
                if request.on_resend is not None:
                    request.on_resend()
                pool = self._pool(target)
            # A new connection, also after an aged one, because other idle connections may be closed, too.
            connection = await pool.open(request.connect_timeout, single_use=new, public_only=request.public_only)
            return await connection.exchange(request.method, head, request.body)
        except AdapterError:
            raise
        except Exception as error:
            failure = unsendable("UnicodeError") if isinstance(error, UnicodeError) else not_made(error)
        raise failure  # raised outside of `except`: the original may quote a key and must not become the context

    def _pool(self, target: Target) -> Pool:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections can't be used on another loop
            self._pools, self._loop = {}, loop
        pool = self._pools.get(target.origin)
        if pool is None:
            self._pools = {each: pool for each, pool in self._pools.items() if not pool.is_empty}
            pool = self._pools[target.origin] = Pool(target.origin, target.authority, self._tls_context)
        return pool

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context()
        return self._context

    async def aclose(self) -> None:
        """Close all connections, including those in use. Idempotent."""
        self._closed = True
        pools, self._pools = self._pools, {}
        if pools and asyncio.get_running_loop() is self._loop:
            for pool in pools.values():
                pool.close()
            for pool in pools.values():
                await pool.wait_closed()


# --- The choice of a transport ---


def new_transport(client: httpx.AsyncClient | None = None) -> Transport:
    """Make a transport with Callboard's own connections, or with the host's client."""
    if client is None:
        return HttpTransport()
    from .httpx_transport import ClientTransport

    return ClientTransport(client)


class HttpTransport:
    """The default transport. It chooses a client for each request and keeps connections to any number of servers
    alive.
    """

    def __init__(self) -> None:
        self._http1 = Http1Transport()
        self._other: HttpxTransport | None = None
        self._ways: dict[UrlKind, Transport] = {}
        self._closed = False

    def statistics(self) -> TransportStatistics:
        http1 = self._http1.statistics()
        if self._other is None:
            return http1
        other = self._other.statistics()
        return TransportStatistics(http1.clients + other.clients, http1.in_use + other.in_use)

    def send(self, request: HttpRequest) -> Coroutine[object, object, HttpReply]:
        """Send, and wait for the reply's head. Raises AdapterError only."""
        return self._way(request.url).send(request)

    def is_own(self, url: str) -> bool:
        """Whether requests to a URL use Callboard's own connections."""
        return self._way(url) is self._http1

    def _way(self, url: str) -> Transport:
        kind = kind_of(url)
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._chosen(kind)
        return way

    def _chosen(self, kind: UrlKind) -> Transport:
        """The client for a kind of request.

        The client is chosen once, because an adapter never changes between asyncio and trio.
        """
        if self._closed or (on_asyncio() and not has_proxy(kind)):
            return self._http1  # its `send` raises the error
        if self._other is None:
            from .httpx_transport import HttpxTransport

            self._other = HttpxTransport()
        return self._other

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        self._closed, self._ways = True, {}
        try:
            await self._http1.aclose()
        finally:
            if self._other is not None:
                await self._other.aclose()
