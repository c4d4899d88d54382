"""What a delta and a call cost, as ratios to raw httpx with msgspec decoding, all in one run, in CPU time.

    python -m benchmarks.per_delta [--quick] [--wire NAME] [--only burst|paced|calls|crowd]

Three ways to the same replies of a local server (`benchmarks.canned_server`, a process of its own): raw httpx and
msgspec; an adapter alone; a whole engine with its store and one or five readers. Profiles: *burst*, the server
writes whole replies; *paced*, one delta to a write, 50 a second, 100 streams at once; *calls*, not streamed, with
20 messages and 5 tools. Each figure is the median over interleaved rounds; gates are those of the design.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import anyio
import httpx
import msgspec

from adapters import AdapterConfig, CanonicalRequest, Message, ToolDefinition, create_adapter
from adapters.contract import ProviderAdapter
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool
from tracestore import PriceTable

PATHS = {"anthropic": "/v1/messages", "openai": "/v1/responses", "openai_compatible": "/v1/chat/completions"}
MODEL = "s:canned"

Run = Callable[[], Awaitable[object]]
"""One call, or one stream read to its end."""

QUESTION = (Message.user("Say lorem ipsum."),)
HISTORY = tuple(
    Message.user(f"Question {n}: what is the state of file number {n}?")
    if n % 2 == 0
    else Message.assistant(f"Answer {n}: file number {n} has been read, and holds nothing of interest.")
    for n in range(19)
)
"""All but the last of the 20 messages."""

TOOLS = tuple(
    ToolDefinition(
        f"read_file_{n}",
        "Read a file and return its text.",
        {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "Where the file is."}},
            "required": ["path"],
        },
    )
    for n in range(5)
)


@contextlib.contextmanager
def server(deltas: int, per_second: float | None = None) -> Iterator[str]:
    """The base URL of a canned server."""
    command = [sys.executable, "-m", "benchmarks.canned_server", str(deltas)]
    command += [] if per_second is None else [str(per_second)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


def request(
    number: int, wire: str, messages: tuple[Message, ...], tools: tuple[ToolDefinition, ...]
) -> CanonicalRequest:
    return CanonicalRequest(
        request_id=f"req_{number}", messages=messages, model=MODEL, max_output_tokens=100, tools=tools
    )


class Clients:
    """The three ways. bodies: what the adapter would send, for the raw client to send the same."""

    def __init__(self, url: str, wire: str) -> None:
        self.url = url
        self.wire = wire
        self.config = AdapterConfig(api_key="key", base_url=url)
        self._numbers = 0

    def body(self, adapter: ProviderAdapter, *, stream: bool, heavy: bool) -> bytes:
        write = adapter.write_request  # type: ignore[attr-defined]  # all three are HttpAdapters
        return write(self.request(heavy=heavy), stream=stream).body  # type: ignore[no-any-return]

    def request(self, *, heavy: bool) -> CanonicalRequest:
        self._numbers += 1
        return request(
            self._numbers, self.wire, (*HISTORY, *QUESTION) if heavy else QUESTION, TOOLS if heavy else ()
        )

    @contextlib.asynccontextmanager
    async def raw(self, *, stream: bool, heavy: bool = False, clients: int = 1) -> AsyncIterator[Run]:
        adapter = create_adapter(self.wire, self.config, name="s")
        body = self.body(adapter, stream=stream, heavy=heavy)
        decode = msgspec.json.Decoder().decode
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        pool = [httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) for _ in range(clients)]
        url, headers = self.url + PATHS[self.wire], {"content-type": "application/json"}
        turn = 0

        async def call() -> None:
            nonlocal turn
            turn += 1
            client = pool[turn % clients]
            decode((await client.post(url, content=body, headers=headers)).content)

        async def streamed() -> None:
            nonlocal turn
            turn += 1
            rest = b""
            async with pool[turn % clients].stream("POST", url, content=body, headers=headers) as reply:
                async for chunk in reply.aiter_raw():
                    *events, rest = (rest + chunk).split(b"\n\n")
                    for event in events:
                        data = event[event.find(b"data: ") + 6 :]
                        if data != b"[DONE]":
                            decode(data)

        yield streamed if stream else call
        for client in pool:
            await client.aclose()
        await adapter.close()

    @contextlib.asynccontextmanager
    async def adapter(self, *, stream: bool, heavy: bool = False) -> AsyncIterator[Run]:
        adapter = create_adapter(self.wire, self.config, name="s")

        async def call() -> None:
            await adapter.complete(self.request(heavy=heavy))

        async def streamed() -> None:
            async for _ in adapter.stream(self.request(heavy=heavy)):
                pass

        yield streamed if stream else call
        await adapter.close()

    @contextlib.asynccontextmanager
    async def engine(self, *, stream: bool, heavy: bool = False, readers: int = 1) -> AsyncIterator[Run]:
        entry = AdapterEntry(name="s", type=self.wire, config=self.config, max_concurrency=2000)
        models = ModelRegistry({"s": entry}, {MODEL: ModelEntry(id=MODEL, adapter="s", wire_name="canned")})
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "trace.db"
            async with Engine(models=models, store=store, prices=PriceTable.default()) as engine:
                idle: list[Session] = []

                @contextlib.contextmanager
                def a_session() -> Iterator[Session]:
                    """One that is free, with the history that it had at first."""
                    tools = [Tool(tool) for tool in TOOLS] if heavy else []
                    session = idle.pop() if idle else engine.session(MODEL, tools=tools)
                    session._state.messages = list(HISTORY) if heavy else []
                    yield session
                    idle.append(session)

                async def call() -> None:
                    with a_session() as session:
                        await session.send("And now?", max_output_tokens=100)

                async def streamed() -> None:
                    with a_session() as session:
                        await read_turn(session)

                async def read_turn(session: Session) -> None:
                    async with session.stream("Say lorem ipsum.", max_output_tokens=100) as turn:
                        if readers == 1:
                            async for _ in turn:
                                pass
                            return
                        async with anyio.create_task_group() as group:
                            for _ in range(readers):
                                group.start_soon(read_all, engine, turn.stream_id)

                yield streamed if stream else call


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


def show(profile: str, spent: Mapping[str, float], per: int, unit: str, gates: Mapping[str, float]) -> None:
    floor = next(iter(spent.values()))
    for name, seconds in spent.items():
        gate = gates.get(name)
        verdict = "" if gate is None else f"  gate {gate:g}x {'ok' if seconds <= gate * floor else 'MISSED'}"
        print(f"{profile:18} {name:18} {seconds / per * 1e6:9.1f} µs/{unit}  {seconds / floor:5.2f}x{verdict}")


async def burst(wire: str, quick: bool) -> None:
    deltas = 500
    with server(deltas) as url:
        clients = Clients(url, wire)
        spent = await compare(
            {
                "raw": clients.raw(stream=True),
                "adapter": clients.adapter(stream=True),
                "engine, 1 reader": clients.engine(stream=True),
                "engine, 5 readers": clients.engine(stream=True, readers=5),
            },
            count=20 if quick else 80,
            at_once=4,
            rounds=5 if quick else 9,
        )
    show(f"burst {wire}"[:18], spent, deltas, "delta", {"adapter": 2.0, "engine, 1 reader": 3.0})


async def paced(wire: str, quick: bool) -> None:
    deltas = 150 if quick else 500
    with server(deltas, 50) as url:
        clients = Clients(url, wire)
        spent = await compare(
            {
                "raw": clients.raw(stream=True, clients=7),
                "adapter": clients.adapter(stream=True),
                "engine, 1 reader": clients.engine(stream=True),
                "engine, 5 readers": clients.engine(stream=True, readers=5),
            },
            count=100,
            at_once=100,
            rounds=3,
        )
    gates = {"adapter": 1.3, "engine, 1 reader": 1.6, "engine, 5 readers": 2.0}
    show(f"paced {wire}"[:18], spent, deltas, "delta", gates)


async def calls(wire: str, quick: bool) -> None:
    with server(1) as url:
        clients = Clients(url, wire)
        spent = await compare(
            {
                "raw": clients.raw(stream=False, heavy=True),
                "adapter": clients.adapter(stream=False, heavy=True),
                "engine": clients.engine(stream=False, heavy=True),
            },
            count=100 if quick else 300,
            at_once=1,
            rounds=5 if quick else 9,
        )
        show(f"calls {wire}"[:18], spent, 1, "call", {"engine": 1.6})


async def crowd(wire: str, quick: bool) -> None:
    with server(1) as url:
        clients = Clients(url, wire)
        async with clients.engine(stream=False, heavy=True) as run:
            alone: list[float] = []
            crowded: list[float] = []
            await measure(run, 1000, 1000)
            for _ in range(3):
                alone.append(await measure(run, 300, 1) / 300)
                crowded.append(await measure(run, 2000, 1000) / 2000)
    spent = {"1 at once": statistics.median(alone), "1,000 at once": statistics.median(crowded)}
    show(f"crowd {wire}"[:18], spent, 1, "call", {"1,000 at once": 2.0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--wire", choices=sorted(PATHS), action="append", help="which protocols; default: all")
    parts = {"burst": burst, "paced": paced, "calls": calls, "crowd": crowd}
    parser.add_argument("--only", choices=list(parts), action="append", help="which profiles; default: all")
    options = parser.parse_args()
    for wire in options.wire or sorted(PATHS):
        for part in options.only or list(parts):
            asyncio.run(parts[part](wire, options.quick))


if __name__ == "__main__":
    main()
