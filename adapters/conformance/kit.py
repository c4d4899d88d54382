"""What the checks need to know of an adapter: how to make it, and how its provider is made to behave.

A check puts *scenes* on a *stage*: what the provider does with the first request, with the second, and so on. For
an adapter over HTTP, `HttpKit` turns scenes into replies of its protocol; for any other, a Kit of its own does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
import msgspec

from adapters.contract import AdapterCapabilities, CanonicalRequest, ProviderAdapter
from adapters.transport.transport import HttpRequest
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from bus.values.json import JsonObject
from bus.values.messages import Message, ToolDefinition
from bus.values.usage import StopReason, TokenUsage

from .virtual_time import FakeClock

KEY = "sk-conformance-0123456789"
"""The API key that every adapter under test is given."""

CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("read_file", {"path": "a.txt"}),
    ("list_files", {"path": ".", "deep": True, "limit": 3}),
)
"""The tool calls that a provider makes when it makes any: name and arguments, in this order."""

TOOLS = tuple(
    ToolDefinition(
        name,
        "A tool",
        {"type": "object", "properties": {key: {} for key in given}, "required": list(given)},
    )
    for name, given in CALLS
)
"""The tools that CALLS call."""

STOPS = {"end": StopReason.END_TURN, "tools": StopReason.TOOL_USE, "length": StopReason.MAX_TOKENS}

CONDITIONS: dict[str, type[AdapterError]] = {
    "rate limit": RateLimitError,
    "overload": OverloadedError,
    "quota": QuotaExceededError,
    "bad key": AuthError,
    "forbidden": AccessDeniedError,
    "no model": NotFoundError,
    "overflow": ContextOverflowError,
    "bad request": InvalidRequestError,
    "server": ServerError,
}
"""Why a provider refuses, and the exception that it must become."""


class NotShown(Exception):
    """The provider has no such thing, or the kit doesn't say how it looks; the text says which. Not a failure."""


class Says(msgspec.Struct, frozen=True):
    """The provider replies with a thought, a text and the first `calls` of CALLS, each in two pieces.

    stop: ``end``, ``tools`` or ``length``. streamed: whether the request asks for a stream. after: of how many of
    the reply's pieces (of a protocol: its events) `then` happens, None for all of them; ``break`` is a connection
    that breaks, ``error`` the provider's own word that it is overloaded. pause: virtual seconds before each piece.
    """

    text: str = ""
    calls: int = 0
    stop: str = "end"
    thought: str = ""
    streamed: bool = True
    after: int | None = None
    then: Literal["end", "hang", "break", "error"] = "end"
    pause: float = 0.0


class Fails(msgspec.Struct, frozen=True):
    """The provider refuses: one of CONDITIONS. retry_after: its hint, in seconds. says: put into its message."""

    condition: str
    retry_after: float | None = None
    says: str = ""


class Unreachable(msgspec.Struct, frozen=True):
    """There is no connection to the provider."""


class Silent(msgspec.Struct, frozen=True):
    """The provider takes the request and never answers."""


Scene: TypeAlias = Says | Fails | Unreachable | Silent
"""What a provider does with one request."""


@dataclass
class Stage:
    """An adapter before its provider.

    clock: the adapter's. model: to be asked, with its prefix. asked: how many requests the provider got. released:
    whether every connection that the adapter held is given back. requests: what went over HTTP; None for an
    adapter without. patience: for how many seconds real sockets may take to be closed.
    """

    adapter: ProviderAdapter
    clock: FakeClock
    model: str
    asked: Callable[[], int]
    released: Callable[[], bool]
    requests: Sequence[HttpRequest] | None = None
    patience: float = 0.0

    @property
    def capabilities(self) -> AdapterCapabilities:
        """Of the model that is asked."""
        return self.adapter.get_capabilities(self.model.partition(":")[2])

    async def must_release(self, message: str) -> None:
        """Raise AssertionError with that message unless every connection is given back."""
        deadline = anyio.current_time() + self.patience
        while not self.released():
            if anyio.current_time() >= deadline:
                raise AssertionError(message)
            await anyio.sleep(self.patience / 50)

    def request(self, *messages: Message, **changes: object) -> CanonicalRequest:
        """A request to that model, with the tools of CALLS if it takes tools."""
        fields: dict[str, object] = {
            "request_id": "req_1",
            "messages": messages or (Message.user("Hello"),),
            "model": self.model,
            "max_output_tokens": 64,
            "tools": TOOLS if self.capabilities.supports_tools else (),
            "message_id": "msg_1",
            **changes,
        }
        return CanonicalRequest(**fields)  # type: ignore[arg-type]  # a check names its own fields


class Kit(ABC):
    """One adapter, for the checks.

    name: as `adapter.name` says it. model: a model to ask, without its prefix. usage: what every reply reports;
    None if the provider reports none, and the adapter estimates it. streams: False if `stream()` makes the plain
    call and gives its events in whole pieces; `streamed` of a scene then means nothing.
    """

    name: str
    model = "some-model"
    streams = True
    real_time = False
    """The adapter waits for real sockets; what would take minutes is then not checked."""

    takes_key = True
    """False for a provider that has no keys."""

    names_model = True
    """False for a provider that has one model, so that its requests name none."""

    moment = 1.0
    """Seconds of that time in which anything that can happen has happened."""
    usage: TokenUsage | None = TokenUsage(8, 7, cached_input_tokens=4)

    @abstractmethod
    def stage(self, *scenes: Scene, **config: object) -> AbstractAsyncContextManager[Stage]:
        """The adapter, made with a fake clock, the KEY and these fields of AdapterConfig, before a provider that
        plays the scenes, one for each request. It is closed at the end.

        Raises NotShown, when entered, for a scene that the provider can't play.
        """

    @asynccontextmanager
    async def stage_or_none(self, *scenes: Scene, **config: object) -> AsyncIterator[Stage | None]:
        """The same, or None for what the provider can't play."""
        async with AsyncExitStack() as stack:
            try:
                at = await stack.enter_async_context(self.stage(*scenes, **config))
            except NotShown:
                at = None
            yield at

    @abstractmethod
    def pieces(self, scene: Says) -> int:
        """Of how many pieces that reply consists."""
