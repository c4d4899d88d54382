"""Section 8.9, the same things with each provider: the rows that no test of another section proves."""

from __future__ import annotations

import pytest

from callboard import JsonObject, Tool, ToolUseEnd, generate, stream
from callboard.adapters.conformance import CALLS, TOOLS

from ..support.wires.wire import Wire
from .providers import Asked, asking, counted, each_provider
from .recorded import Exchange, exchanges, play, recorded
from .rows import row
from .test_8_4_generation import name_of

pytestmark = pytest.mark.anyio


async def answer(arguments: JsonObject) -> str:
    return f"of {arguments['path']}"


BOTH = [Tool(definition, answer) for definition in TOOLS]


@each_provider
@row("8.9.7")
async def test_calls_of_three_rounds_are_told_apart(wire: Wire) -> None:
    """Those of later rounds have other ids, each with its result."""
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


@each_provider
@row("8.9.8")
async def test_calls_are_streamed_and_run(wire: Wire) -> None:
    """Their arguments come in pieces, and the reply after them is streamed as well."""
    async with asking(wire, wire.streamed("Let me see.", 2, "tools"), wire.streamed("Done.")) as at:
        result = stream(at.model, "Go", tools=BOTH, engine=at.engine)
        events = [event async for event in result]
        ended = [event for event in events if isinstance(event, ToolUseEnd)]
        assert [event.final_input for event in ended] == [given for _, given in CALLS]
        types = [event.type for event in events]
        assert (types.count("tool.started"), types.count("tool.finished"), types.count("step.finish")) == (2, 2, 2)
        assert types.count("tool.use_input_delta") >= 2
        assert (await result.result()).text == "Done."


@each_provider
@row("8.9.13")
async def test_usage_is_what_the_provider_says(wire: Wire) -> None:
    """Whole and streamed, and the sum of all steps."""
    replies = [wire.whole("", 1, "tools"), wire.whole("Done."), wire.streamed("Hi")]
    async with asking(wire, *replies) as at:
        result = await generate(at.model, "Go", tools=BOTH, engine=at.engine)
        streamed = await stream(at.model, "Go", engine=at.engine).result()
    for usage, times in ((result.usage, 1), (result.total_usage, 2), (streamed.usage, 1)):
        assert counted(usage) == (8 * times, 4 * times, 0, 7 * times)
        assert not usage.estimated


@recorded
@each_provider
@row("8.9.13")
async def test_recorded_usage_is_exact(wire: Wire) -> None:
    """Every count of every recorded reply, and never an estimate."""

    def is_counted(exchange: Exchange) -> bool:
        reported = exchange.oracle["usage"] or {}
        return exchange.ok and not exchange.paused and bool({"input_tokens", "promptTokenCount"} & reported.keys())

    found = exchanges(wire, is_counted)

    async def check(at: Asked, exchange: Exchange) -> None:
        result = await at.ask(model=name_of(wire, exchange), streamed=exchange.streamed, max_tool_rounds=0)
        usage = result.usage
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

    await play(wire, found, check)
