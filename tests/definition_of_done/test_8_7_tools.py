"""Section 8.7, tool calling: over each provider's wire. Other tests cover how tools are run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from callboard import (
    GenerateResult,
    Json,
    JsonObject,
    StopReason,
    Tool,
    ToolChoice,
    ToolDefinition,
    ToolError,
    ToolUseEnd,
    generate,
    stream,
)
from callboard.adapters.conformance import CALLS, TOOLS

from ..support.wires.wire import Wire
from .conversations import read
from .providers import OPENAI, Asked, asking, counted, each_provider, holds, noting
from .recorded import Exchange, Loop, exchanges, loops, most_agree, play, recorded
from .rows import row
from .test_8_4_generation import name_of

pytestmark = pytest.mark.anyio


async def answer(arguments: JsonObject) -> str:
    return f"of {arguments['path']}"


BOTH = [Tool(definition, answer) for definition in TOOLS]
PASSIVE = [Tool(definition) for definition in TOOLS]


def results(result: GenerateResult, step: int = 0) -> list[tuple[str, bool]]:
    return [(block.text, block.is_error) for block in result.steps[step].tool_results]


@each_provider
@row("8.7.1")
@row("8.7.11")
@row("8.9.5")
async def test_an_active_tool_is_run_and_the_model_replies(wire: Wire) -> None:
    """Each step has its calls, results, usage and stop reason. The totals cover both steps."""
    async with asking(wire, wire.whole("Let me see.", 1, "tools"), wire.whole("It is empty.")) as at:
        result = await generate(at.model, "What is in a.txt?", tools=BOTH, engine=at.engine)
        assert len(at.transport.requests) == 2
    first, last = result.steps
    assert (result.text, result.status) == ("It is empty.", "completed")
    assert (first.text, last.text) == ("Let me see.", "It is empty.")
    assert [(call.name, call.input) for call in first.tool_uses] == [CALLS[0]]
    assert results(result) == [("of a.txt", False)]
    assert (last.tool_uses, last.tool_results) == ((), ())
    assert (first.stop_reason, last.stop_reason) == (StopReason.TOOL_USE, StopReason.END_TURN)
    assert [step.usage.total_tokens for step in result.steps] == [19, 19]
    assert result.total_usage.total_tokens == 38


@each_provider
@row("8.7.2")
async def test_calls_of_a_passive_tool_are_returned(wire: Wire) -> None:
    async with asking(wire, wire.whole("Let me see.", 2, "tools")) as at:
        result = await generate(at.model, "What is in a.txt?", tools=PASSIVE, engine=at.engine, max_tool_rounds=9)
        assert len(at.transport.requests) == 1
    assert (result.status, [(call.name, call.input) for call in result.tool_uses]) == (
        "awaiting_tools",
        list(CALLS),
    )
    assert result.tool_results == ()


@each_provider
@pytest.mark.parametrize(("rounds", "requests"), [(0, 1), (1, 2), (3, 4)])
@row("8.7.3")
@row("8.7.4")
async def test_rounds_end_the_loop(wire: Wire, rounds: int, requests: int) -> None:
    """A model that always calls tools gets one more request after the last round."""
    ran, count = noting()
    async with asking(wire, *[wire.whole("", 1, "tools") for _ in range(requests)]) as at:
        result = await generate(
            at.model, "Go", tools=[Tool(TOOLS[0], count)], engine=at.engine, max_tool_rounds=rounds
        )
        assert len(at.transport.requests) == requests
    assert (result.status, len(result.steps), len(ran)) == ("max_tool_rounds", requests, rounds)
    assert [call.name for call in result.tool_uses] == ["read_file"]


@each_provider
@row("8.3.4")
@row("8.7.5")
@row("8.7.6")
@row("8.9.6")
async def test_calls_of_one_reply_run_concurrently_and_are_sent_back_together(wire: Wire) -> None:
    """Each tool waits until all have started. One request has all results, in the order of the calls."""
    begun, all_begun = list[str](), anyio.Event()

    async def meet(arguments: JsonObject) -> str:
        begun.append(arguments["path"])
        if len(begun) == len(CALLS):
            all_begun.set()
        await all_begun.wait()
        return await answer(arguments)

    async with asking(wire, wire.whole("", 2, "tools"), wire.whole("Done.")) as at:
        tools = [Tool(definition, meet) for definition in TOOLS]
        result = await generate(at.model, "Go", tools=tools, engine=at.engine)
        assert len(at.transport.requests) == 2
        issued = wire.ids_issued(2)
        assert wire.ids(at.body()) == (issued, issued)
        assert wire.faults(at.transport.requests[-1].body) == []
    assert result.text == "Done."
    assert results(result) == [("of a.txt", False), ("of .", False)]


def failed(text: str) -> dict[str, Json]:
    """A failed result in the form of each wire."""
    return {
        "openai": {"type": "function_call_output", "call_id": "call_0", "output": f"Error: {text}"},
        "anthropic": {"type": "tool_result", "tool_use_id": "toolu_00", "content": text, "is_error": True},
        "gemini": {"functionResponse": {"id": "call_0", "name": "read_file", "response": {"error": text}}},
    }


async def fails(arguments: JsonObject) -> str:
    raise ToolError("There is no such file.")


@each_provider
@pytest.mark.parametrize(("tool", "told"), [
    pytest.param(Tool(TOOLS[0], fails), "There is no such file.", marks=row("8.7.7"), id="failure"),
    pytest.param(Tool(ToolDefinition("write_file"), answer),
        "There is no tool named 'read_file'. Available tools: write_file.", marks=row("8.7.8"), id="unknown"),
])  # fmt: skip
async def test_a_failed_call_is_sent_to_the_model_as_an_error(wire: Wire, tool: Tool, told: str) -> None:
    """The result has the tool's error text or the names of the available tools. The turn continues."""
    async with asking(wire, wire.whole("", 1, "tools"), wire.whole("Sorry.")) as at:
        result = await generate(at.model, "Go", tools=[tool], engine=at.engine)
        assert holds(at.body(), failed(told)[wire.name])
    assert (result.text, results(result)) == ("Sorry.", [(told, True)])


CHOICES: dict[str, dict[str, Json]] = {
    "openai": {"auto": {"tool_choice": "auto"}, "none": {"tool_choice": "none"},
        "required": {"tool_choice": "required"}, "named": {"tool_choice": {"type": "function",
        "name": "read_file"}}},
    "anthropic": {"auto": {"tool_choice": {"type": "auto"}}, "none": {"tool_choice": {"type": "none"}},
        "required": {"tool_choice": {"type": "any"}}, "named": {"tool_choice": {"type": "tool",
        "name": "read_file"}}},
    "gemini": {"auto": {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
        "none": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        "required": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        "named": {"toolConfig": {"functionCallingConfig": {"mode": "ANY",
        "allowedFunctionNames": ["read_file"]}}}},
}  # fmt: skip


@each_provider
@pytest.mark.parametrize("mode", ["auto", "none", "required", "named"])
@row("8.7.9")
async def test_a_tool_choice_is_translated(wire: Wire, mode: Any) -> None:
    """The tools are sent with each choice."""
    async with asking(wire, wire.whole("Hi")) as at:
        choice = ToolChoice(mode, "read_file" if mode == "named" else None)
        await generate(at.model, "Go", tools=BOTH, tool_choice=choice, engine=at.engine)
        assert holds(at.body(), CHOICES[wire.name][mode])
        assert [tool.name for tool in read(wire.name, at.body()).tools] == ["read_file", "list_files"]


@each_provider
@row("8.7.10")
async def test_arguments_are_validated_before_a_tool_runs(wire: Wire) -> None:
    """Arguments that don't fit the schema are sent back to the model as an error."""
    ran, note = noting()
    wrong: JsonObject = {"type": "object", "properties": {"path": {"type": "integer"}}, "required": ["path"]}
    tools = [Tool(ToolDefinition("read_file", "", wrong), note), Tool(TOOLS[1], note)]
    async with asking(wire, wire.whole("", 2, "tools"), wire.whole("Done.")) as at:
        result = await generate(at.model, "Go", tools=tools, engine=at.engine)
    assert ran == [CALLS[1][1]]
    (told, is_error), fine = results(result)
    assert (is_error, "$.path" in told, fine) == (True, True, ("R", False))


@row("8.7.10")
async def test_arguments_that_are_no_json_reach_no_tool() -> None:
    """OpenAI sends arguments as text, which may be invalid JSON."""
    body = OPENAI.body("", 1, "tools")
    body["output"][0]["arguments"] = '{"path": '
    async with asking(OPENAI, OPENAI._reply_with(body), OPENAI.whole("Sorry.")) as at:
        result = await generate(at.model, "Go", tools=[Tool(TOOLS[0], fails)], engine=at.engine)
    (told, is_error) = results(result)[0]
    assert is_error
    assert "JSON" in told


# -- recorded conversations


async def replayed(wire: Wire, loop: Loop) -> GenerateResult:
    """Run a recorded conversation with its replies and tools. Assert that the requests equal the recorded ones."""
    async with asking(wire, *[exchange.reply() for exchange in loop.exchanges]) as at:
        given: dict[str, Any] = {
            "messages": loop.messages(), "system_prompt": loop.asked[0].system, "tools": loop.tools(),
            "max_tool_rounds": loop.rounds,
        }  # fmt: skip
        model = name_of(wire, loop.exchanges[0])
        if loop.streamed:
            result = await at.engine.stream(model, **given).result()
        else:
            result = await generate(model, engine=at.engine, **given)
        _same_requests(wire, at, loop)
    return result


def _same_requests(wire: Wire, at: Asked, loop: Loop) -> None:
    where = loop.exchanges[0].case["id"]
    assert len(at.transport.requests) == len(loop.exchanges), where
    for number, asked in enumerate(loop.asked):
        assert read(wire.name, at.body(number)).comparable == asked.comparable, where


@recorded
@each_provider
@row("8.7.1")
@row("8.7.11")
@row("8.9.5")
async def test_recorded_loops_are_repeated_exactly(wire: Wire) -> None:
    """Every request has the recorded system prompt, tools, texts, calls and results."""

    async def check(loop: Loop) -> None:
        result = await replayed(wire, loop)
        assert result.text == loop.exchanges[-1].oracle["final_text"]
        assert len(result.steps) == len(loop.exchanges)
        for step, exchange in zip(result.steps, loop.exchanges, strict=True):
            wanted = [(call["name"], call["arguments"] or {}) for call in exchange.oracle["tool_calls"]]
            assert [(call.name, call.input) for call in step.tool_uses] == wanted

    await most_agree(loops(wire, lambda loop: not loop.streamed), check)


@recorded
@each_provider
@row("8.9.8")
async def test_recorded_loops_are_streamed(wire: Wire) -> None:
    """The same conversations run with streamed replies in pieces."""

    async def check(loop: Loop) -> None:
        assert (await replayed(wire, loop)).text == loop.exchanges[-1].oracle["final_text"]

    await most_agree(loops(wire, lambda loop: loop.streamed), check)


# -- Section 8.9, the same features with each provider: the rows that no other section proves.


@each_provider
@row("8.9.7")
async def test_calls_of_three_rounds_have_different_ids(wire: Wire) -> None:
    """Calls of later rounds have different ids, and each has its result."""
    bodies = [wire.body(f"Round {number}.", 1, "tools") for number in range(3)]
    replies = [wire._reply_with(renumbered(body, number)) for number, body in enumerate(bodies)]
    async with asking(wire, *replies, wire.whole("Done.")) as at:
        result = await generate(at.model, "Go", tools=BOTH, engine=at.engine, max_tool_rounds=5)
        assert wire.faults(at.transport.requests[-1].body) == []
        calls, results = wire.ids(at.body())
        assert (len(set(calls)), calls) == (3, results)
    assert [step.text for step in result.steps] == ["Round 0.", "Round 1.", "Round 2.", "Done."]
    assert (result.status, result.total_usage.total_tokens) == ("completed", 4 * 19)


def renumbered(body: JsonObject, number: int) -> JsonObject:
    """A reply whose calls have their own ids."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            named = {"id", "call_id"} if {"name"} & value.keys() else set()
            return {k: f"{v}{number}" if k in named else changed(v) for k, v in value.items()}
        return [changed(each) for each in value] if isinstance(value, list) else value

    return changed(body)  # type: ignore[return-value]


@each_provider
@row("8.9.8")
async def test_calls_are_streamed_and_run(wire: Wire) -> None:
    """Arguments arrive in pieces. The reply after the results is streamed, too."""
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
async def test_usage_is_what_the_provider_reports(wire: Wire) -> None:
    """The usage is that of the provider for plain and streamed calls. The total is the sum of the steps."""
    replies = [wire.whole("", 1, "tools"), wire.whole("Done."), wire.streamed("Hi")]
    async with asking(wire, *replies) as at:
        result = await generate(at.model, "Go", tools=BOTH, engine=at.engine)
        streamed = await stream(at.model, "Go", engine=at.engine).result()
    for usage, times in ((result.usage, 1), (result.total_usage, 2), (streamed.usage, 1)):
        assert counted(usage) == (8 * times, 4 * times, 0, 7 * times)
        assert not usage.estimated


@recorded
@each_provider
@row("8.6.2", of="openai")
@row("8.6.5", of="anthropic")
@row("8.6.8", of="gemini")
@row("8.9.13")
async def test_recorded_usage_is_exact(wire: Wire) -> None:
    """Every count of the recorded replies is exact, and none is an estimate."""

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
        else:  # Gemini's usage: compare the sums
            tools = raw.get("toolUsePromptTokenCount", 0)
            assert usage.total_input_tokens == raw["promptTokenCount"] + tools, exchange.case["id"]
            assert usage.cached_input_tokens == raw.get("cachedContentTokenCount", 0), exchange.case["id"]
            generated = raw.get("candidatesTokenCount", 0) + raw.get("thoughtsTokenCount", 0)
            assert usage.output_tokens == generated, exchange.case["id"]

    await play(wire, found, check)
