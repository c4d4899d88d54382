"""The CPU time of the plain functions, compared with a session that sends the same messages."""

from __future__ import annotations

from functools import partial

from callboard.adapters import Message
from callboard.engine import Engine, Session, Tool
from tests.support.reply_server import reply_server

from .hosts import engine_on, history, tools
from .per_call import MESSAGES, TOOLS
from .table import Row, against, in_turns, run

GATE = 1.10
"""The maximum CPU time of `generate` relative to `session.send`."""

NEW = "And now?"
MODEL = "chat:bench"


def _emptied(engine: Engine, session: Session) -> None:
    """Empty the session, so that each call sends the same number of messages."""
    del engine._runtime.sessions.states[session.id].messages[MESSAGES:]


async def by_session(engine: Engine, session: Session, calls: int) -> None:
    for _ in range(calls):
        _emptied(engine, session)
        await session.send(NEW, max_output_tokens=1000)
    await engine.flush()


async def by_generate(engine: Engine, messages: list[Message], function_tools: list[Tool], calls: int) -> None:
    for _ in range(calls):
        await engine.generate(
            MODEL, messages=messages, system_prompt="You are brief.", tools=function_tools, max_output_tokens=1000
        )
    await engine.flush()


async def by_turn_stream(engine: Engine, session: Session, calls: int) -> None:
    for _ in range(calls):
        _emptied(engine, session)
        async with session.stream(NEW, max_output_tokens=1000) as turn:
            async for _ in turn:
                pass
    await engine.flush()


async def by_stream(engine: Engine, messages: list[Message], function_tools: list[Tool], calls: int) -> None:
    for _ in range(calls):
        result = engine.stream(
            MODEL, messages=messages, system_prompt="You are brief.", tools=function_tools, max_output_tokens=1000
        )
        async for _ in result:
            pass
    await engine.flush()


async def _rows(quick: bool) -> list[Row]:
    calls, repetitions = (5, 1) if quick else (60, 9)
    messages, function_tools = [*history(MESSAGES), Message.user(NEW)], tools(TOOLS)
    with reply_server(50) as url:
        async with engine_on(url) as engine:
            session = engine.session(MODEL, system_prompt="You are brief.", tools=function_tools)
            engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES))
            spent = await in_turns(
                {
                    "send": partial(by_session, engine, session, calls),
                    "generate": partial(by_generate, engine, messages, function_tools, calls),
                    "turn": partial(by_turn_stream, engine, session, calls),
                    "stream": partial(by_stream, engine, messages, function_tools, calls),
                },
                repetitions=repetitions,
            )
    return [
        against("generate over session.send", spent["generate"] / calls, spent["send"] / calls, gate=GATE),
        against("stream, 50 deltas, over session.stream", spent["stream"] / calls, spent["turn"] / calls),
    ]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
