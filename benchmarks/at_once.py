"""What a call costs when many are under way at once: the server answers none before all have come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from engine import Engine, Session
from tests.support.reply_server import Chat, reply_server

from .hosts import RawClients, engine_on, history
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


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
