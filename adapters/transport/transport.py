"""HTTP, for all providers: bytes out, bytes in, and every failure as an AdapterError. What a transport promises.

A transport knows no endpoint. Time limits other than the connection's are the caller's, who scopes each read.
`opening` says which one there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.errors import AdapterError, InvalidRequestError, NetworkError, RequestTimeoutError, StreamError

from .bodies import MAX_REPLY_BYTES, too_large

ERROR_BODY_BYTES = 1024 * 1024
"""The number of bytes that are read of an error's body. The rest of a longer body is left."""

_LONG_READ_BYTES = 1024 * 1024
"""After so much of a body everybody else has a turn, though the next piece may be there already."""


class HttpRequest(msgspec.Struct, frozen=True):
    """An HTTP request. Its headers may hold keys, so it is never logged."""

    method: str
    """The HTTP method."""
    url: str
    """The whole address."""
    headers: Mapping[str, str]
    """The headers, the key among them."""
    body: bytes
    """The body; empty if there is none."""
    connect_timeout: float = 10.0
    """Seconds for a connection."""
    once: bool = False
    """Whether the request must not arrive twice. It then goes over a connection of its own: a transport sends
    again only where a connection that was kept alive may have broken of its age."""
    on_resend: Callable[[], object] | None = None
    """Told when the request is sent again."""
    public_only: bool = False
    """Whether the address was named by a reply. The request then goes over a connection of its own, to a public
    address or not at all."""

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url}, {len(self.body)} bytes)"


class HttpReply(Protocol):
    """A reply whose head has arrived. It must be closed, whatever happens."""

    status: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """The headers, with lower-case names."""

    async def chunk(self) -> bytes | None:
        """The next bytes of the body, decompressed; None at its end."""
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        ...


class ClosableReply:
    """A reply that knows whether it is closed, so that closing it again needs no time limit."""

    closed = False
    """Whether the connection was given back or closed. At the body's end that is so already."""


class TransportStatistics(msgspec.Struct, frozen=True):
    """A transport's connections.

    Not counted are connections kept alive for later.
    """

    clients: int
    """Connection pools that are open: one for each server, or for each client of httpx's."""
    in_use: int
    """Connections with a request or a reply on them."""


class Transport(Protocol):
    """Sends requests. Safe to use by many calls at once."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send, and wait for the reply's head. Raises AdapterError and nothing else."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        ...


async def exchange(transport: Transport, request: HttpRequest) -> tuple[HttpReply, bytes]:
    """Send, read the whole reply, and close it. Raises AdapterError."""
    reply = await transport.send(request)
    try:
        return reply, await (read_body(reply) if reply.status < 300 else read_error_body(reply))
    finally:
        await close_reply(reply)


async def read_body(reply: HttpReply, limit: int = MAX_REPLY_BYTES) -> bytes:
    """The whole body. Raises StreamError if it is larger than `limit` bytes."""
    body = await _read(reply, limit)
    if len(body) > limit:
        raise too_large(limit)
    return body


async def read_error_body(reply: HttpReply) -> bytes:
    """The body of an error, or the beginning of one that is larger than an error should be."""
    return (await _read(reply, ERROR_BODY_BYTES))[:ERROR_BODY_BYTES]


async def _read(reply: HttpReply, limit: int) -> bytes:
    """The body as far as the piece that goes beyond the limit."""
    parts: list[bytes] = []
    size, pause = 0, _LONG_READ_BYTES
    while size <= limit and (chunk := await reply.chunk()) is not None:
        parts.append(chunk)
        size += len(chunk)
        if size > pause:
            pause = size + _LONG_READ_BYTES
            await anyio.lowlevel.checkpoint()
    return b"".join(parts)


async def close_reply(reply: HttpReply) -> None:
    """Close a reply whatever is being cancelled, but not for ever."""
    if isinstance(reply, ClosableReply) and reply.closed:
        return
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
        await reply.aclose()


def not_in_time(host: str) -> RequestTimeoutError:
    """No connection within its time."""
    error = RequestTimeoutError(f"no connection to {host} within the connect timeout")
    error.before_sending = True
    return error


def unreachable(host: str, said: str) -> NetworkError:
    """No connection at all."""
    error = NetworkError(f"could not connect to {host}: {said}")
    error.before_sending = True
    return error


def broken(host: str, said: str) -> StreamError:
    """What came is no reply, or only the beginning of one."""
    return StreamError(f"the connection to {host} broke: {said}")


def failed(host: str, said: str) -> NetworkError:
    """The network failed under a request."""
    return NetworkError(f"the connection to {host} failed: {said}")


def unsendable(what: str) -> InvalidRequestError:
    """A request that can't be written. The text must not quote it."""
    return InvalidRequestError(f"base_url, api_key or extra_headers can't be sent as they are ({what})")


def not_made(error: Exception) -> AdapterError:
    """What nobody foresaw."""
    return AdapterError(f"the request could not be made: {type(error).__name__}: {error}")
