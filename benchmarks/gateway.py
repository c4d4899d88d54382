"""The CPU time that the gateway adds to the engine for each request and each delta, and the time to the first
token.

The clients run in a process of their own with hand-written HTTP. The floor is the same engine with the same calls
made directly, with one reader for each stream. With "the same wire", the gateway passes the provider's bytes
through. With "another wire", it translates between the two wires.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from callboard.adapters import CanonicalRequest, Message
from callboard.engine import Engine
from callboard.engine.gateway import gateway
from tests.support.reply_server import reply_server

from .floors import HandClients
from .hosts import engine_on, history
from .table import Row, against, in_turns, run

DELTAS = 500
AT_ONCE = 16
MESSAGES = 20
REQUEST_GATE, DELTA_GATE = 2.5, 2.0
"""The maximum CPU time of a request and of a delta through the gateway, relative to the engine alone."""

PATHS = {"the same wire": "/v1/chat/completions", "another wire": "/v1/messages"}


def body(*, stream: bool) -> dict[str, object]:
    """A request that both wires accept. The server behind the gateway has the Chat Completions API."""
    messages = [{"role": str(message.role), "content": message.text} for message in history(MESSAGES)]
    messages.append({"role": "user", "content": "Go on."})
    return {"model": "chat:bench", "max_tokens": 1000, "stream": stream, "messages": messages}


def canonical() -> CanonicalRequest:
    messages = (*history(MESSAGES), Message.user("Go on."))
    return CanonicalRequest(request_id="", model="chat:bench", messages=messages, max_output_tokens=1000)


# --- The clients, in a process of their own ---


async def _serve_orders(url: str) -> None:
    """Do the work in each line of stdin: path, number of requests, number of concurrent requests, streamed or
    not.
    """
    loop = asyncio.get_running_loop()
    async with HandClients(url) as clients:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            path, count, at_once, streamed = json.loads(line)
            asking = partial(clients.stream if streamed else clients.post, path, body(stream=streamed))
            print(json.dumps(await timed(asking, count, at_once)), flush=True)


async def timed(ask: Callable[[], Awaitable[object]], count: int, at_once: int) -> list[float]:
    """Make `count` requests with `at_once` of them concurrent. Returns the seconds of each."""
    seconds: list[float] = []
    waiting = iter(range(count))

    async def one() -> None:
        for _ in waiting:
            start = time.perf_counter()
            await ask()
            seconds.append(time.perf_counter() - start)

    await asyncio.gather(*(one() for _ in range(at_once)))
    return seconds


class Clients:
    """The process of the clients."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, path: str, count: int, at_once: int, *, streamed: bool) -> list[float]:
        """Send requests, and wait for all replies. Returns the seconds of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([path, count, at_once, streamed]).encode() + b"\n")
        seconds: list[float] = json.loads(await self._process.stdout.readline())
        return seconds


@contextlib.asynccontextmanager
async def clients_of(url: str) -> AsyncIterator[Clients]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.gateway",
        url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield Clients(process)
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    """Serve the gateway on a real server. Yields its URL."""
    import uvicorn

    from callboard.engine.gateway.server import server_options

    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(gateway(engine, keyless=True), **(server_options() | {"lifespan": "off"}))
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


# --- The engine alone ---


async def direct(engine: Engine, count: int, at_once: int, *, streamed: bool) -> list[float]:
    async def ask() -> None:
        if not streamed:
            await engine.complete(canonical())
            return
        async with engine.stream(canonical()) as stream:
            while await stream.take():
                pass

    return await timed(ask, count, at_once)


async def _of(streamed: bool, quick: bool, engine: Engine, clients: Clients) -> list[Row]:
    count, repetitions = (8, 1) if quick else (48 if streamed else 400, 5)
    contestants: dict[str, Callable[[], Awaitable[object]]] = {
        "direct": partial(direct, engine, count, AT_ONCE, streamed=streamed)
    }
    for name, path in PATHS.items():
        contestants[name] = partial(clients.ask, path, count, AT_ONCE, streamed=streamed)
    spent = await in_turns(contestants, repetitions=repetitions)
    pieces = count * (DELTAS if streamed else 1)
    what = f"a delta, {AT_ONCE} streams in bursts" if streamed else f"a request, {MESSAGES} messages, not streamed"
    gate = DELTA_GATE if streamed else REQUEST_GATE
    return [
        against(f"{what}: {name}", spent[name] / pieces, spent["direct"] / pieces, gate=gate) for name in PATHS
    ]


async def _first_token(quick: bool, engine: Engine, clients: Clients) -> list[Row]:
    """The time of a short request alone, compared with the same call made directly."""
    count = 10 if quick else 200
    rows = []
    for name, path in PATHS.items():
        bare, through = [], []
        for _ in range(2):  # in both orders, so that drifting speed affects both alike
            bare += await direct(engine, count, 1, streamed=False)
            through += await clients.ask(path, count, 1, streamed=False)
        added = statistics.median(through) - statistics.median(bare)
        rows.append(
            Row(
                f"the time that it adds to a call, median: {name}",
                f"{added * 1e3:.2f} ms",
                f"{statistics.median(bare) * 1e3:.2f} ms",
                gate="≤ 1 ms",
                met=added <= 1e-3,
            )
        )
    return rows


# --- Open streams ---


async def _open_streams(quick: bool) -> list[Row]:
    """The memory of open streams that wait for more, compared with the same streams without the gateway.

    Each is measured in a process of its own, because a process keeps memory that it once used.
    """
    streams = 50 if quick else 2000
    used: dict[str, float] = {}
    for name in ("direct", "gateway"):
        words = (sys.executable, "-m", "benchmarks.gateway", name, str(streams))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        used[name] = float(output) / streams
    return [
        Row(
            f"{streams:,} open streams, memory of each",
            f"{used['gateway'] / 1024:.0f} KiB",
            f"{used['direct'] / 1024:.0f} KiB",
            used["gateway"] / used["direct"],
        )
    ]


async def _hold_open(name: str, streams: int) -> None:
    """Open streams, print the memory that they take in bytes, and exit."""
    with reply_server(DELTAS) as url:
        async with (
            engine_on(url, {"x-hold": "1"}, calls=streams, keep_streams=False) as engine,
            served(engine) as server,
            clients_of(server) as clients,
        ):
            await asyncio.sleep(0.1)
            before = _resident()
            task = asyncio.ensure_future(
                direct(engine, streams, streams, streamed=True)
                if name == "direct"
                else clients.ask(PATHS["another wire"], streams, streams, streamed=True)
            )
            for _ in range(600):
                await asyncio.sleep(0.05)
                if len(engine._runtime.in_flight) == streams:
                    break
            await asyncio.sleep(2.0)  # so that each has received its first chunk
            print(_resident() - before, flush=True)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _resident() -> int:
    """The bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _rows(quick: bool) -> list[Row]:
    with reply_server(DELTAS) as url:
        async with engine_on(url) as engine, served(engine) as server, clients_of(server) as clients:
            return [
                *await _of(False, quick, engine, clients),
                *await _of(True, quick, engine, clients),
                *await _first_token(quick, engine, clients),
                *await _open_streams(quick),
            ]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))


if __name__ == "__main__":
    if sys.argv[1] in ("direct", "gateway"):
        asyncio.run(_hold_open(sys.argv[1], int(sys.argv[2])))
    else:
        asyncio.run(_serve_orders(sys.argv[1]))
