"""Processes that end, or are killed, while calls run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.programs import started
from tests.support.virtual_time import runs_on
from callboard.tracestore import TraceStore

pytestmark = pytest.mark.anyio


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


async def seen(path: Path) -> tuple[Counter[str], Counter[tuple[str, int]]]:
    """Statuses of the calls, and how often each call stands in the file."""
    async with TraceStore(path) as store:  # as the next process opens it: for writing
        calls = await store.calls(limit=None)
    return Counter(row.status for row in calls), Counter((row.request_id, row.attempt) for row in calls)


@pytest.mark.parametrize(("ending", "code"), [("open", 0), ("raise", 3), ("thread", 0)])
async def test_the_interpreter_ends_while_calls_run(tmp_path: Path, ending: str, code: int) -> None:
    """A program that returns, or exits, with its engine open and calls under way ends, and says nothing."""
    process = started(PROGRAM, tmp_path / "trace.db", ending)
    said, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (code, "")
    assert said.startswith("talking")
    statuses, calls = await seen(tmp_path / "trace.db")
    assert statuses["completed"] >= 1
    assert set(calls.values()) == {1}
