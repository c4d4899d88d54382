"""A process with a whole engine that makes many calls until it is killed.

    python -m labs.kills.victim URL FILE SEED calls|full

Its calls use the reply server at URL: concurrent sessions over all protocols, streamed and not, some stopped
early, with captured content. It prints ``up`` after the first reply, and a line of JSON for each answer. It also
prints one after each `flush()`: the run, the last seq before the flush, and the number of messages of each
session.

With `full`, SQLite sometimes refuses new pages as on a full disk, and sometimes accepts them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sys
from pathlib import Path

import msgspec

from callboard.adapters import StopReason
from callboard.bus import CallboardError, StoreError
from callboard.engine import Engine, Session
from callboard.tracestore import PriceTable, WriterOptions
from labs.faults.checks import stacks
from tests.support.reply_models import PROTOCOLS, registry

from .round import UP_SECONDS, Answered

SESSIONS = 16
TURNS = 6
SPILLS_SOON = WriterOptions(first_retry=0.01, longest_retry=0.1, spill_after=2, batch_seconds=0.02)
"""A victim lives for half a second, so the default of seven seconds before a spill would be too long."""


async def live(url: str, path: Path, seed: str, kind: str) -> None:
    """Make calls until the process is killed."""
    chance = random.Random(seed)
    async with Engine(
        models=registry(url), store=path, capture_content=True, prices=PriceTable.default()
    ) as engine:
        talked: dict[str, Session] = {}
        replied = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(_talk(engine, random.Random(f"{seed}/{number}"), talked, replied))
            if kind == "full":
                group.create_task(_fill(engine, chance))
            telling = group.create_task(_tell_stacks())
            await replied.wait()
            telling.cancel()
            print("up", flush=True)
            await _flush(engine, chance, talked)


async def _tell_stacks() -> None:
    """Print the stacks of all tasks to stderr if the process hangs. If the parent process is gone, exit."""
    parent = os.getppid()
    while True:
        await asyncio.sleep(UP_SECONDS / 2)
        if os.getppid() != parent:
            os._exit(1)  # it would never reply nor be killed: the server is gone
        sys.stderr.write(stacks())
        sys.stderr.flush()


async def _talk(engine: Engine, chance: random.Random, talked: dict[str, Session], replied: asyncio.Event) -> None:
    while True:
        session = engine.session(f"{chance.choice(list(PROTOCOLS))}:bench")
        talked[session.id] = session
        for turn in range(TURNS):
            with contextlib.suppress(CallboardError):
                if chance.random() < 0.5:
                    await session.send(f"Turn {turn}")
                else:
                    await _stream(session, f"Turn {turn}", leaves_after=chance.choice((3, 1000)))
                _tell_answer(session)
                replied.set()
        talked.pop(session.id)


def _tell_answer(session: Session) -> None:
    """Report that an answer was received, if it was complete."""
    metadata = session.messages[-1].metadata if session.messages else None
    if metadata is not None and metadata.stop_reason is not StopReason.CANCELLED:
        print(
            msgspec.json.encode(Answered(metadata.request_id or "", session.id, len(session.messages))).decode(),
            flush=True,
        )


async def _stream(session: Session, text: str, leaves_after: int) -> None:
    async with session.stream(text) as turn:
        count = 0
        async for _ in turn.text_stream:
            count += 1
            if count == leaves_after:
                return


async def _flush(engine: Engine, chance: random.Random, talked: dict[str, Session]) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.0, 0.03))
        report = {
            "run": engine.bus.run_id,
            "seq": engine.bus.last_seq,
            "sessions": {name: len(session.messages) for name, session in talked.items()},
        }
        try:
            await engine.flush()
        except StoreError:
            continue  # an incomplete answer promises nothing
        print(msgspec.json.encode(report).decode(), flush=True)


async def _fill(engine: Engine, chance: random.Random) -> None:
    store, hosted = engine.store, engine._host.life
    assert store is not None
    assert hosted is not None
    assert hosted.writer is not None
    hosted.writer._options = SPILLS_SOON
    database = store._database
    while True:
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        ((pages,),) = await database.read("PRAGMA page_count")
        await database.read(f"PRAGMA max_page_count = {pages}")
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        await database.read("PRAGMA max_page_count = 1000000000")


if __name__ == "__main__":
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
