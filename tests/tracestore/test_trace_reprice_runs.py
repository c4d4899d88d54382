"""The book of repricings: killed and resumed, undone, and what it says of each."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from callboard import PriceTable, StoreError, TraceStore
from callboard.tracestore.sql import repricing

from .contract.test_repricing import FIRST, SECOND, fill
from .trace_making import Maker

pytestmark = pytest.mark.anyio

DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.tracestore.contract.test_repricing import SECOND
from callboard.tracestore import TraceStore
from callboard.tracestore.sql import repricing

repricing.CHUNK = 3

def die(done, last):
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with TraceStore(Path(sys.argv[1])) as store:
        await store.reprice(SECOND, by_session=sys.argv[3] == "sessions", progress=die)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("dies_at", "over", "by"), [(3, None, "sessions"), (9, FIRST, "sessions"), (6, FIRST, "all")]
)
async def test_a_killed_repricing_is_resumed_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, over: PriceTable | None, by: str
) -> None:
    """After kill -9 nothing has changed; resumed, rows and report are those of one that was never interrupted."""
    for name in ("whole.db", "killed.db"):
        async with TraceStore(tmp_path / name) as store:
            await fill(store, Maker(), 10)
            if over is not None:
                await store.reprice(over)
    command = [sys.executable, "-c", DIES, str(tmp_path / "killed.db"), str(dies_at), by]
    died = await anyio.run_process(command, check=False)
    assert died.returncode == -9
    monkeypatch.setattr(repricing, "CHUNK", 3)
    async with TraceStore(tmp_path / "whole.db") as whole, TraceStore(tmp_path / "killed.db") as killed:
        run, *_ = await killed.reprice_runs()
        assert (run.state, run.done, run.last_call) == ("interrupted", dies_at, 11)
        assert await killed.current_version() == (over and over.version)
        seen: list[tuple[int, int]] = []
        resumed = await killed.resume_reprice(progress=lambda *at: seen.append(at))
        assert seen[0] == (dies_at + 3 if dies_at + 3 < 11 else 11, 11), "what was done is not done again"
        assert resumed == await whole.reprice(SECOND, by_session=by == "sessions")
        assert await killed.calls() == await whole.calls()
        with pytest.raises(StoreError, match="no interrupted repricing"):
            await killed.resume_reprice()
