"""A server in memory that replies, breaks off, resets, or sends data without a request, as a seed decides."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections import Counter
from collections.abc import Callable

from callboard.adapters.transport.connection_pool import Origin
from callboard.adapters.transport.http1_connection import Connection
from tests.support.http1_wire import Wire

from .replies import cut, make_reply

WAYS = ["well"] * 12 + ["end", "reset", "end within", "reset within", "then end", "then more", "refuse", "nothing"]
_REQUEST = re.compile(rb"\A([A-Z]+) /(\d+) HTTP/1\.1\r\n(?:.+\r\n)*?Content-Length: (\d+)\r\n(?:.+\r\n)*\r\n")


class ServedWire(Wire):
    """The client's end of a connection to the server."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.connection: Connection
        self._network = network
        self._received = b""
        self.owes = False  # whether it owes the client a reply
        self.begun = False  # whether a reply was started
        self.requests = 0
        self.number = 0  # the number of the current request
        self._lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.ended or self._lost:
            return
        super().write(data)
        self._received += bytes(data)
        found = _REQUEST.match(self._received)
        if found is not None and len(self._received) - found.end() >= int(found[3]):
            body = self._received[found.end() :]
            assert len(body) == int(found[3]), "more than one request at once"
            assert not self.owes, "a request before the reply's end"
            self.owes, self._received = True, b""
            self.requests += 1
            self.number = int(found[2])
            self._network.tasks.append(asyncio.create_task(self._network.serve(self, self.number, body)))

    def is_closing(self) -> bool:
        return bool(self.ended) or self._lost

    def abort(self) -> None:
        super().abort()
        self._close()

    def close(self) -> None:
        super().close()
        self._close()

    def lose(self, error: Exception | None) -> None:
        """End the connection, as the server or the network does."""
        if self._lost or self.ended:
            return
        if error is None:
            self.connection.eof_received()
        self._close(error)

    def say(self, data: bytes) -> bool:
        """Send bytes to the client. Returns False if the client has closed the connection."""
        if self._lost or self.ended:
            return False
        self._network.answered.add(self.number)
        self.connection.data_received(data)
        return True

    def _close(self, error: Exception | None = None) -> None:
        if not self._lost:
            self._lost = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, error)


class Network:
    """The server."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.arrived: Counter[int] = Counter()
        """The number of times that each request arrived."""
        self.bodies: dict[int, bytes] = {}
        """The body of the reply to each request."""
        self.done: Counter[str] = Counter()
        """The number of times that each kind of reply was sent."""
        self.wires: list[ServedWire] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.answered: set[int] = set()
        self._on_new: set[int] = set()

    async def connect(
        self, origin: Origin, context: ssl.SSLContext | None, make: Callable[[], Connection], *, public_only: bool
    ) -> Connection:
        """Replaces `adapters.transport.connection_pool.connect`."""
        await self.pause()
        if self._chance.random() < 0.05:
            raise ConnectionRefusedError("nobody there")
        wire = ServedWire(self)
        wire.connection = make()
        wire.connection.connection_made(wire)
        self.wires.append(wire)
        if self._chance.random() < 0.05:
            wire.lose(self._chance.choice([None, ConnectionResetError("reset")]))
            await self.pause()
        return wire.connection

    async def pause(self) -> None:
        """Wait for a few iterations of the event loop."""
        for _ in range(self._chance.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)

    async def serve(self, wire: ServedWire, number: int, asked: bytes) -> None:
        """Reply to a request, or break it off."""
        assert asked == request_body(number), "a request that nobody sent"
        if self.arrived[number]:
            assert number not in self.answered, f"{number} was sent again though it was answered"
            assert number not in self._on_new, f"{number} was sent again though its connection was new"
        self.arrived[number] += 1
        if wire.requests == 1:
            self._on_new.add(number)
        body = self.bodies.setdefault(
            number, b"#%d;" % number + self._chance.randbytes(self._chance.randint(0, 3000))
        )
        way = self._chance.choice(WAYS)
        self.done[way] += 1
        await self.pause()
        match way:
            case "end" | "reset":
                wire.lose(None if way == "end" else ConnectionResetError("reset"))
            case "refuse":
                wire.owes = False
                wire.say(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            case "nothing":
                pass
            case _:
                await self._reply(wire, body, way)

    async def _reply(self, wire: ServedWire, body: bytes, way: str) -> None:
        made = make_reply(self._chance, body)
        sent = made.sent
        if way in ("end within", "reset within"):
            sent = sent[: self._chance.randint(1, len(sent) - 1)]
            if made.ends:
                way = "reset within"  # because here the end of the connection is the end of the reply
        wire.begun = True
        *parts, last = cut(self._chance, sent)
        for part in parts:
            if not wire.say(part):
                return
            if self._chance.random() < 0.5:
                await self.pause()
        wire.owes = wire.begun = way in ("end within", "reset within") or made.ends
        wire.say(last)
        await self.pause()
        if way == "reset within":
            wire.lose(ConnectionResetError("reset"))
        elif way == "end within" or made.ends:
            wire.lose(None)
        elif way == "then end":
            if not wire.begun:  # another request may have arrived that has no reply yet
                wire.lose(None)
        elif way == "then more":
            await self.pause()
            if self.is_idle(wire):
                wire.say(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    def is_idle(self, wire: ServedWire) -> bool:
        """Whether a connection has no request in progress."""
        return wire.connection._reply is None and not wire.connection.is_over


def request_body(number: int) -> bytes:
    """The body of the request with this number. Every hundredth is large."""
    return b"?%d;" % number * (20_000 if number % 100 == 99 else 1)
