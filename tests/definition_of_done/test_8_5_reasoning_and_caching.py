"""Sections 8.5 and 8.6: reasoning tokens and prompt caching."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from callboard import (
    Engine,
    JsonObject,
    ModelRegistry,
    Session,
    TokenUsage,
    Tool,
    ToolDefinition,
    generate,
)
from callboard.adapters.transport.transport import HttpReply, HttpRequest

from ..adapters.anthropic.test_prompt_caching import PrefixCache
from ..support.fake_http import FakeReply
from ..support.virtual_time import FakeClock
from ..support.wires.wire import Wire
from .providers import ANTHROPIC, GEMINI, MODELS, OPENAI, Asked, asking, each_provider
from .recorded import Exchange, exchanges, play, recorded
from .rows import row
from .test_8_4_generation import name_of

pytestmark = pytest.mark.anyio

LONG = "You are a careful assistant. " * 200
QUESTION = "And what of this? " * 20
READ = ToolDefinition(
    "read_file", "Reads a file. " * 400, {"type": "object", "properties": {"path": {"type": "string"}}}
)


async def contents(arguments: JsonObject) -> str:
    return "The contents of the file. " * 20


# -- the counts

COUNTED: dict[str, tuple[JsonObject, tuple[int, int, int]]] = {
    "openai": ({"input_tokens": 2000, "input_tokens_details": {"cached_tokens": 1500}, "output_tokens": 9},
        (500, 1500, 0)),
    "anthropic": ({"input_tokens": 100, "cache_read_input_tokens": 1500, "cache_creation_input_tokens": 400,
        "output_tokens": 9}, (100, 1500, 400)),
    "gemini": ({"promptTokenCount": 2000, "cachedContentTokenCount": 1500, "candidatesTokenCount": 9,
        "totalTokenCount": 2009}, (500, 1500, 0)),
}  # fmt: skip
"""The reported usage, and the fresh, cached and cache-writing input tokens. No token is counted twice."""


@each_provider
@row("8.6.2", of="openai")
@row("8.6.5", of="anthropic")
@row("8.6.8", of="gemini")
async def test_cached_tokens_are_counted_apart(wire: Wire) -> None:
    reported, counted = COUNTED[wire.name]
    name = "usageMetadata" if wire is GEMINI else "usage"
    async with asking(wire, wire._reply_with({**wire.body("Hi", 0, "end"), name: reported})) as at:
        usage = (await generate(at.model, "Hi", engine=at.engine)).usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens) == counted
    assert (usage.total_input_tokens, usage.output_tokens) == (2000, 9)


@row("8.6.4", of="anthropic")
async def test_no_beta_is_named_for_it() -> None:
    """Prompt caching is no longer a beta, and servers with the same protocol refuse unknown betas."""
    async with asking(ANTHROPIC, ANTHROPIC.whole("Hi"), options={}) as at:
        await at.engine.session(at.model, system_prompt=LONG, tools=[Tool(READ, contents)]).send(QUESTION)
        assert b"cache_control" in at.transport.requests[0].body
        assert "anthropic-beta" not in at.headers()


# -- providers that cache


class CachingProvider:
    """A provider that caches prompts by its own rules and reports the cached tokens. Every other reply calls a
    tool.

    Anthropic caches the part before a breakpoint (`PrefixCache`). The others cache the longest common prefix of
    two requests, from 1024 tokens on and in steps of 128. A token is four bytes.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.marked = PrefixCache()
        self.kept: list[bytes] = []
        self.bodies: list[JsonObject] = []

    async def send(self, request: HttpRequest) -> HttpReply:
        body: JsonObject = msgspec.json.decode(request.body)
        self.bodies.append(body)
        calls = len(self.bodies) % 2
        reply = self.wire.body("" if calls else "Done. " * 20, calls, "tools" if calls else "end")
        name = "usageMetadata" if self.wire is GEMINI else "usage"
        return self.wire._reply_with({**reply, name: self.usage(body)})

    def usage(self, body: JsonObject) -> JsonObject:
        if self.wire is ANTHROPIC:
            read, blocks = self.marked.send(copy.deepcopy(body))
            return {
                "input_tokens": 100 * (blocks - read),
                "cache_read_input_tokens": 100 * read,
                "output_tokens": 9,
            }
        first = {
            name: value for name, value in body.items() if name in ("tools", "instructions", "systemInstruction")
        }
        prompt = msgspec.json.encode([first, *body[self.wire.history]])
        shared = max((common(prompt, kept) for kept in self.kept), default=0) // 4
        self.kept.append(prompt)
        cached = shared // 128 * 128 if shared >= 1024 else 0
        if self.wire is OPENAI:
            details = {"cached_tokens": cached}
            return {"input_tokens": len(prompt) // 4, "input_tokens_details": details, "output_tokens": 9}
        return {
            "promptTokenCount": len(prompt) // 4,
            "cachedContentTokenCount": cached,
            "candidatesTokenCount": 9,
            "totalTokenCount": len(prompt) // 4 + 9,
        }

    async def aclose(self) -> None:
        pass


def common(one: bytes, other: bytes) -> int:
    """The number of bytes in the common prefix of two texts."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def usages(session: Session, turns: int, question: str = QUESTION, **options: Any) -> list[TokenUsage]:
    """Return the usage of the last call of each turn."""
    found: list[TokenUsage] = []
    for number in range(turns):
        reply = await session.send(f"{number}: {question}", **options)
        assert reply.metadata is not None
        assert reply.metadata.usage is not None
        found.append(reply.metadata.usage)
    return found


@each_provider
@row("8.6.1", of="openai")
@row("8.6.7", of="gemini")
@row("8.6.9")
@row("8.9.14")
async def test_most_of_a_long_session_is_read_from_the_cache(wire: Wire) -> None:
    """From turn 2 on, some input is cached, and from turn 5 on more than half, without any configuration."""
    provider = CachingProvider(wire)
    made = wire.make(provider, FakeClock(), options={})
    async with Engine(models=ModelRegistry({}, {}), providers={wire.name: made}, trace=False) as engine:
        session = engine.session(
            f"{wire.name}:{MODELS[wire.name]}", system_prompt=LONG, tools=[Tool(READ, contents)]
        )
        used = await usages(session, 7)
    assert len(provider.bodies) == 14
    assert all(each.cached_input_tokens > 0 for each in used[1:])
    shares = [each.cached_input_tokens / each.total_input_tokens for each in used]
    assert min(shares[4:]) > 0.5, shares


# -- Section 8.5, reasoning tokens.


each_way = pytest.mark.parametrize("streamed", [False, True])

THOUGHT_ABOUT: dict[str, JsonObject] = {
    "openai": {"input_tokens": 12, "output_tokens": 70, "output_tokens_details": {"reasoning_tokens": 50}},
    "anthropic": {"input_tokens": 12, "output_tokens": 70, "output_tokens_details": {"thinking_tokens": 50}},
    "gemini": {"promptTokenCount": 12, "candidatesTokenCount": 20, "thoughtsTokenCount": 50,
        "totalTokenCount": 82},
}  # fmt: skip
"""The usage of a reply of 70 tokens, of which 50 are reasoning."""


def thoughtful(wire: Wire, *, streamed: bool) -> FakeReply:
    """A reply that begins with reasoning and has the usage of THOUGHT_ABOUT."""
    if not streamed:
        body = wire.body("42", 0, "end", "Let me see")
        name = "usageMetadata" if wire is GEMINI else "usage"
        return wire._reply_with({**body, name: THOUGHT_ABOUT[wire.name]})
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
    """Reasoning tokens are a part of the output tokens, which are billed as a whole."""
    async with asking(wire, thoughtful(wire, streamed=streamed)) as at:
        result = await at.ask(streamed=streamed, reasoning_effort="high")
    assert (result.text, result.thinking) == ("42", "Let me see")
    assert result.usage.output_tokens == 70
    assert result.usage.reasoning_tokens == 50
    assert result.usage.total_tokens - result.usage.total_input_tokens == 70


@row("8.5.6", of="anthropic")
async def test_unreported_reasoning_tokens_are_unknown() -> None:
    """Anthropic does not always report how many tokens were thinking."""
    async with asking(ANTHROPIC, ANTHROPIC._reply_with(ANTHROPIC.body("42", 0, "end", "Let me see"))) as at:
        result = await generate(at.model, "?", engine=at.engine, reasoning_effort="high")
    assert (result.thinking, result.usage.reasoning_tokens, result.usage.output_tokens) == ("Let me see", None, 7)


@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
@row("8.5.2", of="openai")
async def test_the_effort_is_sent(effort: str) -> None:
    """Without an effort, the request has no field for reasoning."""
    async with asking(OPENAI, OPENAI.whole("42"), OPENAI.whole("42")) as at:
        await generate(at.model, "?", engine=at.engine, reasoning_effort=effort)
        await generate(at.model, "?", engine=at.engine)
        assert at.body(0)["reasoning"]["effort"] == effort
        assert "reasoning" not in at.body(1)


# -- recorded replies


async def played(wire: Wire, found: list[Exchange]) -> None:
    """Assert that Callboard reads the recorded reasoning and its token count."""

    async def check(at: Asked, exchange: Exchange) -> None:
        result = await at.ask(model=name_of(wire, exchange), streamed=exchange.streamed, max_tool_rounds=0)
        assert result.thinking == exchange.oracle["thinking_text"], exchange.case["id"]
        assert result.usage.reasoning_tokens == reasoning_of(exchange.oracle["usage"]), exchange.case["id"]
        assert (result.usage.reasoning_tokens or 0) <= result.usage.output_tokens

    await play(wire, found, check)


def reasoning_of(usage: JsonObject) -> int | None:
    """The number of reasoning tokens in a provider's usage object."""
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
    """The replies report reasoning tokens or have reasoning text."""

    def reasons(exchange: Exchange) -> bool:
        if not exchange.ok or exchange.paused:
            return False
        return bool(exchange.oracle["thinking_text"] or reasoning_of(exchange.oracle["usage"] or {}))

    await played(wire, exchanges(wire, reasons))
