"""A message that steers a turn, over every provider's real adapter: behind the results, as its wire has it."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters import AdapterConfig, ImageBlock, RetryPolicy, TextBlock
from callboard.adapters.contract import ProviderAdapter
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool

from ..support.fake_http import FakeReply, FakeTransport
from ..support.scripted import adapter_type
from ..support.virtual_time import run_virtual
from ..support.wires import CALLING_WIRES, QUIRKY, Wire
from .test_swap_matrix import TOOLS, as_reply

WIRES = (*CALLING_WIRES, *QUIRKY)


def named(wire: Wire) -> str:
    return f"{wire.name}-{wire.options.get('quirks', '')}"


@pytest.mark.parametrize("wire", WIRES, ids=named)
@pytest.mark.parametrize("calls", [1, 2])
def test_the_provider_takes_what_is_said_behind_the_results(wire: Wire, calls: int) -> None:
    """A retry sends it again as it was; nothing is lost, doubled, or out of its place."""
    transport = FakeTransport(
        as_reply(wire.body("looking", calls, "tools")),
        FakeReply(b"{}", status=503),
        as_reply(wire.body("there it is", 0, "end")),
        as_reply(wire.body("once more", 0, "end")),
    )

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return wire.make(transport, clock, max_retries=1, retry=RetryPolicy())

    entry = AdapterEntry(name=wire.name, type=adapter_type(make), config=AdapterConfig())
    model = f"{wire.name}:some-model"
    models = {model: ModelEntry(id=model, adapter=wire.name, wire_name="some-model")}
    said: list[Session] = []

    async def work(arguments: dict[str, Json]) -> str:
        if said:
            said.pop().steer("and-in-french")
        return "worked"

    async def go() -> None:
        async with Engine(models=ModelRegistry({wire.name: entry}, models), trace=False) as engine:
            session = engine.session(model, tools=[Tool(tool, work) for tool in TOOLS])  # type: ignore[arg-type]
            said.append(session)
            await session.send("look-around", max_output_tokens=64)
            await session.send("and-again", max_output_tokens=64)

    run_virtual(go)
    bodies = [request.body for request in transport.requests]
    judged = wire.judged if wire in CALLING_WIRES else lambda body: []  # who differs has no types of the vendor's
    assert [wire.faults(body) + judged(body) for body in bodies] == [[]] * 4
    assert bodies[1] == bodies[2]
    assert [body.count(b"and-in-french") for body in bodies] == [0, 1, 1, 1]
    sent = bodies[3].decode()
    order = [sent.rindex(mark) for mark in ("look-around", "worked", "and-in-french", "there it is", "and-again")]
    assert order == sorted(order)
    assert "steers" not in sent, "our mark is none of the provider's business"
    assert msgspec.json.decode(bodies[3])[wire.history]


def test_blocks_can_steer_as_well_as_text() -> None:
    """An image comes behind the results like words do."""
    wire = CALLING_WIRES[0]
    transport = FakeTransport(as_reply(wire.body("looking", 1, "tools")), as_reply(wire.body("a dot", 0, "end")))

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return wire.make(transport, clock)

    entry = AdapterEntry(name=wire.name, type=adapter_type(make), config=AdapterConfig())
    models = {"m": ModelEntry(id="m", adapter=wire.name, wire_name="claude-sonnet-4-5")}

    async def go() -> None:
        async with Engine(models=ModelRegistry({wire.name: entry}, models), trace=False) as engine:

            async def work(arguments: dict[str, Json]) -> str:
                session.steer([TextBlock("see"), ImageBlock(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")])
                return "worked"

            session = engine.session("m", tools=[Tool(tool, work) for tool in TOOLS])  # type: ignore[arg-type]
            await session.send("look", max_output_tokens=64)

    run_virtual(go)
    body = transport.requests[1].body
    assert wire.faults(body) + wire.judged(body) == []
    last = msgspec.json.decode(body)["messages"][-1]
    assert [block["type"] for block in last["content"]] == ["tool_result", "text", "image"]
