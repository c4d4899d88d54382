"""Objects over every provider's real adapter: what is asked on the wire, and what becomes of the reply.

§8.4 (object validated, NoObjectGeneratedError) and §8.9 (structured object) of the unified client's specification.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import CALLS
from callboard.adapters.contract import ProviderAdapter
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from callboard.engine.objects.generate import NoObjectGeneratedError
from callboard.engine.type_schema import json_schema
from callboard.tracestore import PriceTable

from ..definition_of_done.rows import row
from ..support.fake_http import FakeReply, FakeTransport
from ..support.scripted import adapter_type
from ..support.wires import WIRES, Wire

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """Somewhere."""

    city: str
    country: str
    quarters: list[str] = field(default_factory=list)


PARIS = '{"city": "Paris", "country": "France", "quarters": ["Marais"]}'

NATIVE = {
    "anthropic": ("claude-sonnet-4-5", "output_config", "format", "schema"),
    "openai": ("gpt-5.2", "text", "format", "schema"),
    "openai_compatible": ("some-model", "response_format", "json_schema", "schema"),
    "gemini": ("gemini-2.5-flash", "generationConfig", "responseJsonSchema"),
    "ollama": ("some-model", "format"),
    "interactions": ("gemini-2.5-flash", "response_format", "schema"),
    "tgi": ("some-model", "parameters", "grammar", "value"),
}
"""A model that takes schemas, and where its schema stands in a request."""


@asynccontextmanager
async def asking(
    wire: Wire, model: str, *replies: FakeReply, prices: PriceTable | None = None, **settings: object
) -> AsyncIterator[tuple[Engine, str, FakeTransport]]:
    """An engine with that wire's adapter, the model's name, and the network.

    Args:
        wire: The wire.
        model: The model's name on the wire.
        replies: The replies of the network.
        prices: The engine's prices.
        settings: The settings of the adapter.
    """
    transport = FakeTransport(*replies)

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return wire.make(transport, clock, **{"max_retries": 0, **settings})

    entry = AdapterEntry(name=wire.name, type=adapter_type(make), config=AdapterConfig())
    named = f"{wire.name}:{model}"
    models = {named: ModelEntry(id=named, adapter=wire.name, wire_name=model)}
    async with Engine(models=ModelRegistry({wire.name: entry}, models), trace=False, prices=prices) as engine:
        yield engine, named, transport


def at(body: Json, *path: str) -> Json:
    for name in path:
        assert isinstance(body, dict)
        body = body[name]
    return body


def sent(transport: FakeTransport, number: int = 0) -> JsonObject:
    return msgspec.json.decode(transport.requests[number].body, type=JsonObject)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@row("8.4.7")
@row("8.9.9")
async def test_every_provider_is_asked_by_its_own_means(wire: Wire) -> None:
    """§8.9 object: the schema stands where the provider wants it, and the reply becomes the type."""
    model, *path = NATIVE[wire.name]
    async with asking(wire, model, wire.whole(PARIS)) as (engine, named, transport):
        result = await engine.generate_object(named, "Where is the Louvre?", schema=Place)
    schema = at(sent(transport), *path)
    assert isinstance(schema, dict)
    assert set(at(schema, "properties")) == {"city", "country", "quarters"}  # type: ignore[arg-type]
    assert result.output == Place("Paris", "France", ["Marais"])
    assert [warning.code for warning in result.warnings if warning.code.startswith("schema")] == []


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_every_providers_object_grows_in_its_stream(wire: Wire) -> None:
    model, *_ = NATIVE[wire.name]
    async with asking(wire, model, wire.streamed(PARIS)) as (engine, named, _):
        async with engine.stream_object(named, "Where is the Louvre?", schema=Place) as stream:
            partials = [partial async for partial in stream]
            assert await stream.object() == Place("Paris", "France", ["Marais"])
    assert partials[-1] == msgspec.json.decode(PARIS)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@row("8.4.8")
async def test_every_providers_wrong_object_is_an_error_and_may_be_asked_for_again(wire: Wire) -> None:
    """§8.4 NoObjectGeneratedError."""
    model, *_ = NATIVE[wire.name]
    replies = [wire.whole('{"city": 3}'), wire.whole("Paris."), wire.whole(PARIS)]
    async with asking(wire, model, *replies) as (engine, named, transport):
        with pytest.raises(NoObjectGeneratedError) as none:
            await engine.generate_object(named, "Where is the Louvre?", schema=Place)
        result = await engine.generate_object(named, "Where is the Louvre?", schema=Place, max_reasks=1)
    assert (none.value.reason, none.value.usage.total_input_tokens) == ("invalid", 12)
    assert "$.city" in none.value.detail
    assert result.output.city == "Paris"
    assert b"is not JSON" in transport.requests[2].body
    assert wire.faults(transport.requests[2].body) == []


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_a_truncated_object_is_said_to_be_truncated(wire: Wire) -> None:
    model, *_ = NATIVE[wire.name]
    async with asking(wire, model, wire.whole(PARIS[:20], 0, "length")) as (engine, named, _):
        with pytest.raises(NoObjectGeneratedError, match="max_output_tokens") as none:
            await engine.generate_object(named, "Where is the Louvre?", schema=Place)
    assert none.value.reason == "truncated"


# -- a model without schemas: Anthropic's before Claude 4.5

CALL_NAME, CALL_INPUT = CALLS[0]
OF_CALL: JsonObject = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in CALL_INPUT},
    "required": list(CALL_INPUT),
}


def answering(data: bytes) -> bytes:
    """A piece of a reply whose call is one of the tool that stands for the reply."""
    return data.replace(f'"{CALL_NAME}"'.encode(), b'"answer"')


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_older_claude_is_made_to_call_a_tool(streamed: bool) -> None:
    wire = next(wire for wire in WIRES if wire.name == "anthropic")
    if streamed:
        reply = wire.stream_of(*[answering(chunk) for chunk in wire.chunks("", 1, "tools")])
    else:
        body = msgspec.json.decode(answering(msgspec.json.encode(wire.body("", 1, "tools"))), type=JsonObject)
        reply = wire._whole(body)
    async with asking(wire, "claude-sonnet-4-0", reply) as (engine, named, transport):
        if streamed:
            async with engine.stream_object(named, "Where?", schema=OF_CALL) as stream:
                partials = [partial async for partial in stream]
                result = await stream.result()
            assert partials[-1] == CALL_INPUT
        else:
            result = await engine.generate_object(named, "Where?", schema=OF_CALL)
    body = sent(transport)
    assert wire.judged(transport.requests[0].body) == []
    assert body["tool_choice"] == {"type": "tool", "name": "answer"}
    assert [at(tool, "name") for tool in at(body, "tools")] == ["answer"]  # type: ignore[union-attr]
    assert "output_config" not in body
    assert result.output == CALL_INPUT
    assert [warning.code for warning in result.warnings] == ["schema_as_tool"]


async def test_an_older_claude_that_is_to_reason_is_told_the_schema() -> None:
    """A forced call and reasoning exclude each other there."""
    wire = next(wire for wire in WIRES if wire.name == "anthropic")
    reply = wire.whole(f"```json\n{PARIS}\n```")
    async with asking(wire, "claude-sonnet-4-0", reply) as (engine, named, transport):
        result = await engine.generate_object(named, "Where?", schema=Place, reasoning_effort="high")
    body = sent(transport)
    assert "tools" not in body
    assert msgspec.json.encode(json_schema(Place)).decode() in str(body["system"])
    assert result.output.country == "France"
