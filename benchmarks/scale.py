"""A thousand concurrent streams through the whole engine, each with five readers, and a check that nothing is left
afterwards.

    python -m benchmarks.scale STREAMS DELTAS ROUNDS [--traced] [--no-floor]

It runs in a process of its own, so that other subjects do not affect it, and prints its results as JSON. A round
makes STREAMS sessions, streams one turn in each concurrently, and drops them. With `--traced`, memory is traced,
which makes everything several times slower.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from callboard.bus import StreamReset, TextDelta
from callboard.engine import Engine, StreamAccumulator
from tests.support.reply_server import ROOT, Chat, reply_server, words

from .floors import RawClients
from .hosts import engine_on, settle
from .table import Row, against, cpu_of

READERS = 5
BODY = {
    "model": "bench",
    "messages": [{"role": "user", "content": "Go on."}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def text_of(engine: Engine, stream_id: str) -> str:
    """The text that a reader gets. A reader that is behind at the end gets a snapshot, because the engine keeps no
    ended streams here.
    """
    pieces: list[str] = []
    async for event in engine.attach(stream_id):
        if isinstance(event, TextDelta):
            pieces.append(event.text)
        elif isinstance(event, StreamReset):
            so_far = StreamAccumulator()
            so_far.process(event)
            pieces = [so_far.response().text]
    return "".join(pieces)


async def one_stream(engine: Engine, expected: str) -> bool:
    """Whether the stream completed, and the message and each reader have the complete text."""
    session = engine.session("chat:bench")
    async with session.stream("Go on.", max_output_tokens=1000) as turn:
        texts = await asyncio.gather(*(text_of(engine, turn.stream_id) for _ in range(READERS)))
        message = await turn.message()
    return all(text == expected for text in texts) and message.text == expected


async def engine_round(engine: Engine, streams: int, deltas: int) -> None:
    expected = "".join(words(deltas))
    good = await asyncio.gather(*(one_stream(engine, expected) for _ in range(streams)))
    if not all(good):
        raise RuntimeError(f"{good.count(False)} of {streams} streams were not complete")
    await engine.flush()


async def raw_round(clients: RawClients, streams: int) -> None:
    await asyncio.gather(*(clients.stream(Chat.path, BODY, index) for index in range(streams)))


def resident_bytes() -> int:
    """The resident memory of this process; 0 without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files() -> dict[str, int]:
    """The number of open file descriptors, and of sockets among them."""
    links = []
    for number in os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []:
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the descriptor of the listing itself
    return {"files": len(links), "sockets": sum(link.startswith("socket:") for link in links)}


async def present() -> dict[str, int]:
    await settle()
    return {"tasks": len(asyncio.all_tasks()), "threads": threading.active_count(), **open_files()}


def memory_now() -> dict[str, int]:
    gc.collect()
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    return {"objects": len(gc.get_objects()), "traced": traced, "resident": resident_bytes()}


async def measure(streams: int, deltas: int, rounds: int, *, with_floor: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": []}
    headers = {"x-together": str(streams)}
    with reply_server(deltas) as url:
        # starts the two threads that the process keeps: the store's, and the one of anyio's pool
        async with engine_on(url) as first:
            await first.session("chat:bench").send("Go on.")
        before = await present()
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(engine_on(url, headers, calls=streams, keep_streams=False))
            clients = await stack.enter_async_context(RawClients(url, headers))
            for _ in range(rounds):
                floor = await cpu_of(partial(raw_round, clients, streams)) if with_floor else 0.0
                begun = time.perf_counter()
                spent = await cpu_of(partial(engine_round, engine, streams, deltas))
                wall = time.perf_counter() - begun
                await settle()
                statistics = engine.streams.statistics()
                found["rounds"].append(
                    {
                        "cpu": spent,
                        "floor": floor,
                        "wall": wall,
                        **memory_now(),
                        "logs": statistics.open + statistics.kept,
                    }
                )
        after = await present()
    found["left"] = {name: after[name] - before[name] for name in before}
    return found


def in_own_process(streams: int, deltas: int, rounds: int, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", str(streams), str(deltas), str(rounds), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it ended without a word"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _left(found: dict[str, Any]) -> Row:
    leftovers = {name: count for name, count in found["left"].items() if count}
    return Row("left after the engine was closed", str(leftovers or "nothing"), gate="nothing", met=not leftovers)


def rows(quick: bool) -> list[Row]:
    streams, deltas, rounds = (50, 50, 1) if quick else (1000, 500, 2)
    found = in_own_process(streams, deltas, rounds)
    best = min(found["rounds"], key=lambda one: one["cpu"])
    floor = min(one["floor"] for one in found["rounds"])
    events = streams * deltas
    what = f"{streams:,} streams of {deltas} deltas, {READERS} readers each"
    return [
        against(f"{what}, per delta", best["cpu"] / events, floor / events),
        Row("  wall, of one round", f"{best['wall']:.1f} s"),
        Row("  streams complete, all readers' texts equal", "all", gate="all", met=True),
        _left(found),
    ]


def plateau(quick: bool) -> list[Row]:
    """Compare the third identical round with the second."""
    streams, traced_streams, deltas = (20, 20, 50) if quick else (1000, 200, 500)
    plain = in_own_process(streams, deltas, 3, "--no-floor")["rounds"]
    traced = in_own_process(traced_streams, deltas, 3, "--no-floor", "--traced")["rounds"]
    found = []
    for name, rounds, key, limit in (
        (f"live objects, {streams} streams", plain, "objects", 1.02),
        (f"traced bytes, {traced_streams} streams", traced, "traced", 1.02),
        (f"resident bytes, {streams} streams", plain, "resident", 1.10),
    ):
        second, third = rounds[1][key], rounds[2][key]
        ratio = third / max(second, 1)
        unit = 1 if key == "objects" else 2**20
        shown = [
            f"{value / unit:,.{0 if unit == 1 else 2}f}{'' if unit == 1 else ' MiB'}" for value in (third, second)
        ]
        title = f"{name}, third round against second"
        found.append(Row(title, shown[0], shown[1], ratio, f"≤ {limit:g}×", ratio <= limit))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("streams", type=int)
    parser.add_argument("deltas", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--no-floor", action="store_true")
    arguments = parser.parse_args()
    if arguments.traced:
        tracemalloc.start()
    work = measure(arguments.streams, arguments.deltas, arguments.rounds, with_floor=not arguments.no_floor)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
