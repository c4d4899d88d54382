"""Section 8.5, reasoning tokens."""

from __future__ import annotations

import msgspec
import pytest

from callboard import JsonObject, ThinkingBlock, generate

from ..support.fake_http import FakeReply
from ..support.wires.wire import Wire
from .providers import ANTHROPIC, GEMINI, OPENAI, Asked, asking, each_provider
from .recorded import Exchange, exchanges, play, recorded
from .rows import row
from .test_8_4_generation import name_of

pytestmark = pytest.mark.anyio

each_way = pytest.mark.parametrize("streamed", [False, True])

THOUGHT_ABOUT: dict[str, JsonObject] = {
    "openai": {"input_tokens": 12, "output_tokens": 70, "output_tokens_details": {"reasoning_tokens": 50}},
    "anthropic": {"input_tokens": 12, "output_tokens": 70, "output_tokens_details": {"thinking_tokens": 50}},
    "gemini": {"promptTokenCount": 12, "candidatesTokenCount": 20, "thoughtsTokenCount": 50,
        "totalTokenCount": 82},
}  # fmt: skip
"""Usage of a reply of 70 tokens, 50 of them reasoning."""


def thoughtful(wire: Wire, *, streamed: bool) -> FakeReply:
    """A reply that begins with reasoning, and is as much as THOUGHT_ABOUT."""
    if not streamed:
        body = wire.body("42", 0, "end", "Let me see")
        name = "usageMetadata" if wire is GEMINI else "usage"
        return wire._whole({**body, name: THOUGHT_ABOUT[wire.name]})
    steps: list[bytes] = []
    for name, event in wire.events("42", 0, "end", "Let me see"):
        match event:
            case {"type": "response.completed", "response": response}:
                event = {**event, "response": {**response, "usage": THOUGHT_ABOUT["openai"]}}
            case {"type": "message_delta"}:
                event = {**event, "usage": THOUGHT_ABOUT["anthropic"]}
            case {"usageMetadata": _} if "candidates" not in event:
                event = {**event, "usageMetadata": THOUGHT_ABOUT["gemini"]}
        steps.append(wire.write_event(name, event))
    return wire.stream_of(*steps)


@each_provider
@each_way
@row("8.5.1", of="openai")
@row("8.5.5", of="gemini")
@row("8.5.6")
@row("8.9.10")
async def test_reasoning_is_counted_apart(wire: Wire, streamed: bool) -> None:
    """As part of the output, which is billed whole."""
    async with asking(wire, thoughtful(wire, streamed=streamed)) as at:
        result = await at.ask(streamed=streamed, reasoning_effort="high")
    assert (result.text, result.thinking) == ("42", "Let me see")
    assert result.usage.output_tokens == 70
    assert result.usage.reasoning_tokens == 50
    assert result.usage.total_tokens - result.usage.total_input_tokens == 70


@row("8.5.6", of="anthropic")
async def test_what_is_not_reported_is_not_guessed() -> None:
    """Anthropic doesn't always say how many of the tokens were thinking."""
    async with asking(ANTHROPIC, ANTHROPIC._whole(ANTHROPIC.body("42", 0, "end", "Let me see"))) as at:
        result = await generate(at.model, "?", engine=at.engine, reasoning_effort="high")
    assert (result.thinking, result.usage.reasoning_tokens, result.usage.output_tokens) == ("Let me see", None, 7)


@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
@row("8.5.2", of="openai")
async def test_the_effort_is_sent(effort: str) -> None:
    """As it is called; without one nothing is said about it."""
    async with asking(OPENAI, OPENAI.whole("42"), OPENAI.whole("42")) as at:
        await generate(at.model, "?", engine=at.engine, reasoning_effort=effort)
        await generate(at.model, "?", engine=at.engine)
        assert at.body(0)["reasoning"]["effort"] == effort
        assert "reasoning" not in at.body(1)


@each_way
@row("8.5.3", of="anthropic")
@row("8.5.4", of="anthropic")
async def test_thinking_comes_as_content_with_its_signature(streamed: bool) -> None:
    """It is asked for by the effort."""
    async with asking(ANTHROPIC, thoughtful(ANTHROPIC, streamed=streamed)) as at:
        result = await at.ask(streamed=streamed, reasoning_effort="low")
        assert at.body()["thinking"]["type"] == "enabled"
    first = result.response.content[0]
    assert isinstance(first, ThinkingBlock)
    assert (first.text, first.signature) == ("Let me see", ANTHROPIC.secrets[0])


# -- as recorded


async def played(wire: Wire, found: list[Exchange]) -> None:
    """Reasoning and its count of these exchanges are what they were."""

    async def check(at: Asked, exchange: Exchange) -> None:
        result = await at.ask(model=name_of(wire, exchange), streamed=exchange.streamed, max_tool_rounds=0)
        assert result.thinking == exchange.oracle["thinking_text"], exchange.case["id"]
        assert result.usage.reasoning_tokens == reasoning_of(exchange.oracle["usage"]), exchange.case["id"]
        assert (result.usage.reasoning_tokens or 0) <= result.usage.output_tokens

    await play(wire, found, check)


def reasoning_of(usage: JsonObject) -> int | None:
    """As a provider tells it."""
    match usage:
        case {"output_tokens_details": {"reasoning_tokens": count} | {"thinking_tokens": count}}:
            return int(count)
        case {"thoughtsTokenCount": count}:
            return int(count)
        case {"promptTokenCount": _}:
            return 0
        case _:
            return None


@recorded
@each_provider
@row("8.5.1", of="openai")
@row("8.5.3", of="anthropic")
@row("8.5.5", of="gemini")
@row("8.5.6")
@row("8.9.10")
async def test_recorded_reasoning_is_counted(wire: Wire) -> None:
    """Of replies that reason, by their count or by what they show."""

    def reasons(exchange: Exchange) -> bool:
        if not exchange.ok or exchange.paused:
            return False
        return bool(exchange.oracle["thinking_text"] or reasoning_of(exchange.oracle["usage"] or {}))

    await played(wire, exchanges(wire, reasons))


@recorded
@row("8.5.4", of="anthropic")
async def test_recorded_signatures_are_kept() -> None:
    """Each as it came, with its thought; whole replies."""
    found = exchanges(
        ANTHROPIC,
        lambda each: (
            each.ok and not each.streamed and "thinking" in each.features and not each.tags & {"server_tools"}
        ),
    )

    async def check(at: Asked, exchange: Exchange) -> None:
        result = await generate(name_of(ANTHROPIC, exchange), "?", engine=at.engine, max_tool_rounds=0)
        came = msgspec.json.decode(exchange.case["response_body"])["content"]
        thoughts = [(block["thinking"], block["signature"]) for block in came if block["type"] == "thinking"]
        kept = [block for block in result.response.content if isinstance(block, ThinkingBlock)]
        assert [(block.text, block.signature) for block in kept] == thoughts, exchange.case["id"]

    await play(ANTHROPIC, found, check)
