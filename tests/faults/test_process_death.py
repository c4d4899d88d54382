"""Processes that end, or are killed, while calls run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.virtual_time import runs_on
from tracestore import TraceStore
from tracestore.sqlite.runs import PROCESS_LOST

pytestmark = pytest.mark.anyio

CHECKOUT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, sys
from pathlib import Path
from callboard import Engine
from tests.support.engines import registry
from tests.support.scripted import Say

async def talk(session, endless):
    while True:
        async with session.stream("Hi") as turn:
            async for _ in turn:
                pass
        if not endless:
            return

async def main():
    says = [Say("a", "b", "c", pause=lambda: asyncio.sleep(0.001)) for _ in range(5000)]
    engine = Engine(models=registry(*says), store=Path(sys.argv[1]))
    globals()["left"] = engine   # referenced, never closed
    await talk(engine.session("s:m"), False)
    globals()["talking"] = [asyncio.create_task(talk(engine.session("s:m"), True)) for _ in range(4)]
    await asyncio.sleep(0.02)
    await engine.flush()
    print("talking", flush=True)
    match sys.argv[2]:
        case "hang":
            await asyncio.Event().wait()
        case "open":
            return
        case "raise":
            raise SystemExit(3)
        case "thread":
            import threading
            globals()["thread"] = threading.Timer(0.2, print, ("the thread has ended",))
            globals()["thread"].start()

asyncio.run(main())
"""

anyio_backend = runs_on("asyncio")


def program(path: Path, ending: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), ending],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )


async def seen(path: Path) -> tuple[Counter[str], Counter[tuple[str, int]], Counter[tuple[str, int]]]:
    """Statuses of the calls, and how often each call and each event stands in the file."""
    async with TraceStore(path) as store:  # as the next process opens it: for writing
        calls = await store.calls(limit=None)
        events = await store.events(limit=None)
    return (
        Counter(row.status for row in calls),
        Counter((row.request_id, row.attempt) for row in calls),
        Counter((envelope.run_id, envelope.seq) for envelope in events),
    )


@pytest.mark.parametrize(("ending", "code"), [("open", 0), ("raise", 3), ("thread", 0)])
async def test_the_interpreter_ends_while_calls_run(tmp_path: Path, ending: str, code: int) -> None:
    """A program that returns, or exits, with its engine open and calls under way ends, and says nothing."""
    process = program(tmp_path / "trace.db", ending)
    said, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, "")
    assert said.startswith("talking")
    statuses, calls, _ = await seen(tmp_path / "trace.db")
    assert statuses["completed"] >= 1
    assert set(calls.values()) == {1}


async def test_kill_9_in_a_loop_doubles_nothing(tmp_path: Path) -> None:
    """Killed again and again during calls, on one file: it opens each time, and no event or call stands twice."""
    chance = random.Random(5)
    completed = 0
    for run in range(1, 5):
        process = program(tmp_path / "trace.db", "hang")
        assert process.stdout is not None
        assert "talking\n" in process.stdout  # what is logged about the run before comes first
        time.sleep(chance.uniform(0, 0.2))  # noqa: ASYNC251 (nothing else runs here)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        statuses, calls, events = await seen(tmp_path / "trace.db")
        assert set(calls.values()) == {1}
        assert set(events.values()) == {1}
        assert len({name for name, _ in events}) == run
        assert statuses["completed"] > completed, "what an earlier process flushed is still there, and more"
        completed = statuses["completed"]
        assert set(statuses) <= {"completed", "started", "failed"}
        assert await left_open(tmp_path / "trace.db") <= {1}, "each start closes what the one before it left"


async def left_open(path: Path) -> set[int]:
    """How many runs before the last one the calls without an end come from, counted from 1 for the last."""
    async with TraceStore.open_readonly(path) as store:
        calls = await store.calls(limit=None)
        order = list(dict.fromkeys(envelope.run_id for envelope in await store.events(limit=None)))
    assert {row.error_class for row in calls if row.status == "failed"} <= {PROCESS_LOST}
    return {len(order) - order.index(row.run_id) for row in calls if row.status == "started"}
