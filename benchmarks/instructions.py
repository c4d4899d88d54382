"""The instructions of a call, counted by callgrind: exact to a few percent on a busy machine, too.

    python -m benchmarks.instructions [chat messages responses gemini]

It needs valgrind with its headers, and a C compiler. Each figure is a process: two rounds of calls prepare it, and
the third is counted. Valgrind runs a program about fifty times slower, so work that is done once a second would
count in every few calls. Therefore the check of prices is off, the event loop's clock is slower, and one commit
has all events of a round.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from callboard.engine import Engine, Tool
from callboard.engine.current_prices import Pricing
from callboard.tracestore import WriterOptions
from callboard.tracestore.writing import writer
from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

from . import per_call
from .floors import RawClients
from .hosts import engine_on, tools
from .per_call import QUESTION, by_client, long_request, long_session, through_engine
from .ways import body_of

CALLS = 32
SLOWER = 1000
_MARKS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""

Work = Callable[[], Awaitable[object]]
WAYS = {
    "raw": "raw httpx and msgspec",
    "engine": "the engine without a store",
    "store": "the engine with its store",
    "sessions": "a new session for each call, with its store",
}
FIGURES = (("raw", 20), ("engine", 20), ("store", 20), ("raw", 0), ("sessions", 0), ("raw", 200), ("engine", 200))
"""The ways and the numbers of messages before the question."""


async def _counted(work: Work, marks: ctypes.CDLL) -> None:
    for _ in range(2):
        await work()
    gc.collect()
    gc.disable()
    marks.start()
    await work()
    marks.stop()


async def _new_sessions(engine: Engine, protocol: str, given: list[Tool]) -> None:
    for _ in range(CALLS):
        session = engine.session(f"{protocol}:bench", system_prompt="You are brief.", tools=given)
        await session.send(QUESTION, max_output_tokens=1000)
    await engine.flush()


async def _measure(way: str, protocol: str, url: str, marks: ctypes.CDLL) -> None:
    began, now = time.monotonic(), time.monotonic
    vars(asyncio.get_running_loop())["time"] = lambda: began + (now() - began) / SLOWER
    if way == "raw":
        path, body = body_of(PROTOCOLS[protocol], url, long_request(), stream=False)
        async with RawClients(url) as raw:
            await _counted(partial(by_client, raw, path, body, CALLS), marks)
        return
    async with engine_on(url, trace=way != "engine") as engine:
        if way == "sessions":
            await _counted(partial(_new_sessions, engine, protocol, tools(per_call.TOOLS)), marks)
        else:
            await _counted(partial(through_engine, engine, long_session(engine, protocol), CALLS), marks)


def _child(way: str, protocol: str, messages: int, url: str, marks: str) -> None:
    per_call.MESSAGES = messages
    options = partial(WriterOptions, batch_seconds=1000.0, batch_events=100_000, memory_events=100_000)
    vars(writer)["WriterOptions"] = options
    Pricing.notice = lambda self: None
    asyncio.run(_measure(way, protocol, url, ctypes.CDLL(marks)))


def thousands(way: str, protocol: str, messages: int, url: str, folder: Path) -> int:
    """Thousands of instructions of a call, without those of the server."""
    found = folder / f"{protocol}-{way}-{messages}"
    valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={found}"]
    child = [sys.executable, "-m", __spec__.name, "--child", way, protocol, str(messages), url]
    subprocess.run([*valgrind, *child, str(folder / "marks.so")], check=True, stderr=subprocess.DEVNULL)
    totals = [line for line in Path(f"{found}.1").read_text().splitlines() if line.startswith("totals:")]
    return int(totals[-1].split()[1]) // CALLS // 1000


def main(protocols: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as name, reply_server(50) as url:
        folder = Path(name)
        (folder / "marks.c").write_text(_MARKS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "marks.so", "marks.c"], cwd=folder, check=True)
        for protocol in protocols or PROTOCOLS:
            floor = 0
            for way, messages in FIGURES:
                count = thousands(way, protocol, messages, url, folder)
                floor = count if way == "raw" else floor
                ratio = f"{count / floor:.3f}" if way != "raw" else ""
                print(f"{protocol:10} {WAYS[way]:45} {messages:3} messages {count:6,} {ratio}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _, _, kind, wire, number, address, library = sys.argv
        _child(kind, wire, int(number), address, library)
    else:
        main(sys.argv[1:])
