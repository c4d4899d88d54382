"""A gateway on 127.0.0.1 over providers that answer as scripted, also there: real sockets on both sides."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, NamedTuple

import msgspec
import uvicorn

from callboard.adapters import AdapterConfig
from callboard.bus.values.base import Json
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from callboard.engine.gateway.application import gateway
from tests.support.wires import Wire

JSON = "application/json"
EVENTS = "text/event-stream"


class Scripted(NamedTuple):
    """One reply of a provider."""

    body: bytes
    status: int = 200
    kind: str = JSON
    headers: Mapping[str, str] = {}
    ends: Literal["whole", "cut", "never"] = "whole"
    """Whether the body is complete, the connection breaks after it, or nothing more comes."""


class ScriptedProvider:
    """A server of scripted replies, the next one for each request."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Scripted] = []
        self.asked: list[Any] = []
        """The bodies of the requests."""
        self.left = asyncio.Event()
        """Set when a client left before the end of its reply."""

    def says(self, *replies: Scripted) -> None:
        self.replies += replies

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                found = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
                length = int(found[1]) if found else 0
                self.asked.append(msgspec.json.decode(await reader.readexactly(length) or b"null"))
                if not await self._answer(self.replies.pop(0), reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reply: Scripted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        headers = {"content-type": reply.kind, "transfer-encoding": "chunked", **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {reply.status} Said\r\n{head}\r\n".encode())
        writer.write(b"%x\r\n%s\r\n" % (len(reply.body), reply.body))
        if reply.ends == "whole":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if reply.ends == "never":
            await reader.read()  # until the client leaves
            self.left.set()
        return reply.ends == "whole"


def whole(body: Json, status: int = 200, **headers: str) -> Scripted:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Scripted(msgspec.json.encode(body), status, headers=named)


def stream(wire: Wire, *events: Any, ends: Literal["whole", "cut", "never"] = "whole") -> Scripted:
    return Scripted(wire.stream(*events), kind=EVENTS, ends=ends)


MODELS = {
    "anthropic": "claude-opus-4-6",
    "openai": "gpt-5.2",
    "openai_compatible": "gpt-4.1",
    "gemini": "gemini-2.5-pro",
}
"""A model of each protocol."""


@contextmanager
def _port() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


class _Quiet(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the test's own


@asynccontextmanager
async def serving(
    wire: Wire, client_model: str, named: str | None = None
) -> AsyncIterator[tuple[str, ScriptedProvider]]:
    """The URL of a gateway over one provider of a wire, and the provider.

    Args:
        wire: The provider's protocol.
        client_model: The client's name for its model.
        named: The provider's name of the model; None for one that converses.
    """
    named = named or MODELS[wire.name]
    provider = ScriptedProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    model = f"{wire.name}:{named}"
    config = AdapterConfig(api_key="k", base_url=provider.url, max_retries=0, options=dict(wire.options))
    registry = ModelRegistry(
        {wire.name: AdapterEntry(name=wire.name, type=wire.type_name, config=config)},
        {model: ModelEntry(id=model, adapter=wire.name, wire_name=named)},
        client_names={client_model: [model]},
    )
    with _port() as listener:
        async with server, Engine(models=registry, trace=False) as engine:
            config_of_server = uvicorn.Config(
                gateway(engine, keyless=True), lifespan="off", log_level="warning", timeout_graceful_shutdown=1
            )
            running = _Quiet(config_of_server)
            task = asyncio.create_task(running.serve(sockets=[listener]))
            try:
                await running.ready.wait()
                yield f"http://127.0.0.1:{listener.getsockname()[1]}", provider
            finally:
                running.should_exit = True
                await task
