"""Processes that end at once after an answer: what was handed over is there when the next one starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callboard import Engine, TraceStore
from tests.support.engines import registry
from tests.support.programs import ended
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

CHECKOUT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from callboard import Engine, MessageComplete
from tests.support.engines import registry
from tests.support.scripted import Say

ENDINGS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
}

async def main(path, how, ending):
    models = registry(*[Say("a", "b")] * 3)
    engine = await Engine(models=models, store=Path(path), capture_content=True).__aenter__()
    session = engine.session("s:m", session_id="ses_x")
    for number in range(3):
        if how == "send":
            await session.send(f"Turn {number}")
            continue
        async with session.stream(f"Turn {number}") as turn:
            async for event in turn:
                if number == 2 and how == "message" and isinstance(event, MessageComplete):
                    ENDINGS[ending]()
    ENDINGS[ending]()
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""

anyio_backend = runs_on("asyncio")


@pytest.mark.parametrize("ending", ["kill", "exit", "terminate"])
@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_process_that_ends_after_an_answer_loses_nothing_of_it(
    tmp_path: Path, how: str, ending: str
) -> None:
    """All calls are completed in the file, and the session goes on with all messages."""
    path = tmp_path / "trace.db"
    ended(PROGRAM, path, how, ending)
    async with Engine(models=registry(), store=path, capture_content=True) as engine:
        await (await engine._host.living()).settle()
        session = await engine.resume("ses_x")
        assert [message.text for message in session.messages] == ["Turn 0", "ab", "Turn 1", "ab", "Turn 2", "ab"]
    assert sorted(os.listdir(tmp_path)) == ["trace.db", "trace.db.lock"]
    await only_completed(path, 3)


async def test_the_end_of_a_streamed_message_is_shown_when_its_call_is_safe(tmp_path: Path) -> None:
    """Whoever sees a message's last event, and dies, leaves a completed call."""
    path = tmp_path / "trace.db"
    ended(PROGRAM, path, "message", "kill")
    async with Engine(models=registry(), store=path) as engine:
        await (await engine._host.living()).settle()
    await only_completed(path, 3)


async def only_completed(path: Path, count: int) -> None:
    """Whether there are so many calls, all of them completed; and each run's events are unbroken."""
    async with TraceStore.open_readonly(path) as store:
        assert [row.status for row in await store.calls()] == ["completed"] * count
        events = await store.events(limit=None)
    for run in {envelope.run_id for envelope in events}:
        seqs = [envelope.seq for envelope in events if envelope.run_id == run]
        assert seqs == list(range(1, len(seqs) + 1))
