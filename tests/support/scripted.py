"""The scripted adapter for tests of the layers above the adapters. Each class has its own script."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    AdapterConfig,
    CanonicalRequest,
    Message,
    TokenUsage,
    ToolDefinition,
)
from callboard.adapters.providers import scripted
from callboard.adapters.providers.scripted import ScriptedCall, ScriptedReply
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.values.base import JsonObject
from callboard.engine import Tool

USAGE = TokenUsage(10, 5)
CAPABILITIES = AdapterCapabilities(
    supports_images=True, supports_tools=True, supports_structured_output=True, supports_streaming_tool_calls=True,
    supports_parallel_tool_calls=True,
)  # fmt: skip


class Say:
    """A reply: text fragments, then tool calls, then an optional failure."""

    def __init__(
        self,
        *fragments: str,
        calls: Sequence[tuple[str, JsonObject]] = (),
        fails: Exception | None = None,
        pause: Callable[[], Awaitable[object]] | None = None,
        usage: TokenUsage = USAGE,
        thinking: str = "",
    ) -> None:
        self.reply = ScriptedReply(
            text=fragments, thinking=(thinking,) if thinking else (),
            calls=tuple(ScriptedCall(name, arguments) for name, arguments in calls), usage=usage, raises=fails,
            pause=pause,
        )  # fmt: skip


class ScriptedAdapter(scripted.ScriptedAdapter):
    """Plays its script, one reply for each call, without retries. The script continues after a restart."""

    script: list[Say]
    capabilities: AdapterCapabilities = CAPABILITIES

    def __init__(self, config: AdapterConfig, *, name: str = "scripted", clock: Clock = SYSTEM_CLOCK) -> None:
        config = msgspec.structs.replace(config, max_retries=0)
        super().__init__(
            config, name=name, clock=clock, replies=lambda request: self.say(request).reply,
            capabilities=type(self).capabilities,
        )  # fmt: skip
        self.closed = False

    def say(self, request: CanonicalRequest) -> Say:
        return type(self).script.pop(0)

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        return 10 * len(messages)

    async def close(self) -> None:
        await super().close()
        self.closed = True


def scripted_type(
    *replies: Say,
    base: type[ScriptedAdapter] = ScriptedAdapter,
    capabilities: AdapterCapabilities = CAPABILITIES,
) -> str:
    """A type name for models.yaml or an AdapterEntry whose adapter plays these replies."""
    return adapter_type(type("Scripted", (base,), {"script": list(replies), "capabilities": capabilities}))


async def add(arguments: dict[str, int]) -> int:
    return arguments["a"] + arguments["b"]


ADD = Tool(ToolDefinition("add", "Adds two numbers"), add)  # type: ignore[arg-type]
CALLS_ADD = Say("Let me see.", calls=[("add", {"a": 1, "b": 2})])


def noting(asked: list[CanonicalRequest]) -> type[ScriptedAdapter]:
    """A scripted adapter that appends its requests to a list, also after restarts."""

    class Noting(ScriptedAdapter):
        def say(self, request: CanonicalRequest) -> Say:
            asked.append(request)
            return super().say(request)

    return Noting


def adapter_type(made: Callable[..., object]) -> str:
    """A type name for an adapter's class or factory. It is valid until the test ends."""
    name = f"Scripted{next(_numbers)}"
    _names.append(name)
    globals()[name] = made
    return f"{__name__}:{name}"


_numbers = itertools.count()
_names: list[str] = []


@contextmanager
def own_types() -> Iterator[None]:
    """Remove the names of `adapter_type` after the block.

    They keep whole engines with their tasks alive, and asyncio goes through all tasks when it closes a loop.
    """
    kept = len(_names)
    yield
    for name in _names[kept:]:
        del globals()[name]
    del _names[kept:]
