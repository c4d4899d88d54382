"""The CPU time of a call when many are in progress: the server answers only when all requests have arrived.

The second part measures 5,000 turns at the same time with the engine's default limits: all must start within a
second of CPU time, and all must complete.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from callboard.engine import Engine, Session
from tests.support.reply_server import Chat, reply_server

from .floors import RawClients
from .hosts import engine_on, history
from .table import Row, in_turns, micros, run

GATE = 2.0
BODY = {"model": "bench", "messages": [{"role": "user", "content": message.text} for message in history(1)]}


async def calls_at_once(engine: Engine, sessions: Sequence[Session], rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.gather(*(session.send("And now?", max_output_tokens=1000) for session in sessions))
        for session in sessions:
            engine._runtime.sessions.states[session.id].messages.clear()
    await engine.flush()


async def raw_at_once(clients: RawClients, at_once: int, rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.gather(*(clients.post(Chat.path, BODY, index) for index in range(at_once)))


async def _rows(quick: bool) -> list[Row]:
    levels = (1, 10) if quick else (1, 100, 1000)
    calls = 20 if quick else 1000
    work = {}
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(50))
        for level in levels:
            headers = {"x-together": str(level)}
            engine = await stack.enter_async_context(engine_on(url, headers, calls=level))
            sessions = [engine.session("chat:bench") for _ in range(level)]
            clients = await stack.enter_async_context(RawClients(url, headers))
            work[f"raw {level}"] = partial(raw_at_once, clients, level, calls // level)
            work[f"engine {level}"] = partial(calls_at_once, engine, sessions, calls // level)
        spent = {
            name: value / calls for name, value in (await in_turns(work, repetitions=1 if quick else 2)).items()
        }
    found = []
    for level in levels:
        here, floor = spent[f"engine {level}"], spent[f"raw {level}"]
        found.append(Row(f"{level:,} at once, engine against raw", micros(here), micros(floor), here / floor))
    for level in levels[1:]:
        here, one = spent[f"engine {level}"], spent["engine 1"]
        name = f"{level:,} at once, engine against the engine at 1"
        found.append(Row(name, micros(here), micros(one), here / one, f"≤ {GATE:g}×", here / one <= GATE))
    return found


async def one_of_the_rush(engine: Engine, streamed: bool) -> str:
    """Return how a turn of a new session ended."""
    session = engine.session("chat:bench")
    try:
        if streamed:
            async with session.stream("Go on.") as stream:
                message = await stream.message()
        else:
            message = await session.send("Go on.")
    except Exception as error:
        return type(error).__name__
    return "complete" if message.text else "empty"


async def rush(turns: int, *, streamed: bool) -> list[Row]:
    """Start this number of sessions at the same time, on an engine with the default limits."""
    with reply_server(50) as url:
        async with engine_on(url) as engine:
            await one_of_the_rush(engine, streamed)
            began, spent = time.perf_counter(), time.process_time()
            tasks = [asyncio.ensure_future(one_of_the_rush(engine, streamed)) for _ in range(turns)]
            await asyncio.sleep(0)
            started = time.process_time() - spent
            ended = Counter(await asyncio.gather(*tasks))
            took = time.perf_counter() - began
            await engine.flush()
            assert engine.store is not None
            counted = await engine.store.sql("SELECT count(*) FROM calls WHERE status = 'completed'")
    (stored,) = counted.rows[0]
    how = ", ".join(f"{count:,} {word}" for word, count in ended.items())
    met = ended["complete"] == turns and stored == turns + 1
    return [
        Row(f"{turns:,} {'streams' if streamed else 'turns'} in a rush", how, gate="all, and stored", met=met),
        Row("  until all have asked, CPU", f"{started:.2f} s", gate="≤ 1 s", met=started <= 1.0),
        Row("  until all have ended, wall", f"{took:.1f} s"),
    ]


async def _all_rows(quick: bool) -> list[Row]:
    turns = 100 if quick else 5_000
    return [*await _rows(quick), *await rush(turns, streamed=False), *await rush(turns, streamed=True)]


def rows(quick: bool) -> list[Row]:
    return run(_all_rows(quick))
