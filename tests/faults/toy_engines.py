"""Engines with a real HttpAdapter on a scripted network, and the checks at their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from callboard.adapters import AdapterConfig, RetryPolicy, ToolDefinition
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus import Envelope, LlmCallCompleted, LlmCallFailed, LlmCallStarted, Lossless, Subscription
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.engine import Engine, Tool
from tests.support.engines import entry, serving
from tests.support.fake_http import (
    CALL,
    CALL_OVER,
    HALF,
    HELLO,
    MORE,
    REST,
    TEXT,
    USAGE,
    WANTS_TOOL,
    FakeReply,
    FakeTransport,
    ToyAdapter,
    failing,
    sse,
    whole,
)
from tests.support.present import present

TOOL_REPLY = (TEXT, MORE, CALL, HALF, REST, CALL_OVER, USAGE, WANTS_TOOL)
OVERLOADED = b'{"error": {"type": "overloaded_error"}}'


class Network(FakeTransport):
    """A network that replies with an overload, then with a tool call, then always with a greeting."""

    async def send(self, request: HttpRequest) -> HttpReply:
        streamed = msgspec.json.decode(request.body)["stream"]
        events = TOOL_REPLY if len(self.requests) == 1 else HELLO
        if not self.requests:
            self.replies.append(failing(529, OVERLOADED))
        elif streamed:
            self.replies.append(FakeReply(*(sse(event) for event in events)))
        else:
            self.replies.append(whole(*events))
        return await super().send(request)


class ToyOnNetwork(ToyAdapter):
    """An adapter whose every instance has its own network. Each restart makes an instance."""

    made: list[ToyOnNetwork]

    def __init__(self, config: AdapterConfig, *, name: str = "toy", clock: Clock = SYSTEM_CLOCK) -> None:
        self.network = Network()
        super().__init__(config, name=name, transport=self.network, clock=clock)
        self.made.append(self)


async def read_file(arguments: object) -> str:
    await asyncio.sleep(0)
    return "what is in the file"


TOOLS = [Tool(ToolDefinition("read_file"), read_file)]


def toy_engine() -> tuple[Engine, Subscription, list[ToyOnNetwork]]:
    """Return an engine without a store, a subscription to all events, and the list of adapters that the engine
    makes.
    """
    ToyOnNetwork.made = made = []
    config = AdapterConfig(retry=RetryPolicy(base_delay=0.0))
    engine = Engine(models=serving(toy=entry("toy", f"{__name__}:ToyOnNetwork", config)), trace=False)
    return engine, engine.bus.subscribe(">", policy=Lossless(), name="test"), made


def check_ends(envelopes: Sequence[Envelope]) -> int:
    """Assert that each attempt has one start and then one end, and each turn one end. Returns the number of
    attempts.
    """
    is_open: dict[tuple[str | None, int | None], bool] = {}
    for envelope in envelopes:
        key = (envelope.request_id, envelope.attempt)
        if isinstance(envelope.data, LlmCallStarted):
            assert key not in is_open, f"{key} starts twice"
            is_open[key] = True
        elif isinstance(envelope.data, LlmCallCompleted | LlmCallFailed):
            assert is_open.get(key), f"{key} ends and is not open"
            is_open[key] = False
    assert not [key for key, still in is_open.items() if still]
    completed = [e.turn_id for e in envelopes if e.topic == "session.turn_completed"]
    assert len(completed) == len(set(completed))
    assert {e.turn_id for e in envelopes if e.topic == "session.turn_started"} <= set(completed)
    return len(is_open)


async def check_closed(engine: Engine, made: Sequence[ToyOnNetwork]) -> None:
    """Close the engine, and assert that no task and no reply is left."""
    report = await engine.aclose()
    assert present(report).clean
    assert all(adapter.network.all_closed for adapter in made), "every reply is closed"
    assert asyncio.all_tasks() == {asyncio.current_task()}
