"""The CPU time of a call without streaming: by hand, with raw httpx, with an adapter alone, and with whole engines
without and with a store.

The request has 20 alternating messages of a user and a model, then a question, and 5 tools.

The calls are made one after the other, so Callboard's figures include the event loop's wait for each reply. Raw
httpx takes so long to send that its reply has already arrived. Other rows have several concurrent callers, as
hosts have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from callboard.adapters import AdapterConfig, CanonicalRequest, Message, create_adapter
from callboard.adapters.contract import ProviderAdapter
from callboard.engine import Engine, Session
from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

from .floors import Clients, HandClients, RawClients
from .hosts import engine_on, history, tools
from .table import Row, against, in_turns, run
from .ways import body_of

MESSAGES = 20
TOOLS = 5
QUESTION = "And now?"
AT_ONCE = 4
ALONE_GATE, GATE_WITHOUT_STORE, GATE = 0.4, 0.75, 1.0
"""The maximum CPU time relative to raw httpx: of an adapter alone, and of whole engines without and with a
store.
"""


async def by_client(clients: Clients, path: str, body: object, calls: int) -> None:
    for _ in range(calls):
        await clients.post(path, body)


async def adapter_alone(adapter: ProviderAdapter, request: CanonicalRequest, calls: int) -> None:
    for index in range(calls):
        await adapter.complete(msgspec.structs.replace(request, request_id=f"req_{index}"))


async def through_engine(engine: Engine, session: Session, calls: int) -> None:
    past = engine._runtime.sessions.states[session.id].messages
    for _ in range(calls):
        del past[MESSAGES:]  # so that each call sends the same number of messages
        await session.send(QUESTION, max_output_tokens=1000)
    await engine.flush()


async def at_once(callers: Sequence[Callable[[], Awaitable[object]]]) -> None:
    await asyncio.gather(*(caller() for caller in callers))


def long_session(engine: Engine, protocol: str) -> Session:
    """A session with the messages before each call's question."""
    session = engine.session(f"{protocol}:bench", system_prompt="You are brief.", tools=tools(TOOLS))
    engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES))
    return session


def long_request() -> CanonicalRequest:
    """The request of such a session."""
    return CanonicalRequest(
        request_id="req",
        model="bench",
        messages=(*history(MESSAGES), Message.user(QUESTION)),
        max_output_tokens=1000,
        tools=tuple(tool.definition for tool in tools(TOOLS)),
        system_prompt="You are brief.",
    )


async def of_protocol(url: str, protocol: str, calls: int, repetitions: int) -> list[Row]:
    request, kind = long_request(), PROTOCOLS[protocol]
    path, body = body_of(kind, url, request, stream=False)
    async with AsyncExitStack() as stack:
        hand = await stack.enter_async_context(HandClients(url))
        raw = await stack.enter_async_context(RawClients(url))
        adapter = create_adapter(kind, AdapterConfig(api_key="bench", base_url=url), name=protocol)
        stack.push_async_callback(adapter.close)
        without = await stack.enter_async_context(engine_on(url, trace=False))
        engine = await stack.enter_async_context(engine_on(url))
        share = max(calls // AT_ONCE, 1)

        def callers(host: Engine) -> list[Callable[[], Awaitable[object]]]:
            sessions = [long_session(host, protocol) for _ in range(AT_ONCE)]
            return [partial(through_engine, host, session, share) for session in sessions]

        spent = await in_turns(
            {
                "hand": partial(by_client, hand, path, body, calls),
                "raw": partial(by_client, raw, path, body, calls),
                "adapter": partial(adapter_alone, adapter, request, calls),
                "without": partial(through_engine, without, long_session(without, protocol), calls),
                "engine": partial(through_engine, engine, long_session(engine, protocol), calls),
            },
            repetitions=repetitions,
        )
        spent_at_once = await in_turns(
            {
                "raw": partial(at_once, [partial(by_client, raw, path, body, share)] * AT_ONCE),
                "without": partial(at_once, callers(without)),
                "engine": partial(at_once, callers(engine)),
            },
            repetitions=repetitions,
        )
    each = {name: seconds / calls for name, seconds in spent.items()}
    crowd = {name: seconds / (share * AT_ONCE) for name, seconds in spent_at_once.items()}
    crowded = f"{AT_ONCE} callers at once"
    return [
        against(f"{protocol}: raw httpx, against by hand", each["raw"], each["hand"]),
        against(f"{protocol}: adapter alone", each["adapter"], each["raw"], gate=ALONE_GATE),
        against(f"{protocol}: whole engine, no store", each["without"], each["raw"], gate=GATE_WITHOUT_STORE),
        against(f"{protocol}: whole engine, store on", each["engine"], each["raw"], gate=GATE),
        against(f"{protocol}: whole engine, no store, {crowded}", crowd["without"], crowd["raw"]),
        against(f"{protocol}: whole engine, store on, {crowded}", crowd["engine"], crowd["raw"]),
    ]


async def _rows(quick: bool) -> list[Row]:
    calls, repetitions = (5, 1) if quick else (60, 15)
    with reply_server(50) as url:
        return [row for name in PROTOCOLS for row in await of_protocol(url, name, calls, repetitions)]


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
