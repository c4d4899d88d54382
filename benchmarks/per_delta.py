"""What a delta costs, as ratios to raw httpx with msgspec decoding, all in one run, in CPU time.

Three ways to the same replies of the reply server, which is a process of its own: raw httpx and msgspec; an
adapter alone; a whole engine with its store and one or five readers. Profiles: *burst*, the server writes whole
replies; *paced*, one delta to a write, 50 a second, 100 streams at once. Each figure is the median of interleaved
rounds; gates are those of the design.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import httpx
import msgspec

from adapters import AdapterConfig, CanonicalRequest, Message, create_adapter
from adapters.http.adapter import HttpAdapter
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server
from tracestore import PriceTable

from .table import Row, against, run

WIRES = sorted(PROTOCOLS.values())
MODEL = "s:bench"

Run = Callable[[], Awaitable[object]]
"""One stream, read to its end."""

QUESTION = "Say lorem ipsum."


class Clients:
    """The three ways to one stream. The raw client sends the very body that the adapter would, where it would."""

    def __init__(self, url: str, wire: str) -> None:
        self.url = url
        self.wire = wire
        self.config = AdapterConfig(api_key="key", base_url=url)
        self._numbers = 0

    def request(self) -> CanonicalRequest:
        self._numbers += 1
        return CanonicalRequest(
            request_id=f"req_{self._numbers}",
            messages=(Message.user(QUESTION),),
            model=MODEL,
            max_output_tokens=100,
        )

    @contextlib.asynccontextmanager
    async def raw(self, *, clients: int = 1) -> AsyncIterator[Run]:
        adapter = create_adapter(self.wire, self.config, name="s")
        assert isinstance(adapter, HttpAdapter)
        call = adapter.write_request(self.request(), stream=True)
        frame_end = b"\r\n\r\n" if self.wire == "gemini" else b"\n\n"
        decode = msgspec.json.Decoder().decode
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        pool = [httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) for _ in range(clients)]
        url, headers = self.url + call.path, {"content-type": "application/json"}
        turn = 0

        async def streamed() -> None:
            nonlocal turn
            turn += 1
            rest = b""
            async with pool[turn % clients].stream("POST", url, content=call.body, headers=headers) as reply:
                async for chunk in reply.aiter_raw():
                    *events, rest = (rest + chunk).split(frame_end)
                    for event in events:
                        data = event[event.find(b"data: ") + 6 :]
                        if data != b"[DONE]":
                            decode(data)

        yield streamed
        for client in pool:
            await client.aclose()
        await adapter.close()

    @contextlib.asynccontextmanager
    async def adapter(self) -> AsyncIterator[Run]:
        adapter = create_adapter(self.wire, self.config, name="s")

        async def streamed() -> None:
            async for _ in adapter.stream(self.request()):
                pass

        yield streamed
        await adapter.close()

    @contextlib.asynccontextmanager
    async def engine(self, *, readers: int = 1) -> AsyncIterator[Run]:
        entry = AdapterEntry(name="s", type=self.wire, config=self.config, max_concurrency=2000)
        models = ModelRegistry({"s": entry}, {MODEL: ModelEntry(id=MODEL, adapter="s", wire_name="bench")})
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "trace.db"
            async with Engine(models=models, store=store, prices=PriceTable.default()) as engine:

                async def streamed() -> None:
                    async with engine.session(MODEL).stream(QUESTION, max_output_tokens=100) as turn:
                        if readers == 1:
                            async for _ in turn:
                                pass
                            return
                        async with anyio.create_task_group() as group:
                            for _ in range(readers):
                                group.start_soon(read_all, engine, turn.stream_id)

                yield streamed


async def read_all(engine: Engine, stream_id: str) -> None:
    async for _ in engine.attach(stream_id):
        pass


async def measure(run: Run, count: int, at_once: int) -> float:
    """CPU seconds of `count` runs, so many at once."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await run()

    gc.collect()
    started = time.process_time()
    async with anyio.create_task_group() as group:
        for _ in range(min(at_once, count)):
            group.start_soon(worker)
    return time.process_time() - started


async def compare(
    ways: Mapping[str, contextlib.AbstractAsyncContextManager[Run]], *, count: int, at_once: int, rounds: int
) -> dict[str, float]:
    """The median CPU seconds of a run, for each way; the rounds of all ways alternate, after one to warm up."""
    async with contextlib.AsyncExitStack() as stack:
        runs = {name: await stack.enter_async_context(way) for name, way in ways.items()}
        spent: dict[str, list[float]] = {name: [] for name in runs}
        for round_ in range(rounds + 1):
            for name, run in runs.items():
                seconds = await measure(run, max(count // (4 if round_ == 0 else 1), 1), at_once)
                if round_ > 0:
                    spent[name].append(seconds / count)
    return {name: statistics.median(each) for name, each in spent.items()}


def to_rows(profile: str, spent: Mapping[str, float], deltas: int, gates: Mapping[str, float]) -> list[Row]:
    """A row for each way but the first, which is the floor."""
    (_, floor), *others = spent.items()
    return [
        against(f"{profile}: {name}", seconds / deltas, floor / deltas, gate=gates.get(name))
        for name, seconds in others
    ]


async def burst(wire: str, quick: bool) -> list[Row]:
    deltas = 500
    with reply_server(deltas) as url:
        clients = Clients(url, wire)
        spent = await compare(
            {
                "raw": clients.raw(),
                "adapter": clients.adapter(),
                "engine, 1 reader": clients.engine(),
                "engine, 5 readers": clients.engine(readers=5),
            },
            count=20 if quick else 80,
            at_once=4,
            rounds=5 if quick else 9,
        )
    return to_rows(f"burst, {wire}", spent, deltas, {"adapter": 2.0, "engine, 1 reader": 3.0})


async def paced(wire: str, quick: bool) -> list[Row]:
    deltas = 150 if quick else 500
    with reply_server(deltas, 50) as url:
        clients = Clients(url, wire)
        spent = await compare(
            {
                "raw": clients.raw(clients=7),
                "adapter": clients.adapter(),
                "engine, 1 reader": clients.engine(),
                "engine, 5 readers": clients.engine(readers=5),
            },
            count=100,
            at_once=100,
            rounds=3,
        )
    gates = {"adapter": 1.3, "engine, 1 reader": 1.6, "engine, 5 readers": 2.0}
    return to_rows(f"paced, {wire}", spent, deltas, gates)


async def _rows(quick: bool) -> list[Row]:
    found = [row for wire in WIRES for row in await burst(wire, quick)]
    for wire in ["anthropic"] if quick else WIRES:
        found += await paced(wire, quick)
    return found


def rows(quick: bool) -> list[Row]:
    """Both profiles; quickly, the paced one for one protocol only."""
    return run(_rows(quick))
