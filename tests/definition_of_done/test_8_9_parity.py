"""Section 8.9, the same fifteen things with each provider: one test for each cell of the matrix.

Each cell goes through the public functions alone and says the same for all three; what differs between them stands
in the tests of the other sections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest
from callboard.adapters.conformance import CALLS, TOOLS

from callboard import (
    AuthError,
    Engine,
    ImageBlock,
    JsonObject,
    ModelRegistry,
    RateLimitError,
    TextBlock,
    Tool,
    ToolUseEnd,
    generate,
    generate_object,
    stream,
)

from ..support.virtual_time import FakeClock
from ..support.wires.wire import Wire
from .providers import MODELS, WIRES, asking, counted, holds
from .recorded import Exchange, exchanges, most_agree, recorded
from .rows import row
from .test_8_2_adapters import OPTIONS
from .test_8_3_content import ADDRESS, LINKED, PNG, image_of
from .test_8_4_generation import PERSON, name_of
from .test_8_5_reasoning import thoughtful
from .test_8_6_caching import LONG, CachingProvider, usages

pytestmark = pytest.mark.anyio


async def answer(arguments: JsonObject) -> str:
    return f"of {arguments['path']}"


BOTH = [Tool(definition, answer) for definition in TOOLS]


async def simple_text(wire: Wire) -> None:
    async with asking(wire, wire.whole("Hello there.")) as at:
        result = await generate(at.model, "Say hello.", engine=at.engine, max_output_tokens=100)
    assert (result.text, result.stop_reason) == ("Hello there.", "end_turn")


async def streamed_text(wire: Wire) -> None:
    async with asking(wire, wire.streamed("Hello there.")) as at:
        result = stream(at.model, "Say hello.", engine=at.engine)
        pieces = [text async for text in result.text_stream]
        assert len(pieces) > 1
        assert "".join(pieces) == (await result.response()).text == "Hello there."


async def image_base64(wire: Wire) -> None:
    async with asking(wire, wire.whole("A dot.")) as at:
        result = await generate(at.model, [TextBlock("What is it?"), ImageBlock(data=PNG)], engine=at.engine)
        assert holds(at.body(), image_of(PNG)[wire.name])
    assert result.text == "A dot."


async def image_url(wire: Wire) -> None:
    async with asking(wire, wire.whole("A dot.")) as at:
        result = await generate(at.model, [TextBlock("What is it?"), ImageBlock(url=ADDRESS)], engine=at.engine)
        assert holds(at.body(), LINKED[wire.name])
    assert result.text == "A dot."


async def one_tool(wire: Wire) -> None:
    async with asking(wire, wire.whole("", 1, "tools"), wire.whole("It is empty.")) as at:
        result = await generate(at.model, "What is in a.txt?", tools=BOTH, engine=at.engine)
    assert [block.text for block in result.steps[0].tool_results] == ["of a.txt"]
    assert result.text == "It is empty."


async def parallel_tools(wire: Wire) -> None:
    async with asking(wire, wire.whole("", 2, "tools"), wire.whole("Both are empty.")) as at:
        result = await generate(at.model, "What is there?", tools=BOTH, engine=at.engine)
        assert wire.ids(at.body()) == (wire.ids_issued(2), wire.ids_issued(2))
    assert [block.text for block in result.steps[0].tool_results] == ["of a.txt", "of ."]
    assert (len(result.steps), result.text) == (2, "Both are empty.")


async def three_rounds(wire: Wire) -> None:
    """Calls of later rounds have other ids."""
    bodies = [wire.body(f"Round {number}.", 1, "tools") for number in range(3)]
    replies = [wire._whole(renumbered(body, number)) for number, body in enumerate(bodies)]
    async with asking(wire, *replies, wire.whole("Done.")) as at:
        result = await generate(at.model, "Go", tools=BOTH, engine=at.engine, max_tool_rounds=5)
        assert wire.faults(at.transport.requests[-1].body) == []
        calls, results = wire.ids(at.body())
        assert (len(set(calls)), calls) == (3, results)
    assert [step.text for step in result.steps] == ["Round 0.", "Round 1.", "Round 2.", "Done."]
    assert (result.status, result.total_usage.total_tokens) == ("completed", 4 * 19)


def renumbered(body: JsonObject, number: int) -> JsonObject:
    """A reply whose calls have ids of their own."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            named = {"id", "call_id"} if {"name"} & value.keys() else set()
            return {k: f"{v}{number}" if k in named else changed(v) for k, v in value.items()}
        return [changed(each) for each in value] if isinstance(value, list) else value

    return changed(body)  # type: ignore[return-value]


async def streamed_tools(wire: Wire) -> None:
    async with asking(wire, wire.streamed("Let me see.", 2, "tools"), wire.streamed("Done.")) as at:
        result = stream(at.model, "Go", tools=BOTH, engine=at.engine)
        events = [event async for event in result]
        ended = [event for event in events if isinstance(event, ToolUseEnd)]
        assert [event.final_input for event in ended] == [given for _, given in CALLS]
        types = [event.type for event in events]
        assert (types.count("tool.started"), types.count("tool.finished"), types.count("step.finish")) == (2, 2, 2)
        assert types.count("tool.use_input_delta") >= 2
        assert (await result.result()).text == "Done."


async def structured_output(wire: Wire) -> None:
    async with asking(wire, wire.whole('{"name": "Alice", "age": 30}')) as at:
        result = await generate_object(at.model, "Extract: Alice is 30", schema=PERSON, engine=at.engine)
    assert result.output == {"name": "Alice", "age": 30}


async def reasoning_tokens(wire: Wire) -> None:
    async with asking(wire, thoughtful(wire, streamed=False)) as at:
        result = await generate(at.model, "?", engine=at.engine, reasoning_effort="high")
    assert (result.usage.reasoning_tokens, result.usage.output_tokens, result.reasoning) == (50, 70, "Let me see")


async def bad_key(wire: Wire) -> None:
    async with asking(wire, wire.failing("bad key"), max_retries=2) as at:
        with pytest.raises(AuthError) as raised:
            await generate(at.model, "Hi", engine=at.engine)
    assert raised.value.provider_status == (400 if wire.name == "gemini" else 401)


async def rate_limit(wire: Wire) -> None:
    async with asking(wire, *[wire.failing("rate limit") for _ in range(3)], max_retries=2) as at:
        with pytest.raises(RateLimitError) as raised:
            await generate(at.model, "Hi", engine=at.engine)
        assert (raised.value.provider_status, len(at.transport.requests)) == (429, 3)


async def usage_counts(wire: Wire) -> None:
    """Whole and streamed, and the sum of all steps."""
    replies = [wire.whole("", 1, "tools"), wire.whole("Done."), wire.streamed("Hi")]
    async with asking(wire, *replies) as at:
        result = await generate(at.model, "Go", tools=BOTH, engine=at.engine)
        streamed = await stream(at.model, "Go", engine=at.engine).result()
    for usage, times in ((result.usage, 1), (result.total_usage, 2), (streamed.usage, 1)):
        assert counted(usage) == (8 * times, 4 * times, 0, 7 * times)
        assert not usage.estimated


async def cached_tokens(wire: Wire) -> None:
    made = wire.make(CachingProvider(wire), FakeClock(), options={})
    async with Engine(models=ModelRegistry({}, {}), providers={wire.name: made}, trace=False) as engine:
        session = engine.session(f"{wire.name}:{MODELS[wire.name]}", system_prompt=LONG, tools=BOTH)
        _, *later = await usages(session, 3)
    assert [usage.cached_input_tokens > 0 for usage in later] == [True, True]


async def provider_options(wire: Wire) -> None:
    async with asking(wire, wire.whole("Hi")) as at:
        await generate(at.model, "Hi", engine=at.engine, provider_options={wire.name: OPTIONS[wire.name]})
        assert holds(at.body(), OPTIONS[wire.name])


MATRIX: tuple[Callable[[Wire], Awaitable[None]], ...] = (
    *(simple_text, streamed_text, image_base64, image_url, one_tool, parallel_tools, three_rounds, streamed_tools),
    *(structured_output, reasoning_tokens, bad_key, rate_limit, usage_counts, cached_tokens, provider_options),
)
"""In the order of the rows."""


def cells() -> Iterator[object]:
    for wire in WIRES:
        for place, check in enumerate(MATRIX, 1):
            yield pytest.param(wire, check, id=f"{wire.name}-{check.__name__}", marks=row(f"8.9.{place}"))


@pytest.mark.parametrize(("wire", "check"), list(cells()))
async def test_parity(wire: Wire, check: Callable[[Wire], Awaitable[None]]) -> None:
    """A cell of the matrix."""
    await check(wire)


# -- the same over what was recorded, where a cell isn't proved by the recordings in its own section


@recorded
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@row("8.9.13")
async def test_recorded_usage_is_exact(wire: Wire) -> None:
    """Every count of every recorded reply, and never an estimate."""

    def is_counted(exchange: Exchange) -> bool:
        reported = exchange.oracle["usage"] or {}
        return exchange.ok and not exchange.paused and bool({"input_tokens", "promptTokenCount"} & reported.keys())

    found = exchanges(wire, is_counted)
    async with asking(wire, *[exchange.reply() for exchange in found]) as at:

        async def check(exchange: Exchange) -> None:
            if exchange.streamed:
                asked = stream(name_of(wire, exchange), "?", engine=at.engine, max_tool_rounds=0).result()
            else:
                asked = generate(name_of(wire, exchange), "?", engine=at.engine, max_tool_rounds=0)
            usage = (await asked).usage
            assert not usage.estimated, exchange.case["id"]
            contract, raw = exchange.oracle["contract"]["usage"], exchange.oracle["usage"]
            if contract is not None:
                names = ("input_tokens", "cached_input_tokens", "cache_creation_input_tokens", "output_tokens")
                assert counted(usage) == tuple(contract[name] for name in names), exchange.case["id"]
            else:  # Gemini's: the sums
                tools = raw.get("toolUsePromptTokenCount", 0)
                assert usage.total_input_tokens == raw["promptTokenCount"] + tools, exchange.case["id"]
                generated = raw.get("candidatesTokenCount", 0) + raw.get("thoughtsTokenCount", 0)
                assert usage.output_tokens == generated, exchange.case["id"]

        await most_agree(found, check)
