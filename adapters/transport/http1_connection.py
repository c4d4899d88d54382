"""One HTTP/1.1 connection to a server: parsing its replies, reading them, and sending requests.

    idle        no request is in progress; any data end the connection
    sending     a request is being sent; its reply may arrive already
    reading     the reply's head has arrived, and its body is read
    ended       the socket is closed, or closes with the event loop's next turn

One task at a time uses a connection, from the request to the reply's end. The event loop calls the methods of
`asyncio.Protocol`, which store data and wake the task. This module has no time limits: the waiting tasks set them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import httptools

from callboard.bus.errors import NetworkError

from .transport import ClosableReply, Unpacker, broken, failed

# --- Parsing replies ---

MOST_HEAD_BYTES = 100 * 1024
"""The largest number of consecutive bytes that are not body data, such as headers, early hints, trailers and chunk
extensions.
"""

_TOO_LONG = f"more than {MOST_HEAD_BYTES} bytes of headers"
_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})")


class ReplyParser:
    """Parses the replies of one connection, one after the other, without sockets or clocks.

        waiting     the reply's head is incomplete; heads of status 1xx don't change that
        body        `status` and `headers` are set, and `pieces` has the body so far
        complete    the reply has ended, and the connection is free if `keeps_open`
        failed      `error` has the reason; earlier data remain valid

    Data after a complete reply would be mistaken for the next reply, so `keeps_open` is then false.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # called by httptools
        self.waits = False
        self.complete = True
        self.error: str | None = None
        self.keeps_open = True
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """Headers by lower-case name. The values of a repeated header are joined by commas."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_head = False
        self._informs = False  # the current head has a 1xx status
        self._until_close = False
        self._ends_at = 0  # the number of pieces of this reply, set at its end
        self._barren = 0
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, method: str) -> None:
        """Expect the reply to a request with this method. The earlier reply must have ended."""
        self.waits, self.complete, self.error, self.keeps_open = True, False, None, True
        self.status, self.headers, self._headers = 0, {}, []
        self._is_head, self._informs, self._until_close = method == "HEAD", False, False
        self._barren = 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.complete or self.error is not None:
            self.keeps_open = False
            return
        before, self._barren = len(self.pieces), self._barren + len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(str(error) or type(error).__name__)
        if self.complete:
            self._end_here()
        elif len(self.pieces) > before:
            self._barren = 0
        elif self._barren > MOST_HEAD_BYTES:
            self._fail(_TOO_LONG)

    def end(self) -> bool:
        """Handle the end of the connection. Return whether the reply is complete."""
        self.keeps_open = False
        if self._until_close and self.error is None:
            self.complete = True
        return self.complete

    def close(self) -> None:
        """Release httptools' parser, which references this object. Nothing can be parsed afterwards."""
        del self._parser, self.on_body

    # --- Callbacks of httptools ---

    def on_message_begin(self) -> None:
        if self.complete:  # another, unrequested reply
            self.keeps_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.waits:
            self._headers.append((name, value))
        elif name.lower() == b"transfer-encoding":
            self._fail("a transfer coding among its trailers")

    def on_headers_complete(self) -> None:
        if not self.waits or self.error is not None:
            return
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if version not in ("1.1", "1.0") or status < 100 or status == 101:
            self._fail(f"a reply of HTTP/{version} with status {status}, which was not requested")
        elif status < 200:
            if any(name.lower() == b"transfer-encoding" for name, _ in self._headers):
                self._fail(f"a body after status {status}")
            self._informs, self._headers = True, []
        else:
            self._begin_body(status, version == "1.1")

    def on_message_complete(self) -> None:
        if self._informs:
            self._informs = False
        elif not (self.waits or self.complete or self.error):
            self.complete, self._ends_at = True, len(self.pieces)

    def _begin_body(self, status: int, may_stay: bool) -> None:
        headers: dict[str, str] = {}
        size = 0
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            if size > MOST_HEAD_BYTES:
                self._fail(_TOO_LONG)
                return
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            self._fail(f"the transfer coding {coding[:40]!r}, which was not requested")
        else:
            self.status, self.headers, self.waits = status, headers, False
            self.keeps_open = may_stay and self._parser.should_keep_alive()
            self._until_close = coding is None and "content-length" not in headers
            if self._is_head:
                self.complete, self._ends_at = True, len(self.pieces)

    def _end_here(self) -> None:
        """Drop data after the reply."""
        if len(self.pieces) > self._ends_at:
            del self.pieces[self._ends_at :]
            self.keeps_open = False
        if self._is_head:  # httptools can't parse a reply without a body: it would wait for the body
            self._parser = httptools.HttpResponseParser(self)

    def _fail(self, message: str) -> None:
        self.keeps_open = False
        if not self.complete and self.error is None:
            self.error = message


def keep_alive_seconds(header: str) -> float | None:
    found = _TIMEOUT.search(header.lower())
    return None if found is None else float(found[1])


# --- A reply for its reader ---


class Reply(ClosableReply):
    """One reply. One task at a time reads a reply; another task may close it."""

    def __init__(self, connection: Connection, pieces: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._connection = connection
        self._pieces = pieces
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._error: NetworkError | None = None
        self._coding: str | None = None
        self._unpacker: Unpacker | None = None
        self._unpacked: Iterator[bytes] = iter(())

    # --- Calls of its reader ---

    async def chunk(self) -> bytes | None:
        if self._coding is None:
            return await self._piece()
        if self._unpacker is None:
            self._unpacker = Unpacker(self._coding)
        piece = next(self._unpacked, None)
        if piece is not None:  # yield to other tasks, because a few bytes may unpack to many
            await asyncio.sleep(0)
        while piece is None and (data := await self._piece()) is not None:
            self._unpacked = self._unpacker.unpack(data)
            piece = next(self._unpacked, None)
        return piece

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._over:
                self._connection.abort()

    async def _piece(self) -> bytes | None:
        """Wait for data, and return everything received since the last piece."""
        while not self._pieces:
            if self._over and self._error is None:
                self.closed = True
                return None
            await self.arrival()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if not self._over:
            self._connection.read_on()
        return data

    # --- Calls of its connection ---

    def arrival(self) -> asyncio.Future[None]:
        """A future that is done when the next part of the reply arrives, or when the reply ends."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers
        self._coding = headers.get("content-encoding")

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: NetworkError | None) -> None:
        """End the body, complete or broken. The connection is released."""
        self._pieces, pieces = self._pieces.copy(), self._pieces
        pieces.clear()
        self._over, self._error = True, error
        self.wake()


# --- A connection ---

HIGH_WATER_BYTES = 256 * 1024
"""The number of unread bytes at which receiving is paused."""

PIECE_BYTES = 64 * 1024
"""The number of bytes of a request's body that are passed to the event loop together."""

_COPIED_BYTES = 32 * 1024
"""The maximum size of a body that is copied behind its head. For a larger body, a second write costs no more than
the copy.
"""

KEPT_SECONDS = 5.0
"""Seconds for which an idle connection is kept."""

_MARGIN = 0.8
"""The share of a server's keep-alive time after which a connection is not reused."""


class AgedConnectionError(NetworkError):
    """A used connection broke before the server answered a request.

    The server may have closed it before the request arrived.
    """


class Connection(asyncio.Protocol):
    """A connection, which the event loop opens."""

    def __init__(
        self, host: str, on_free: Callable[[Connection], object], on_end: Callable[[Connection], object]
    ) -> None:
        self.kept_until = 0.0
        self._host = host
        self._on_free = on_free
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = ReplyParser()
        self._reply: Reply | None = None
        self._kept_seconds = KEPT_SECONDS
        self._served = False
        self._received = False
        self._sent = True
        self._ended = False
        self._lost = False
        self._unread = 0
        self._paused = False
        self._writer: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the connection can send no more requests."""
        return self._ended

    # --- Calls of a task ---

    async def exchange(self, method: str, head: bytes, body: bytes) -> Reply:
        """Send a request and wait for the head of its reply."""
        reply = self._reply = Reply(self, self._parser.pieces, self._loop)
        self._parser.begin(method)
        self._received = False
        try:
            if len(body) <= _COPIED_BYTES:
                self._transport.write(head + body)
            else:
                await self._send(head, body)
            while reply.status == 0:
                await reply.arrival()
        except BaseException:
            self.abort()
            raise
        self._served = True
        return reply

    async def _send(self, head: bytes, body: bytes) -> None:
        """Send a large body as fast as the server reads it. Stop if the server rejects the request early."""
        self._sent = False
        self._transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            if self._ended or self._parser.status >= 300:
                return
            self._transport.write(view[start : start + PIECE_BYTES])
            if self._writer is not None:
                await self._writer
        self._sent = True

    def read_on(self) -> None:
        """Continue receiving, because all data were read."""
        self._unread = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the socket with the event loop's next turn, in any state. Idempotent."""
        if not self._ended:
            self._transport.abort()
            self._end()

    def give_up(self) -> None:
        """Like `abort`, for a connection that may have no transport yet. Then the event loop closes the socket."""
        if hasattr(self, "_transport"):
            self.abort()

    def close(self) -> None:
        """Like `abort`, after TLS's closing message."""
        if not self._ended:
            self._transport.close()
            self._loop.call_soon(self._transport.abort)
            self._end()

    async def wait_closed(self) -> None:
        """Wait until an aborted or closed connection has released its socket."""
        if not self._lost:
            self._closing = self._loop.create_future()
            await self._closing

    # --- Calls of the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transport is not a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reply, parser = self._reply, self._parser
        if reply is None:  # a timeout reported by the server, or an unrequested reply
            self.abort()
            return
        self._received = True
        parser.feed(data)
        if not parser.waits:
            if reply.status == 0:
                self._begin(reply)
            if parser.complete:
                self._complete(reply)
                return
            self._unread += len(data)
            if self._unread > HIGH_WATER_BYTES and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            reply.wake()
        if parser.error is not None:
            self._break(broken(self._host, parser.error))

    def eof_received(self) -> None:
        self._lose(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._lose(error)
        _release(self._closing)

    def pause_writing(self) -> None:
        self._writer = self._loop.create_future()

    def resume_writing(self) -> None:
        _release(self._writer)
        self._writer = None

    # --- Ends of replies ---

    def _begin(self, reply: Reply) -> None:
        reply.begin(self._parser.status, self._parser.headers)
        if not self._sent:  # the sending task checks whether the request was rejected
            _release(self._writer)

    def _complete(self, reply: Reply) -> None:
        """End the reply. Its reader keeps the remaining data, and the connection can be reused."""
        self._reply = None
        reply.end(None)
        if not self._parser.keeps_open or not self._sent:
            self.close()
            return
        self.read_on()
        hint = reply.headers.get("keep-alive")
        if hint is not None:
            seconds = keep_alive_seconds(hint)
            self._kept_seconds = KEPT_SECONDS if seconds is None else min(KEPT_SECONDS, seconds * _MARGIN)
        self.kept_until = self._loop.time() + self._kept_seconds
        self._on_free(self)

    def _lose(self, error: Exception | None) -> None:
        """Handle the end of the connection by the server or the network."""
        reply = self._reply
        if reply is None:
            self.abort()
        elif error is None and self._parser.end():
            self._complete(reply)
        else:
            self._break(self._failure(error))

    def _failure(self, error: Exception | None) -> NetworkError:
        if self._served and not self._received:
            return AgedConnectionError(f"the connection to {self._host} was closed before it was reused")
        if error is None:
            return broken(self._host, f"the server ended it {'within' if self._received else 'without'} a reply")
        made = failed(self._host, str(error) or type(error).__name__)
        made.__cause__ = error
        return made

    def _break(self, error: NetworkError) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end(error)
        self.abort()

    def _end(self) -> None:
        self._ended = True
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end(failed(self._host, "it was closed before the end of the reply"))
        _release(self._writer)
        self._parser.close()
        self._on_end(self)


def _release(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
