"""The memory of an open stream and of an idle session, and whether memory stays constant over repeated rounds.

    python -m benchmarks.memory STREAMS SESSIONS [--traced]

Like `benchmarks.scale`, it measures in a process of its own and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tracemalloc
from contextlib import AsyncExitStack

from tests.support.reply_server import ROOT, reply_server

from .hosts import engine_on, release, settle
from .scale import memory_now, plateau
from .table import Row

MOST_RESIDENT = {"session": 3_000, "stream": 50_000}
"""The maximum resident memory in bytes."""


async def measure(streams: int, sessions: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with reply_server(100) as url:
        async with engine_on(url, {"x-hold": "1"}, calls=streams) as engine:
            async with AsyncExitStack() as stack:  # one stream first, which creates the shared objects
                turn = await stack.enter_async_context(engine.session("chat:bench").stream("Go on."))
                await anext(aiter(turn.text_stream))
                await release(url)
                await turn.message()
            before = memory_now()
            idle = [engine.session("chat:bench", system_prompt="You are brief.") for _ in range(sessions)]
            found["session"] = _each(before, memory_now(), sessions)
            idle.clear()
            before = memory_now()
            async with AsyncExitStack() as stack:
                turns = [engine.session("chat:bench").stream("Go on.") for _ in range(streams)]
                await asyncio.gather(*(stack.enter_async_context(turn) for turn in turns))
                await asyncio.gather(*(anext(aiter(turn.text_stream)) for turn in turns))
                await settle()
                found["stream"] = _each(before, memory_now(), streams)
                await release(url)
                await asyncio.gather(*(turn.message() for turn in turns))
    return found


def _each(before: dict[str, int], after: dict[str, int], count: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / count for name in before}


def rows(quick: bool) -> list[Row]:
    streams, sessions = (20, 100) if quick else (2_000, 10_000)
    plain, traced = in_own_process(streams, sessions), in_own_process(streams, sessions, "--traced")
    shown = []
    for name, title in (
        ("session", f"an idle session, of {sessions:,}"),
        ("stream", f"an open stream with its connection and ten deltas, of {streams:,} at once"),
    ):
        resident, limit = plain[name]["resident"], MOST_RESIDENT[name]
        gate = f"≤ {limit / 1000:g} KB"
        shown.append(Row(f"{title}, resident", f"{resident / 1000:.1f} KB", gate=gate, met=resident <= limit))
        shown.append(Row("  traced", f"{traced[name]['traced'] / 1000:.1f} KB"))
        shown.append(Row("  live objects", f"{plain[name]['objects']:.0f}"))
    return [*shown, *plateau(quick)]


def in_own_process(streams: int, sessions: int, *options: str) -> dict[str, dict[str, float]]:
    """Measure in new processes. Tracing takes memory of its own, so resident memory is measured without it."""
    command = [sys.executable, "-m", "benchmarks.memory", str(streams), str(sessions), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if "--traced" in sys.argv:
        tracemalloc.start()
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
