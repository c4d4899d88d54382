"""Section 8.6, prompt caching."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from callboard import (
    Engine,
    Json,
    JsonObject,
    Message,
    ModelRegistry,
    Session,
    TokenUsage,
    Tool,
    ToolDefinition,
    generate,
    stream,
)
from callboard.adapters.transport.transport import HttpReply, HttpRequest

from ..adapters.anthropic.test_prompt_caching import PrefixCache
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


# -- what is counted

COUNTED: dict[str, tuple[JsonObject, tuple[int, int, int]]] = {
    "openai": ({"input_tokens": 2000, "input_tokens_details": {"cached_tokens": 1500}, "output_tokens": 9},
        (500, 1500, 0)),
    "anthropic": ({"input_tokens": 100, "cache_read_input_tokens": 1500, "cache_creation_input_tokens": 400,
        "output_tokens": 9}, (100, 1500, 400)),
    "gemini": ({"promptTokenCount": 2000, "cachedContentTokenCount": 1500, "candidatesTokenCount": 9,
        "totalTokenCount": 2009}, (500, 1500, 0)),
}  # fmt: skip
"""What is reported, and the input that was new, read from a cache and written to one: never counted twice."""


@each_provider
@row("8.6.2", of="openai")
@row("8.6.5", of="anthropic")
@row("8.6.8", of="gemini")
async def test_cached_tokens_are_counted_apart(wire: Wire) -> None:
    reported, counted = COUNTED[wire.name]
    name = "usageMetadata" if wire is GEMINI else "usage"
    async with asking(wire, wire._whole({**wire.body("Hi", 0, "end"), name: reported})) as at:
        usage = (await generate(at.model, "Hi", engine=at.engine)).usage
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens) == counted
    assert (usage.total_input_tokens, usage.output_tokens) == (2000, 9)


@recorded
@each_provider
@row("8.6.2", of="openai")
@row("8.6.5", of="anthropic")
@row("8.6.8", of="gemini")
@row("8.9.14")
async def test_recorded_cache_reads_are_counted(wire: Wire) -> None:
    """As the provider told them, whole or streamed."""
    found = exchanges(wire, lambda exchange: exchange.ok and cached_of(exchange.oracle["usage"] or {}) > 0)

    async def check(at: Asked, exchange: Exchange) -> None:
        result = await at.ask(model=name_of(wire, exchange), streamed=exchange.streamed, max_tool_rounds=0)
        assert result.usage.cached_input_tokens == cached_of(exchange.oracle["usage"]), exchange.case["id"]

    await play(wire, found, check)


def cached_of(usage: JsonObject) -> int:
    """As a provider tells it."""
    match usage:
        case {"input_tokens_details": {"cached_tokens": count}}:
            return int(count)
        case {"cache_read_input_tokens": int(count)} | {"cachedContentTokenCount": int(count)}:
            return count
        case _:
            return 0


# -- Anthropic's breakpoints


async def anthropic_bodies(turns: int = 2, **settings: object) -> tuple[list[JsonObject], list[dict[str, str]]]:
    """The requests of a session with a long system prompt and a tool, and their headers."""
    options: dict[str, Json] = dict(settings.pop("options", {}))  # type: ignore[call-overload]
    async with asking(ANTHROPIC, *[ANTHROPIC.whole("Hi") for _ in range(turns)], options=options) as at:
        session = at.engine.session(at.model, system_prompt=LONG, tools=[Tool(READ, contents)])
        for _ in range(turns):
            await session.send(QUESTION, **settings)  # type: ignore[arg-type]
        return [at.body(n) for n in range(turns)], [at.headers(n) for n in range(turns)]


def is_marked(block: Json) -> bool:
    return isinstance(block, dict) and "cache_control" in block


@row("8.6.3", of="anthropic")
async def test_breakpoints_stand_on_tools_system_and_conversation() -> None:
    """Nobody asked for them; at most four; the conversation's moves on with it."""
    for body in (await anthropic_bodies())[0]:
        assert is_marked(body["tools"][-1])
        assert is_marked(body["system"][-1])
        assert is_marked(body["messages"][-1]["content"][-1])
        assert msgspec.json.encode(body).count(b'"cache_control"') <= 4


@row("8.6.4", of="anthropic")
async def test_no_beta_is_named_for_it() -> None:
    """It left its beta; servers that speak the protocol refuse what they don't know."""
    _, headers = await anthropic_bodies()
    assert [each for each in headers if "anthropic-beta" in each] == []


@pytest.mark.parametrize(
    "settings",
    [{"options": {"auto_cache": False}}, {"provider_options": {"anthropic": {"auto_cache": False}}}],
    ids=["configured", "asked"],
)
@row("8.6.6", of="anthropic")
async def test_it_can_be_switched_off(settings: dict[str, Json]) -> None:
    """For an adapter, and for a request."""
    bodies, _ = await anthropic_bodies(**settings)
    assert b"cache_control" not in msgspec.json.encode(bodies)
    assert b"auto_cache" not in msgspec.json.encode(bodies)


# -- providers that cache


class CachingProvider:
    """A provider that keeps prompts by its own rules, and says what it read; every other reply calls a tool.

    Anthropic reads what stands before a breakpoint (`PrefixCache`); the others read the longest beginning that two
    requests share, from 1024 tokens on and in steps of 128. A token is four bytes.
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
        return self.wire._whole({**reply, name: self.usage(body)})

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
    """How many bytes two texts begin with together."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def usages(session: Session, turns: int, question: str = QUESTION, **options: Any) -> list[TokenUsage]:
    """What each turn of an agent used, of its last call."""
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
    """Something from turn 2 on, more than half from turn 5 on; nobody has configured anything."""
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


@pytest.mark.parametrize("wire", [OPENAI, GEMINI], ids=lambda wire: wire.name)
@row("8.6.1", of="openai")
@row("8.6.7", of="gemini")
async def test_each_request_begins_as_the_one_before(wire: Wire) -> None:
    """What caching by itself needs; streamed or not, and no mark of ours stands in it."""
    async with asking(wire, wire.whole("One."), wire.streamed("Two."), wire.whole("Three.")) as at:
        first = await generate(at.model, "1", engine=at.engine, system_prompt=LONG)
        second = await stream(
            at.model, messages=[*first.messages, Message.user("2")], engine=at.engine, system_prompt=LONG
        ).result()
        await generate(
            at.model, messages=[*second.messages, Message.user("3")], engine=at.engine, system_prompt=LONG
        )
        bodies = [at.body(n) for n in range(3)]
    histories = [body.pop(wire.history) for body in bodies]
    assert histories[1][: len(histories[0])] == histories[0]
    assert histories[2][: len(histories[1])] == histories[1]
    assert b"cache_control" not in msgspec.json.encode([bodies, histories])
    bodies[1].pop("stream", None)
    assert bodies[0] == bodies[1] == bodies[2]


def test_the_simulated_provider_reads_what_was_there() -> None:
    """A changed beginning is not found again, and a short prompt is never kept."""
    provider = CachingProvider(OPENAI)
    long: JsonObject = {"instructions": LONG, "input": [{"role": "user", "content": "1"}]}
    assert provider.usage(long)["input_tokens_details"] == {"cached_tokens": 0}
    assert provider.usage(long)["input_tokens_details"]["cached_tokens"] > 1000
    assert provider.usage({**long, "instructions": f"!{LONG}"})["input_tokens_details"] == {"cached_tokens": 0}
    short: JsonObject = {"instructions": "", "input": [{"role": "user", "content": "1"}]}
    assert [provider.usage(short)["input_tokens_details"] for _ in range(2)] == [{"cached_tokens": 0}] * 2
