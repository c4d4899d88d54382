"""The three providers of the definition of done, and an engine with one of them over a scripted network.

Their replies are written by hand, like replies of the real providers (`tests.support.wires`). `recorded` has real
replies.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

from callboard import Engine, GenerateResult, Json, JsonObject, ModelRegistry, TokenUsage, generate, stream
from callboard.adapters.transport.transport import HttpReply, HttpRequest

from ..support.fake_http import FakeReply, FakeTransport
from ..support.virtual_time import FakeClock
from ..support.wires.anthropic import AnthropicWire
from ..support.wires.gemini import GeminiWire
from ..support.wires.responses import ResponsesWire
from ..support.wires.wire import Wire

OPENAI, ANTHROPIC, GEMINI = ResponsesWire(), AnthropicWire(), GeminiWire()
WIRES: tuple[Wire, ...] = (OPENAI, ANTHROPIC, GEMINI)
MODELS = {"openai": "gpt-5.2", "anthropic": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}

each_provider = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


class TimedTransport(FakeTransport):
    """A transport that records the time of each request, in virtual seconds."""

    def __init__(self, *replies: FakeReply | Exception) -> None:
        super().__init__(*replies)
        self.times: list[float] = []

    @property
    def waits(self) -> list[float]:
        """The seconds from each request to the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]

    async def send(self, request: HttpRequest) -> HttpReply:
        self.times.append(anyio.current_time())
        return await super().send(request)


@dataclass(frozen=True)
class Asked:
    """An engine with one provider."""

    engine: Engine
    model: str
    """The name of the provider's model in the engine."""
    transport: TimedTransport
    """The provider's side of the network."""

    def body(self, number: int = -1) -> JsonObject:
        """The body of a request. Without a number, the last request."""
        return msgspec.json.decode(self.transport.requests[number].body, type=JsonObject)

    async def ask(
        self, prompt: str = "?", *, model: str | None = None, streamed: bool = False, **options: Any
    ) -> GenerateResult:
        """Return the result of `generate`, or that of `stream`. Both must be the same."""
        if streamed:
            return await stream(model or self.model, prompt, engine=self.engine, **options).result()
        return await generate(model or self.model, prompt, engine=self.engine, **options)

    def headers(self, number: int = -1) -> dict[str, str]:
        return {name.lower(): value for name, value in self.transport.requests[number].headers.items()}


@asynccontextmanager
async def asking(wire: Wire, *replies: FakeReply | Exception, **config: object) -> AsyncIterator[Asked]:
    """An engine with one provider.

    Args:
        wire: The provider's wire.
        replies: The replies of the provider, one for each request.
        config: Fields of AdapterConfig. By default, there are no retries and no jitter.
    """
    transport = TimedTransport(*replies)
    made = wire.make(transport, FakeClock(randomness=0.0), **{"max_retries": 0, **config})
    async with Engine(models=ModelRegistry({}, {}), providers={wire.name: made}, trace=False) as engine:
        yield Asked(engine, f"{wire.name}:{MODELS[wire.name]}", transport)


async def answering(arguments: JsonObject) -> str:
    """A tool that always returns R."""
    return "R"


def noting() -> tuple[list[JsonObject], Callable[[JsonObject], Awaitable[str]]]:
    """Return a list and a tool. The tool returns R and appends its arguments to the list."""
    ran: list[JsonObject] = []

    async def note(arguments: JsonObject) -> str:
        ran.append(arguments)
        return "R"

    return ran, note


def counted(usage: TokenUsage) -> tuple[int, ...]:
    """The counts of fresh, cached, cache-writing and output tokens."""
    return (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens, usage.output_tokens)


def holds(body: Json, part: Json) -> bool:
    """Whether a part occurs anywhere in a body. Objects in the body may have more keys than the part."""
    if covers(body, part):
        return True
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return any(holds(value, part) for value in inner)


def covers(found: Json, part: Json) -> bool:
    """Whether a value equals the part. An object may have more keys than the part."""
    if isinstance(part, dict):
        return isinstance(found, dict) and all(name in found and covers(found[name], part[name]) for name in part)
    if isinstance(part, list):
        return isinstance(found, list) and len(found) == len(part) and all(map(covers, found, part))
    return found == part
