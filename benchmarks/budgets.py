"""The CPU time that budgets add to a call: the reservation before it is sent, and the settlement at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from callboard.engine import Budget, Engine, Session
from tests.support.reply_server import reply_server

from .hosts import engine_on, history, tools
from .per_call import MESSAGES, TOOLS, through_engine
from .table import Row, against, in_turns, run

GATE = 1.05
PLENTY = 10**15

BUDGETS: dict[str, Sequence[Budget]] = {
    "no budget": (),
    "3 scopes": (
        Budget(max_cost_usd=1e6, unpriced="allow"),
        Budget(max_tokens=PLENTY, per="session", window="day"),
        Budget(max_tokens=PLENTY, per="tag:tenant", window=timedelta(hours=1)),
    ),
    "1,000 scopes": (
        Budget(max_tokens=PLENTY),
        *(Budget(max_tokens=PLENTY, per="tag:tenant", of=f"t{number}") for number in range(999)),
    ),
}


def _session(engine: Engine) -> Session:
    session = engine.session(
        "chat:bench", system_prompt="You are brief.", tools=tools(TOOLS), tags={"tenant": "t5"}
    )
    engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES))
    return session


async def _rows(quick: bool) -> list[Row]:
    calls, repetitions = (5, 1) if quick else (60, 15)
    with reply_server(50) as url:
        async with AsyncExitStack() as stack:
            contestants = {}
            for name, budgets in BUDGETS.items():
                engine = await stack.enter_async_context(engine_on(url, budgets=budgets))
                contestants[name] = partial(through_engine, engine, _session(engine), calls)
            spent = await in_turns(contestants, repetitions=repetitions)
    floor = spent.pop("no budget") / calls
    return [against(f"a call with {name}", seconds / calls, floor, gate=GATE) for name, seconds in spent.items()]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
