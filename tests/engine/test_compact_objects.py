"""How Python stores the objects of a call."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from callboard.adapters import AdapterConfig
from callboard.adapters.http.call import HttpCall
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import Clock
from callboard.engine import Engine
from callboard.engine.calls.call import Call
from callboard.engine.conversation.step import Step
from callboard.engine.conversation.turn import Turn
from callboard.engine.sessions.open import SessionState

from ..support.engines import entry, serving
from ..support.fake_http import FakeReply, FakeTransport
from ..support.scripted import adapter_type
from ..support.virtual_time import runs_on
from ..support.wires.chat import ChatWire, chunk

anyio_backend = runs_on("asyncio")

KINDS = {Turn, Step, Call, HttpCall, SessionState}


def _calls_objects() -> list[Any]:
    return [each for each in gc.get_objects() if type(each) in KINDS]


@pytest.mark.parametrize("streamed", [False, True])
async def test_objects_of_a_usual_call_have_at_most_thirty_attributes(streamed: bool) -> None:
    """Python stores more attributes in a dictionary for each object, which made a call 2 % slower."""
    wire = ChatWire()
    whole = json.dumps(wire.body("Blue.", 0, "end")).encode()
    body = wire.stream(chunk(content="Blue."), chunk("stop")) if streamed else whole
    objects: list[Any] = []
    of_other_tests = _calls_objects()  # held, so that no object of this test gets the id of an earlier one
    earlier = set(map(id, of_other_tests))

    class Transport(FakeTransport):
        async def send(self, request: HttpRequest) -> HttpReply:
            objects.extend(each for each in _calls_objects() if id(each) not in earlier)
            return await super().send(request)

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> OpenAICompatibleAdapter:
        return OpenAICompatibleAdapter(config, name=name, clock=clock, transport=Transport(FakeReply(body)))

    models = serving(c=entry("c", adapter_type(made), AdapterConfig(api_key="k", base_url="https://x.test")))
    async with Engine(models=models, trace=False) as engine:
        session = engine.session("c:m")
        await (session.stream("?").message() if streamed else session.send("?"))
    assert {type(each) for each in objects} == KINDS
    assert {f"{type(each).__name__}: {len(vars(each))}" for each in objects if len(vars(each)) > 30} == set()
