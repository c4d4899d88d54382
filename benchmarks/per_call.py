"""One call that isn't streamed: through an adapter alone, and through the whole engine with its store."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from adapters import AdapterConfig, CanonicalRequest, create_adapter
from adapters.contract import ProviderAdapter
from engine import Engine, Session
from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

from .hosts import BodyCatcher, RawClients, engine_on, history, tools
from .table import Row, against, in_turns, run

MESSAGES = 20
TOOLS = 5
GATE = 1.6
ALONE_GATE = 1.25


async def raw(clients: RawClients, path: str, body: object, calls: int) -> None:
    for _ in range(calls):
        await clients.post(path, body)


async def adapter_alone(adapter: ProviderAdapter, request: CanonicalRequest, calls: int) -> None:
    for index in range(calls):
        await adapter.complete(msgspec.structs.replace(request, request_id=f"req_{index}"))


async def through_engine(engine: Engine, session: Session, calls: int) -> None:
    past = engine._runtime.sessions.states[session.id].messages
    for _ in range(calls):
        del past[MESSAGES - 1 :]  # each call sends as many messages as any other
        await session.send("And now?", max_output_tokens=1000)
    await engine.flush()


async def _of_protocol(
    url: str, engine: Engine, protocol: str, kind: str, calls: int, repetitions: int
) -> list[Row]:
    request = CanonicalRequest(
        request_id="req",
        model="bench",
        messages=tuple(history(MESSAGES)),
        max_output_tokens=1000,
        tools=tuple(tool.definition for tool in tools(TOOLS)),
        system_prompt="You are brief.",
    )
    catcher = BodyCatcher()
    config = AdapterConfig(api_key="bench", base_url=url)
    adapter = create_adapter(kind, config, name=protocol, transport=catcher)
    await adapter.complete(request)
    body: Any = msgspec.json.decode(catcher.body)
    alone = create_adapter(kind, config, name=protocol)
    session = engine.session(f"{protocol}:bench", system_prompt="You are brief.", tools=tools(TOOLS))
    engine._runtime.sessions.states[session.id].messages.extend(history(MESSAGES - 1))
    async with RawClients(url) as clients:
        spent = await in_turns(
            {
                "floor": partial(raw, clients, catcher.path, body, calls),
                "adapter": partial(adapter_alone, alone, request, calls),
                "engine": partial(through_engine, engine, session, calls),
            },
            repetitions=repetitions,
        )
    await adapter.close()
    await alone.close()
    floor = spent["floor"] / calls
    return [
        against(f"{protocol}: adapter alone", spent["adapter"] / calls, floor, gate=ALONE_GATE),
        against(f"{protocol}: whole engine, store on", spent["engine"] / calls, floor, gate=GATE),
    ]


async def _rows(quick: bool) -> list[Row]:
    found: list[Row] = []
    with reply_server(50) as url:
        async with engine_on(url) as engine:
            for protocol, kind in PROTOCOLS.items():
                calls, repetitions = (5, 1) if quick else (60, 9)
                found += await _of_protocol(url, engine, protocol, kind, calls, repetitions)
    return found


def rows(quick: bool) -> list[Row]:
    return run(_rows(quick))
