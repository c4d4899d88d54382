"""A gateway on 127.0.0.1 with scripted providers, also on 127.0.0.1: real sockets on both sides."""

from __future__ import annotations

import asyncio
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


class Head(NamedTuple):
    """A request without its body."""

    target: str
    headers: Mapping[str, str]
    """Names in lower case."""


def head_of(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").strip().split("\r\n")
    fields = (line.partition(":") for line in lines)
    return Head(first.split(" ")[1], {name.lower(): value.strip() for name, _, value in fields})


class ScriptedProvider:
    """A server of scripted replies, the next one for each request."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Scripted] = []
        self.repeats = False
        """Whether the last reply is repeated."""
        self.asked: list[Any] = []
        """The bodies of the requests."""
        self.heads: list[Head] = []
        """The requests without their bodies."""
        self.left = asyncio.Event()
        """Set when a client disconnected before the end of its reply."""

    def says(self, *replies: Scripted) -> None:
        self.replies += replies

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(asked := head_of(head))
                length = int(asked.headers.get("content-length", 0))
                self.asked.append(msgspec.json.decode(await reader.readexactly(length) or b"null"))
                reply = self.replies[0] if self.repeats and len(self.replies) == 1 else self.replies.pop(0)
                if not await self._answer(reply, reader, writer):
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
            await reader.read()  # until the client disconnects
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
        yield  # run the test


@asynccontextmanager
async def serving(
    wire: Wire, client_model: str, named: str | None = None
) -> AsyncIterator[tuple[str, ScriptedProvider]]:
    """Yield the URL of a gateway in front of one provider, and the provider.

    Args:
        wire: The provider's protocol.
        client_model: The client's name for its model.
        named: The provider's name of the model. None for a chat model.
    """
    async with serving_models(wire, {client_model: named or MODELS[wire.name]}) as found:
        yield found


@asynccontextmanager
async def serving_models(
    wire: Wire, models: Mapping[str, str], *, adapter: str | None = None
) -> AsyncIterator[tuple[str, ScriptedProvider]]:
    """Serve several models.

    Args:
        wire: The provider's protocol.
        models: The provider's names of the models by the client's names.
        adapter: The name of the adapter. None for the name of its protocol.
    """
    adapter = adapter or wire.name
    provider = ScriptedProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = AdapterConfig(api_key="k", base_url=provider.url, max_retries=0, options=dict(wire.options))
    registry = ModelRegistry(
        {adapter: AdapterEntry(name=adapter, type=wire.type_name, config=config)},
        {
            f"{adapter}:{named}": ModelEntry(id=f"{adapter}:{named}", adapter=adapter, wire_name=named)
            for named in models.values()
        },
        client_names={name: [f"{adapter}:{named}"] for name, named in models.items()},
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
