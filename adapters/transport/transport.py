"""The protocol of transports: HTTP requests, replies and failures.

A transport has no endpoint. It only limits the time to connect; the caller limits each read. `opening` chooses
one.
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
"""The number of bytes that are read of an error's body."""

_LONG_READ_BYTES = 1024 * 1024
"""The number of bytes of a body after which other tasks get a turn."""


class HttpRequest(msgspec.Struct, frozen=True):
    """An HTTP request. Its headers may hold keys, so it is never logged."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    """The body; empty if there is none."""
    connect_timeout: float = 10.0
    """Seconds for the connection."""
    once: bool = False
    """Whether the request must not arrive twice. It then has a connection of its own: only a request over an aged
    kept-alive connection is sent again.
    """
    on_resend: Callable[[], object] | None = None
    """Called when the request is sent again."""
    public_only: bool = False
    """Whether the address comes from a reply. The request then has a connection of its own, to a public address
    only.
    """

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url}, {len(self.body)} bytes)"


class HttpReply(Protocol):
    """A reply with its head. Always close it."""

    status: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """The headers, with lower-case names."""

    async def chunk(self) -> bytes | None:
        """The next bytes of the body, decompressed; None at its end."""
        ...

    async def aclose(self) -> None:
        """Return the connection, or close it if the body was not read to its end."""
        ...


class ClosableReply:
    """A reply that reports whether it is closed, so that closing it again needs no time limit."""

    closed = False
    """Whether the connection was returned or closed, also by the body's end."""


class TransportStatistics(msgspec.Struct, frozen=True):
    """A transport's connections, without idle ones."""

    clients: int
    """Open connection pools: one for each server, or for each httpx client."""
    in_use: int
    """Connections with a request or a reply."""


class Transport(Protocol):
    """Sends requests. Many calls may use it concurrently."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send, and wait for the reply's head. Raises AdapterError only."""
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
    """The body of an error, cut at the usual size of errors."""
    return (await _read(reply, ERROR_BODY_BYTES))[:ERROR_BODY_BYTES]


async def _read(reply: HttpReply, limit: int) -> bytes:
    """The body up to the piece that exceeds the limit."""
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
    """Close a reply in spite of cancellations, for a limited time."""
    if isinstance(reply, ClosableReply) and reply.closed:
        return
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
        await reply.aclose()


def not_in_time(host: str) -> RequestTimeoutError:
    """The error for a connection timeout."""
    error = RequestTimeoutError(f"no connection to {host} within the connect timeout")
    error.before_sending = True
    return error


def unreachable(host: str, said: str) -> NetworkError:
    error = NetworkError(f"could not connect to {host}: {said}")
    error.before_sending = True
    return error


def broken(host: str, said: str) -> StreamError:
    """The error for an invalid or incomplete reply."""
    return StreamError(f"the connection to {host} broke: {said}")


def failed(host: str, said: str) -> NetworkError:
    """The error for a network failure during a request."""
    return NetworkError(f"the connection to {host} failed: {said}")


def unsendable(what: str) -> InvalidRequestError:
    """The error for a request that can't be written. The text must not quote it."""
    return InvalidRequestError(f"base_url, api_key or extra_headers can't be sent as they are ({what})")


def not_made(error: Exception) -> AdapterError:
    return AdapterError(f"the request could not be made: {type(error).__name__}: {error}")
