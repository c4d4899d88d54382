"""A gateway that is called as a server calls it: with ASGI messages and without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from callboard.engine.gateway.application import Gateway

JsonLine = dict[str, Any]


class Asked:
    """One request in progress. `arrived` has its pieces."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.arrived: list[bytes] = []
        self.over = False
        self._news = asyncio.Event()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reads: Callable[[], Awaitable[object]] | None = None
        """Awaited before each piece is taken, like a client that reads slowly."""

    async def receive(self) -> dict[str, Any]:
        return await self._incoming.get()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            if self.reads is not None:
                await self.reads()
            self.arrived.append(message["body"])
            self.over = not message.get("more_body", False)
        self._news.set()

    def body(self, data: bytes, *, more: bool = False) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until(self, found: Callable[[], object]) -> None:
        """Wait until a condition is true. The condition is checked at each message."""
        while not found():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)

    @property
    def data(self) -> bytes:
        return b"".join(self.arrived)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)

    @property
    def lines(self) -> list[JsonLine]:
        return [msgspec.json.decode(line) for line in self.data.splitlines()]


def scope_of(
    method: str, path: str, headers: Iterable[tuple[str, str]] = (), *, root: str = "", query: str = ""
) -> dict[str, Any]:
    given = [(name.lower().encode(), value.encode()) for name, value in headers]
    if not any(name == b"host" for name, _ in given):
        given.append((b"host", b"127.0.0.1:8375"))
    return {
        "type": "http", "method": method, "path": root + path, "root_path": root, "query_string": query.encode(),
        "headers": given, "client": ("127.0.0.1", 50000),
    }  # fmt: skip


@asynccontextmanager
async def open_request(
    app: Gateway,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
    asked: Asked | None = None,
    **where: str,
) -> AsyncIterator[Asked]:
    """Open a request. At its end, the block waits for the end of the request."""
    asked = asked or Asked()
    if isinstance(body, bytes):
        asked.body(body)
    elif body is not None:
        asked.body(msgspec.json.encode(body))
    scope = scope_of(method, path, (headers or {}).items(), **where)
    task = asyncio.create_task(app(scope, asked.receive, asked.send))
    try:
        yield asked
        await asyncio.wait_for(task, 10)
    finally:
        task.cancel()


async def ask(app: Gateway, method: str, path: str, body: object = None, **how: Any) -> Asked:
    """Send a request and wait for its end."""
    async with open_request(app, method, path, body, **how) as asked:
        pass
    return asked


async def post(app: Gateway, body: object, path: str = "/v1/chat/completions", **how: Any) -> Asked:
    return await ask(app, "POST", path, body, **how)
