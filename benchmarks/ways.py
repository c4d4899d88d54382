"""The ways to read the same streamed reply: by hand, with raw httpx, with an adapter alone, and with whole
engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import anyio
import msgspec

from callboard.adapters import AdapterConfig, CanonicalRequest, Message, create_adapter
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.engine import Engine
from tests.support.reply_models import PROTOCOLS

from .floors import Clients, HandClients, RawClients
from .hosts import engine_on

QUESTION = "Say lorem ipsum."
LIMIT = 100
CALLS = 10_000
"""The maximum number of concurrent calls of an engine; more than any subject makes."""


class Way(Protocol):
    """One way to read streams, with its counts."""

    @property
    def events(self) -> int:
        """The number of events read so far."""

    @property
    def opened(self) -> int:
        """The number of streams begun so far."""

    async def stream(self, index: int) -> None:
        """Read one stream to its end.

        Args:
            index: Its number among the concurrent streams.
        """


def body_of(kind: str, url: str, request: CanonicalRequest, *, stream: bool) -> tuple[str, Any]:
    """The path and the body that an adapter of that kind would send."""
    adapter = create_adapter(kind, AdapterConfig(api_key="key", base_url=url), name="bench")
    assert isinstance(adapter, HttpAdapter)
    call = adapter.write_request(request, stream=stream)
    return call.path, msgspec.json.decode(call.body)


class Alone:
    """A client without Callboard, which sends the adapter's body."""

    def __init__(self, clients: Clients, path: str, body: object) -> None:
        self._clients = clients
        self._ask = partial(clients.stream, path, body)

    @property
    def events(self) -> int:
        return self._clients.events

    @property
    def opened(self) -> int:
        return self._clients.opened

    async def stream(self, index: int) -> None:
        await self._ask(index)


class Counted:
    """The counters of Callboard's ways."""

    def __init__(self) -> None:
        self.events = 0
        self.opened = 0

    async def read(self, events: AsyncIterator[object]) -> None:
        opened = False
        async for _ in events:
            self.events += 1
            if not opened:
                opened = True
                self.opened += 1


class ByAdapter(Counted):
    """An adapter without an engine."""

    def __init__(self, adapter: ProviderAdapter) -> None:
        super().__init__()
        self._adapter = adapter
        self._numbers = 0

    async def stream(self, index: int) -> None:
        self._numbers += 1
        await self.read(self._adapter.stream(question(f"req_{self._numbers}")))


class ByEngine(Counted):
    """A whole engine, with a number of readers of each stream."""

    def __init__(self, engine: Engine, model: str, readers: int) -> None:
        super().__init__()
        self._engine = engine
        self._model = model
        self._readers = readers

    async def stream(self, index: int) -> None:
        async with self._engine.session(self._model).stream(QUESTION, max_output_tokens=LIMIT) as turn:
            if self._readers == 1:
                await self.read(aiter(turn))
                return
            async with anyio.create_task_group() as group:
                for _ in range(self._readers):
                    group.start_soon(self.read, aiter(self._engine.attach(turn.stream_id)))


def question(request_id: str) -> CanonicalRequest:
    """The request of all ways."""
    return CanonicalRequest(
        request_id=request_id, messages=(Message.user(QUESTION),), model="bench", max_output_tokens=LIMIT
    )


@asynccontextmanager
async def way(name: str, url: str, protocol: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Way]:
    """One of hand, raw, adapter, engine, engine without a store, and engine with five readers.

    Args:
        name: The name of the way.
        url: The server's.
        protocol: One of `reply_models.PROTOCOLS`.
        headers: Additional headers of each request.
    """
    kind = PROTOCOLS[protocol]
    if name in ("hand", "raw"):
        async with (HandClients if name == "hand" else RawClients)(url, headers) as clients:
            yield Alone(clients, *body_of(kind, url, question("req"), stream=True))
    elif name == "adapter":
        config = AdapterConfig(api_key="key", base_url=url, extra_headers=dict(headers or {}))
        adapter = create_adapter(kind, config, name=protocol)
        yield ByAdapter(adapter)
        await adapter.close()
    else:
        async with engine_on(url, headers, calls=CALLS, trace=name != "engine, no store") as engine:
            yield ByEngine(engine, f"{protocol}:bench", 5 if name == "engine, 5 readers" else 1)


async def streams(way: Way, count: int, at_once: int) -> None:
    """Read `count` streams, with `at_once` of them concurrent."""
    remaining = iter(range(count))

    async def worker(index: int) -> None:
        for _ in remaining:
            await way.stream(index)

    await asyncio.gather(*(worker(index) for index in range(at_once)))
