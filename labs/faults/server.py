"""An HTTP server that speaks four protocols and breaks its replies as the plan says.

`plan.fault_of` alone decides the fault of each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from callboard.bus.values.base import JsonObject
from tests.support.wire_history import history_faults

from .plan import FAULTS, fault_of, turn_of
from .replies import is_generate_content, make_reply


class _Gone(Exception):
    """The server closed the connection on purpose."""


Handler: TypeAlias = Callable[[], Awaitable[None]]


class FaultyServer:
    """A server that runs within a block: `async with FaultyServer(seed) as server: server.url`.

    Args:
        seed: The seed of the faults.
        faults: Replaces FAULTS.
        tls: The TLS context of the server; None uses plain HTTP.
    """

    def __init__(
        self, seed: object, *, faults: dict[str, int] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._seed = seed
        self._faults = FAULTS if faults is None else faults
        self._tls = tls
        self._numbers: Counter[tuple[str, str]] = Counter()
        self.played: dict[tuple[str, str, int], str] = {}
        """The fault of each request, by turn, protocol and the number of the request."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen: Counter[str] = Counter()
        """The number of requests by turn."""
        self.done: Counter[str] = Counter()
        """The number of times that each fault was played."""
        self.wrong: list[str] = []
        """Invalid requests."""

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    async def __aenter__(self) -> FaultyServer:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *details: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                path = head.split(b" ", 2)[1].decode()
                await _Exchange(self, path, body, reader, writer).play()
        except (_Gone, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

    def next_fault(self, path: str, body: bytes) -> tuple[str, random.Random]:
        """The fault for a request, and the random generator for the details of its reply."""
        turn, protocol = turn_of(body), protocol_of(path)
        self.seen[turn] += 1
        self._numbers[turn, protocol] += 1
        number = self._numbers[turn, protocol]
        fault, chance = fault_of(self._seed, turn, protocol, number, self._faults)
        self.done[fault] += 1
        self.played[turn, protocol, number] = fault
        return fault, chance


def protocol_of(path: str) -> str:
    """The last step of a path. Both streamed and plain requests of Gemini give generateContent."""
    return "generateContent" if is_generate_content(path) else path.rpartition("/")[2]


class _Exchange:
    """One request, and the faulty reply to it."""

    def __init__(
        self,
        server: FaultyServer,
        path: str,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.fault, self.chance = server.next_fault(path, body)
        self.reader = reader
        self.writer = writer
        request = msgspec.json.decode(body)
        self.streamed = bool(request.get("stream")) or ":stream" in path
        server.wrong += [f"{path}: {fault}" for fault in history_faults(path, request)]
        self.reply = make_reply(path, request, self.chance)

    async def play(self) -> None:
        step: Handler | None = getattr(self, f"_{self.fault}", None)
        await (step() if step is not None else self._send(self._body()))

    # -- before the head

    async def _latency(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        await self._send(self._body())

    async def _reset_before_head(self) -> None:
        self._reset()

    async def _close_before_head(self) -> None:
        raise _Gone

    async def _slow_head(self) -> None:
        head = self._head(200, len(self._body()))
        for at in range(0, len(head), 16):
            await self._write(head[at : at + 16])
            await asyncio.sleep(self.chance.choice((0.001, 0.1)))
        await self._write(self._body())

    async def _stall_before_head(self) -> None:
        await self._until_gone()

    # -- other statuses

    async def _status_429(self) -> None:
        hint = self.chance.choice(("retry-after: 0.02", "retry-after-ms: 5", "retry-after: soon", "x-none: 1"))
        await self._status(429, "rate_limit_error", hint)

    async def _status_429_long(self) -> None:
        await self._status(429, "rate_limit_error", "retry-after: 3600")

    async def _status_529(self) -> None:
        await self._status(529, "overloaded_error")

    async def _status_5xx(self) -> None:
        await self._status(self.chance.choice((500, 502, 503, 504)), "api_error")

    async def _status_400(self) -> None:
        await self._status(400, "invalid_request_error")

    async def _redirect(self) -> None:
        await self._status(302, "moved", "location: http://127.0.0.1:1/")

    async def _status(self, status: int, kind: str, header: str = "x-none: 1") -> None:
        error: JsonObject = {"type": "error", "error": {"type": kind, "message": f"injected {status}"}}
        body = self.chance.choice((msgspec.json.encode(error), b"<html>busy</html>", b""))
        await self._write(self._head(status, len(body), header, kind="application/json") + body)

    # -- in the body

    async def _trickle(self) -> None:
        await self._send(self._body(), size=self.chance.choice((1, 3, 17)))

    async def _reset_in_body(self) -> None:
        await self._send(self._part(), end=False)
        self._reset()

    async def _truncated(self) -> None:
        await self._send(self._part(), end=False)
        raise _Gone

    async def _stall_in_body(self) -> None:
        await self._send(self._part(), end=False)
        await self._until_gone()

    async def _bad_bytes(self) -> None:
        body = bytearray(self._body())
        for _ in range(self.chance.randint(1, 5)):
            body[self.chance.randrange(len(body))] = self.chance.randrange(256)
        await self._send(bytes(body))

    async def _bad_json(self) -> None:
        broken = self._body()[:-1] + b",,"
        await self._send(self._events(self.reply.broken) if self.streamed else broken)

    async def _bad_chunk(self) -> None:
        head = "transfer-encoding: chunked"
        await self._write(self._head(200, None, head) + b"5\r\ndata:\r\nzz\r\nnonsense")
        raise _Gone

    async def _empty_body(self) -> None:
        await self._send(b"")

    async def _html(self) -> None:
        body = b"<html>a proxy says hello</html>"
        await self._write(self._head(200, len(body), kind="text/html") + body)

    async def _error_in_stream(self) -> None:
        await self._send(self._events(self.reply.error) if self.streamed else self._body())

    # -- after the body

    async def _closed_after(self) -> None:
        """Close the connection despite keep-alive, immediately or a moment later."""
        await self._send(self._body())
        if self.chance.random() < 0.5:
            await asyncio.sleep(0.005)
        self._reset() if self.chance.random() < 0.5 else None
        raise _Gone

    async def _open_after(self) -> None:
        """Send the complete message, but do not end the body."""
        await self._send(self._body(), end=False)
        await self._until_gone()

    # -- small things

    def _body(self) -> bytes:
        return self.reply.streamed if self.streamed else self.reply.whole

    def _part(self) -> bytes:
        body = self._body()
        return body[: self.chance.randrange(len(body))]

    def _events(self, extra: bytes) -> bytes:
        """Send the first events of the stream, then these bytes, then end the stream."""
        blank = b"\r\n\r\n" if b"\r\n\r\n" in self.reply.streamed else b"\n\n"
        events = self.reply.streamed.split(blank)
        return blank.join([*events[: self.chance.randrange(len(events))], b""]) + extra

    def _head(self, status: int, length: int | None, *headers: str, kind: str | None = None) -> bytes:
        if kind is None:
            kind = "text/event-stream" if self.streamed else "application/json"
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "x-request-id: wire", *headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "", ""]).encode()

    async def _send(self, body: bytes, *, size: int | None = None, end: bool = True) -> None:
        if self.streamed:
            await self._write(self._head(200, None, "transfer-encoding: chunked"))
            step = size or self.chance.choice((40, 200, 4096))
            for at in range(0, len(body), step):
                piece = body[at : at + step]
                await self._write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                if self.chance.random() < 0.2:
                    await asyncio.sleep(0)
            if end:
                await self._write(b"0\r\n\r\n")
        else:
            await self._write(self._head(200, len(body) + (0 if end else 10)) + body)

    async def _write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise _Gone
        self.writer.write(data)
        await self.writer.drain()

    def _reset(self) -> None:
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is None:
            raise _Gone  # the client closed the connection first
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise _Gone

    async def _until_gone(self) -> None:
        with contextlib.suppress(OSError):
            await self.reader.read()
        raise _Gone
