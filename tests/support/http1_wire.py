"""A connection of Callboard's HTTP/1.1 client on a transport in memory."""

from __future__ import annotations

import asyncio

from callboard.adapters.transport.http1_connection import Connection, Reply

HEAD = b"POST / HTTP/1.1\r\n\r\n"


class Wire(asyncio.Transport):
    """The transport of a connection, without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        """The written bytes."""
        self.paused = False
        self.ended: list[str] = []
        """How the connection ended; empty if it has not."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent.append(bytes(data))

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def abort(self) -> None:
        self.ended.append("aborted")

    def close(self) -> None:
        self.ended.append("closed")


class Line:
    """A connection on a transport in memory."""

    def __init__(self) -> None:
        self.free = 0
        """The number of times that the connection reported that it is free."""
        self.over = 0
        """The number of times that it reported its end."""
        self.wire = Wire()
        self.connection = Connection("api.test", lambda _: self._count("free"), lambda _: self._count("over"))
        self.connection.connection_made(self.wire)

    def _count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    def ask(self, method: str = "POST", body: bytes = b"") -> asyncio.Task[Reply]:
        """Start a request."""
        return asyncio.create_task(self.connection.exchange(method, HEAD, body))

    async def reply(self, sent: bytes) -> Reply:
        """The reply that is read from these bytes."""
        task = self.ask()
        await turns()
        self.connection.data_received(sent)
        return await task


async def turns() -> None:
    """Let all tasks continue that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def whole(reply: Reply) -> bytes:
    """Read a whole body. Raises the reader's error."""
    parts = []
    while (part := await reply.chunk()) is not None:
        parts.append(part)
    return b"".join(parts)
