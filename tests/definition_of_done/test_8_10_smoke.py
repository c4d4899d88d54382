"""Section 8.10, the smoke test. Its six steps run in order, with each provider as the lead.

They run over hand-written replies and over recorded ones. A person can also run them on the providers themselves,
with keys in the environment (`test_8_10_local` runs them on the local model):

    CALLBOARD_LIVE=1 pytest tests/definition_of_done/test_8_10_smoke.py -k live
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from callboard import (
    Engine,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ModelRegistry,
    NotFoundError,
    TextBlock,
    TextDelta,
    Tool,
    generate,
    generate_object,
    get_latest_model,
    stream,
    tool,
)

from ..support.fake_http import FakeReply, FakeTransport
from ..support.virtual_time import FakeClock
from ..support.wires.wire import Wire
from .providers import WIRES, each_provider
from .recorded import Exchange, exchanges, loops, recorded
from .rows import PROVIDERS, row
from .test_8_3_content import images
from .test_8_4_generation import PERSON, only_text, schema_of

pytestmark = pytest.mark.anyio

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000" "1f15c489"
    "0000000d49444154789c63f8cfc0f01f00050001ff5603a9d3" "0000000049454e44ae426082"
)  # fmt: skip
"""A picture of one red dot."""


@tool
async def get_weather(city: str) -> str:
    """The current weather in a city."""
    return f"In {city} it is 21 degrees, and sunny."


@dataclass(frozen=True)
class Script:
    """The inputs of the six steps."""

    basic: Sequence[str]
    """A model of each provider."""
    lead: str
    """The model of steps 2 to 5."""
    missing: tuple[str, str]
    """A model that does not exist, and its provider."""
    image: ImageBlock = ImageBlock(data=DOT)  # noqa: RUF009 (frozen)
    question: tuple[Message, ...] = (Message.user("What is the weather in San Francisco and New York?"),)
    tools: tuple[Tool, ...] = (get_weather,)
    words: tuple[str, ...] = ("San Francisco", "New York")
    """The words that the reply of step 3 must contain."""
    schema: JsonObject = field(default_factory=dict)
    output: Json = None


async def basic(engine: Engine, name: str, **more: Any) -> None:
    prompt = "Say hello in one sentence."
    result = await generate(name, prompt, engine=engine, max_output_tokens=1000, **more)
    assert result.text
    assert result.usage.total_input_tokens > 0
    assert result.usage.output_tokens > 0
    assert result.stop_reason == "end_turn"


async def streaming(engine: Engine, name: str, **more: Any) -> None:
    result = stream(name, "Write a haiku.", engine=engine, **{"max_output_tokens": 1000, **more})
    pieces = [event.text async for event in result if isinstance(event, TextDelta)]
    assert "".join(pieces) == (await result.response()).text != ""


async def calling(engine: Engine, name: str, script: Script, **more: Any) -> None:
    tools = list(script.tools)
    result = await generate(name, messages=script.question, tools=tools, engine=engine, max_tool_rounds=3, **more)
    assert len(result.steps) >= 2
    assert not any(block.is_error for step in result.steps for block in step.tool_results)
    assert [word for word in script.words if word not in result.text] == []


async def looking(engine: Engine, name: str, image: ImageBlock) -> None:
    said = [Message.user([TextBlock("What do you see?"), image])]
    assert (await generate(name, messages=said, engine=engine)).text


async def extracting(engine: Engine, name: str, schema: JsonObject, output: Json) -> None:
    result = await generate_object(name, "Extract: Alice is 30 years old", schema=schema, engine=engine)
    assert result.output == output


async def missing(engine: Engine, name: str, provider: str) -> None:
    with pytest.raises(NotFoundError):
        await generate(name, "test", provider=provider, engine=engine)


async def smoke(engine: Engine, script: Script) -> None:
    """Run the six steps."""
    for name in script.basic:
        await basic(engine, name)
    await streaming(engine, script.lead)
    await calling(engine, script.lead, script)
    await looking(engine, script.lead, script.image)
    await extracting(engine, script.lead, script.schema, script.output)
    await missing(engine, *script.missing)


def every_step(test: Any) -> Any:
    """Mark a test that proves all rows of the section, and the first row for all three providers."""
    for number in range(2, 7):
        test = row(f"8.10.{number}")(test)
    return row("8.10.1", of=PROVIDERS)(test)


def engine_of(replies: dict[str, list[FakeReply]]) -> Engine:
    """An engine with all three providers and their replies."""
    adapters = {wire.name: wire.make(FakeTransport(*replies[wire.name]), FakeClock()) for wire in WIRES}
    return Engine(models=ModelRegistry({}, {}), providers=adapters, trace=False)


# -- hand-written


def weather_calls(wire: Wire) -> FakeReply:
    """A reply with two tool calls: the weather in each of two cities."""
    body = wire.body("", 2, "tools")
    found = iter([{"city": "San Francisco"}, {"city": "New York"}])

    def changed(value: Any) -> Any:
        match value:
            case {"name": "read_file" | "list_files", "arguments": str()}:
                return {**value, "name": "get_weather", "arguments": msgspec.json.encode(next(found)).decode()}
            case {"name": "read_file" | "list_files"}:
                given = "args" if "args" in value else "input"
                return {**value, "name": "get_weather", given: next(found)}
            case dict():
                return {name: changed(each) for name, each in value.items()}
            case list():
                return [changed(each) for each in value]
            case _:
                return value

    return wire._reply_with(changed(body))


@each_provider
@every_step
async def test_the_six_steps(wire: Wire) -> None:
    """The replies are written by hand, like real ones."""
    replies = {each.name: [each.whole("Hello there!")] for each in WIRES}
    replies[wire.name] += [
        wire.streamed("An old silent pond"),
        weather_calls(wire),
        wire.whole("It is sunny in San Francisco and in New York."),
        wire.whole("A red dot."),
        wire.whole('{"name": "Alice", "age": 30}'),
        wire.failing("no model"),
    ]
    script = Script(
        basic=[f"{each.name}:some-model" for each in WIRES],
        lead=f"{wire.name}:{LEADS[wire.name]}",
        missing=("nonexistent-model-xyz", wire.name),
        schema=PERSON,
        output={"name": "Alice", "age": 30},
    )
    async with engine_of(replies) as engine:
        await smoke(engine, script)


LEADS = {"openai": "gpt-5.2", "anthropic": "claude-opus-4-6", "gemini": "gemini-2.5-flash"}


# -- recorded


@recorded
@each_provider
@every_step
async def test_the_six_steps_over_recorded_replies(wire: Wire) -> None:
    """All replies but the last are recorded, because few recordings have a refusal of a missing model."""
    plain = [exchanges(each, lambda exchange: only_text(exchange) and not exchange.streamed)[0] for each in WIRES]
    streamed = exchanges(wire, lambda exchange: only_text(exchange) and exchange.streamed)[0]
    seen = exchanges(wire, lambda exchange: shows_one(exchange) and not exchange.streamed)[0]
    loop = max(loops(wire, lambda loop: not loop.streamed), key=lambda loop: loop.most_calls)
    held = exchanges(
        wire, lambda exchange: only_text(exchange) and not exchange.streamed and has_schema(exchange)
    )[0]
    replies = {each.name: [exchange.reply()] for each, exchange in zip(WIRES, plain, strict=True)}
    replies[wire.name] += [streamed.reply(), *[exchange.reply() for exchange in loop.exchanges]]
    replies[wire.name] += [seen.reply(), held.reply(), wire.failing("no model")]
    script = Script(
        basic=[f"{each.name}:some-model" for each in WIRES],
        lead=f"{wire.name}:{LEADS[wire.name]}",
        missing=("nonexistent-model-xyz", wire.name),
        image=images(seen.asked)[0][0],
        question=tuple(loop.messages()),
        tools=tuple(loop.tools()),
        words=(loop.exchanges[-1].oracle["final_text"],),
        schema=schema_of(held.asked) or {},
        output=msgspec.json.decode(held.oracle["final_text"]),
    )
    async with engine_of(replies) as engine:
        await smoke(engine, script)


def shows_one(exchange: Exchange) -> bool:
    return only_text(exchange) and bool(images(exchange.asked))


def has_schema(exchange: Exchange) -> bool:
    return schema_of(exchange.asked) is not None


# -- the real providers


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.skipif(
    "CALLBOARD_LIVE" not in os.environ, reason="by hand: CALLBOARD_LIVE=1, and the providers' keys"
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_six_steps_live(provider: str) -> None:
    """Runs on the providers that have a key. It costs a few cents."""
    async with Engine.from_env() as engine:
        configured = [name for name in PROVIDERS if engine.providers[name] == "configured"]
        if provider not in configured:
            pytest.skip(f"no key of {provider}")
        latest = {name: get_latest_model(name) for name in configured}
        names = {name: f"{name}:{info.id}" for name, info in latest.items() if info is not None}
        await smoke(
            engine,
            Script(
                basic=list(names.values()),
                lead=names[provider],
                missing=("nonexistent-model-xyz", provider),
                schema=PERSON,
                output={"name": "Alice", "age": 30},
            ),
        )
