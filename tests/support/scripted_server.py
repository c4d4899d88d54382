"""An HTTP server with a script for each connection, on anyio's TCP sockets."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from anyio.streams.tls import TLSListener

Script = Callable[["Connection"], Awaitable[None]]


class Connection:
    """The server's end of one connection."""

    def __init__(self, server: Server, stream: anyio.abc.SocketStream, number: int) -> None:
        self.server = server
        self.number = number
        self._stream = stream
        self._buffer = b""

    async def request(self) -> bytes:
        """The next request's body. Raises EndOfStream when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._stream.receive()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(self._buffer) < length:
            self._buffer += await self._stream.receive()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        self.server.requests.append((self.number, head, body))
        return body

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def reply(self, body: bytes, headers: bytes = b"") -> None:
        length = str(len(body)).encode()
        await self.send(
            b"HTTP/1.1 200 OK\r\nX-Upper: Yes\r\n" + headers + b"content-length: " + length + b"\r\n\r\n" + body
        )

    async def start_chunks(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    async def piece(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def reset(self) -> None:
        """Close so that the client gets a connection reset instead of an end of file."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._stream.aclose()


class Server:
    """The server of `serving`."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        """The URL of its only page."""
        self.connections = 0
        """The number of all connections so far."""
        self.open = 0
        """The number of open connections."""
        self.requests: list[tuple[int, bytes, bytes]] = []
        """The number of the connection, the head and the body of each request."""
        self.closed = anyio.Event()
        """Set each time a connection ends, and then replaced."""
        self._script = script

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        connection = Connection(self, stream, self.connections)
        self.connections += 1
        self.open += 1
        try:
            async with stream:
                while True:
                    await self._script(connection)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.open -= 1
            self.closed.set()
            self.closed = anyio.Event()

    async def until_open(self, count: int) -> None:
        with anyio.fail_after(10):
            while self.open != count:
                await self.closed.wait()


def quiet(listener: anyio.abc.Listener[anyio.abc.SocketStream], tls: ssl.SSLContext) -> TLSListener:
    """TLS connections. A failed handshake is ignored."""

    class Quiet(TLSListener):
        @staticmethod
        async def handle_handshake_error(exc: BaseException, stream: anyio.abc.AnyByteStream) -> None:
            await anyio.aclose_forcefully(stream)

    return Quiet(listener, tls, standard_compatible=False)


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server on this machine."""
    server = Server(script)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        server.url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}/v1/talk"
        tasks.start_soon((listener if tls is None else quiet(listener, tls)).serve, server.serve)
        yield server
        tasks.cancel_scope.cancel()


async def echo(connection: Connection) -> None:
    """A script that answers with the request's body."""
    await connection.reply(b"said " + await connection.request())
