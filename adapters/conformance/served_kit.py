"""A kit for an adapter that brings its own HTTP client: its provider is a real server on this machine.

Time is real, so the checks that wait for minutes are skipped. It runs on asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from callboard.adapters.transport.transport import HttpRequest
from callboard.bus.clock import Clock

from ..config import AdapterConfig
from ..contract import ProviderAdapter
from .fake_http import FakeReply
from .http_kit import HttpKit
from .kit import KEY, Stage
from .virtual_time import FakeClock

PATIENCE_SECONDS = 2.0


class ServedKit(HttpKit):
    """The kit of an adapter that is given an address instead of a transport."""

    real_time = True
    moment = 0.2

    def make_at(self, base_url: str, clock: Clock, **config: object) -> ProviderAdapter:
        """The adapter, for a provider at that address."""
        fields = {"api_key": KEY, "base_url": base_url, "options": self.options, **config}
        return type(self).adapter(AdapterConfig(**fields), clock=clock)  # type: ignore[arg-type]  # a check names them

    @asynccontextmanager
    async def stage_of(self, *replies: FakeReply | Exception, **config: object) -> AsyncIterator[Stage]:
        clock = FakeClock(randomness=0.0)
        server = _Server(replies)
        address = await server.start()
        adapter = self.make_at(address, clock, **config)
        try:
            yield Stage(
                adapter=adapter,
                clock=clock,
                model=f"{self.name}:{self.model}",
                asked=lambda: len(server.requests),
                released=lambda: server.playing == 0,
                requests=server.requests,
                patience=PATIENCE_SECONDS,
            )
        finally:
            await adapter.close()
            await server.stop()


class _Server:
    """A server that answers the n-th request with the n-th reply, or hangs up where it is an exception."""

    def __init__(self, replies: Sequence[FakeReply | Exception]) -> None:
        self.requests: list[HttpRequest] = []
        self.playing = 0
        self._replies = replies
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the stage is over
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False if the connection has no more use then."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(HttpRequest(method, f"http://{headers.get('host', '')}{path}", headers, body))
        number = len(self.requests) - 1
        reply = self._replies[number] if number < len(self._replies) else ConnectionError("one request too many")
        if isinstance(reply, Exception):
            return False
        self.playing += 1
        play = asyncio.ensure_future(_play(reply, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((play, gone), return_when=asyncio.FIRST_COMPLETED)
            return play.done() and await play and not gone.done()
        finally:
            self.playing -= 1
            for task in (play, gone):
                task.cancel()
            await asyncio.gather(play, gone, return_exceptions=True)


async def _play(reply: FakeReply, writer: asyncio.StreamWriter) -> bool:
    """Send a reply as its steps say. False if it broke off."""
    await asyncio.sleep(reply.wait)
    lines = [f"HTTP/1.1 {reply.status} Said", *[f"{name}: {value}" for name, value in reply.headers.items()]]
    writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
    for step in reply.steps:
        match step:
            case bytes():
                if step:
                    writer.write(f"{len(step):x}\r\n".encode() + step + b"\r\n")
                    await writer.drain()
            case float():
                await asyncio.sleep(step)
            case _:
                return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True
