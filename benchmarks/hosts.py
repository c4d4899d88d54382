"""What the subjects with a network share: engines that talk to the reply server, and the raw floor."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from adapters import Message, ToolDefinition
from adapters.transport.transport import CALLS_PER_CLIENT, HttpReply, HttpRequest, HttpxTransport
from engine import Budget, Cluster, Engine, Limits, Tool
from tests.support.reply_models import registry
from tracestore import PriceTable

JSON = msgspec.json.Decoder()


@asynccontextmanager
async def engine_on(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    calls: int = 256,
    keep_streams: bool = True,
    budgets: Sequence[Budget] = (),
    ship_to: str | None = None,
    cluster: Cluster | None = None,
) -> AsyncIterator[Engine]:
    """A whole engine, its trace in a file, and a quiet log."""
    logging.getLogger("callboard").setLevel(logging.ERROR)
    keep = Limits(calls_per_provider=calls)
    limits = (
        keep
        if keep_streams
        else Limits(calls_per_provider=calls, retain_streams_seconds=0.0, retain_streams_bytes=0)
    )
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        async with Engine(
            models=registry(url, headers),
            store=Path(folder) / "trace.db",
            prices=PriceTable.default(),
            limits=limits,
            budgets=budgets,
            ship_to=ship_to,
            cluster=cluster,
        ) as engine:
            yield engine


@contextmanager
def home_in(folder: Path) -> Iterator[None]:
    """A home of our own: a shipper notes there which file it ships, and adopts those of dead processes."""
    before = os.environ.get("CALLBOARD_HOME")
    os.environ["CALLBOARD_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CALLBOARD_HOME"]
        else:
            os.environ["CALLBOARD_HOME"] = before


def history(messages: int) -> list[Message]:
    """So many messages, of about forty words each, the user's first."""
    text = "What the notice says is read twice, by the clerk and by the actor who waits behind the curtain. " * 2
    return [
        Message.user(f"{index}. {text}") if index % 2 == 0 else Message.assistant(f"{index}. {text}")
        for index in range(messages)
    ]


def tools(count: int) -> list[Tool]:
    """Tools that the host would answer itself, each with three parameters."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "where to look"},
            "day": {"type": "string", "enum": ["today", "tomorrow"]},
            "limit": {"type": "integer", "description": "how many at most"},
        },
        "required": ["place"],
    }
    return [Tool(ToolDefinition(f"look_up_{index}", "Looks something up.", schema)) for index in range(count)]


class BodyCatcher(HttpxTransport):
    """Remembers what was sent last, so that the floor can send the same."""

    def __init__(self) -> None:
        super().__init__()
        self.path = ""
        self.body = b""

    async def send(self, request: HttpRequest) -> HttpReply:
        self.path, self.body = httpx.URL(request.url).path, request.body
        return await super().send(request)


class RawClients:
    """The floor: httpx and msgspec alone, one client for each so many calls at once."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._clients: list[httpx.AsyncClient] = []

    def client(self, index: int) -> httpx.AsyncClient:
        while len(self._clients) <= index // CALLS_PER_CLIENT:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._clients.append(httpx.AsyncClient(limits=limits, timeout=None, trust_env=False))
        return self._clients[index // CALLS_PER_CLIENT]

    async def post(self, path: str, body: object, index: int = 0) -> Any:
        reply = await self.client(index).post(
            self._url + path, content=msgspec.json.encode(body), headers=self._headers
        )
        return JSON.decode(reply.content)

    async def stream(self, path: str, body: object, index: int = 0) -> int:
        """Read a streamed reply; how many events it had."""
        events = 0
        request = self.client(index).stream(
            "POST", self._url + path, content=msgspec.json.encode(body), headers=self._headers
        )
        async with request as reply:
            rest = b""
            async for chunk in reply.aiter_raw():
                *frames, rest = (rest + chunk).split(b"\n\n")
                for frame in frames:
                    data = frame[frame.find(b"data: ") + 6 :]
                    if data != b"[DONE]":
                        JSON.decode(data)
                        events += 1
        return events

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def __aenter__(self) -> RawClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def release(url: str) -> None:
    """Let the streams go on that the server holds."""
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(url + "/release")


async def settle() -> None:
    """Let what has ended be gone: callbacks, closed transports."""
    for _ in range(20):
        await asyncio.sleep(0.005)
