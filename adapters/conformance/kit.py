"""The kit of an adapter: how checks make it and control its provider.

A check puts *scenes* on a *stage*. Each scene is the provider's answer to one request, in order. For an adapter
over HTTP, `HttpKit` turns scenes into replies of its protocol. An adapter without HTTP brings its own `Kit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import anyio
import msgspec

from callboard.bus.errors import (
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
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import StopReason, TokenUsage

from ..contract import AdapterCapabilities, CanonicalRequest, ProviderAdapter
from ..transport.transport import HttpRequest
from .virtual_time import FakeClock

KEY = "sk-conformance-0123456789"
"""The API key that every adapter under test is given."""

CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("read_file", {"path": "a.txt"}),
    ("list_files", {"path": ".", "deep": True, "limit": 3}),
)
"""The tool calls of a provider that calls tools: name and arguments, in this order."""

TOOLS = tuple(
    ToolDefinition(
        name,
        "A tool",
        {"type": "object", "properties": {key: {} for key in given}, "required": list(given)},
    )
    for name, given in CALLS
)
"""The tools of `CALLS`."""

STOPS = {"end": StopReason.END_TURN, "tools": StopReason.TOOL_USE, "length": StopReason.MAX_TOKENS}
"""The stop reason of each end in a scene."""

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
"""The reasons for a refusal by the provider, and the adapter's exception for each."""


class NotShown(Exception):
    """The provider can't do this, or the kit doesn't show it. The text gives the reason. It is no failure."""


class Says(msgspec.Struct, frozen=True):
    """The provider replies with a thought, a text and the first `calls` of `CALLS`, each in two pieces."""

    text: str = ""
    """The text of the reply."""
    calls: int = 0
    """The number of tool calls in the reply."""
    stop: str = "end"
    """The end of the reply: ``end``, ``tools`` or ``length``."""
    thought: str = ""
    """The text of the reasoning."""
    streamed: bool = True
    """Whether the request asks for a stream."""
    after: int | None = None
    """The number of pieces before `then` happens; None is all of them. A piece is an event of the protocol."""
    then: Literal["end", "hang", "break", "error"] = "end"
    """The event after the pieces. ``end``: the reply ends. ``hang``: nothing follows. ``break``: the connection
    breaks. ``error``: the provider reports an overload.
    """
    pause: float = 0.0
    """The pause before each piece, in virtual seconds."""


class Fails(msgspec.Struct, frozen=True):
    """The provider refuses the request."""

    condition: str
    """The reason, a name of `CONDITIONS`."""
    retry_after: float | None = None
    """The wait that the provider asks for, in seconds."""
    says: str = ""
    """A text in the provider's message."""


class Unreachable(msgspec.Struct, frozen=True):
    """There is no connection to the provider."""


class Silent(msgspec.Struct, frozen=True):
    """The provider accepts the request and never answers."""


Scene: TypeAlias = Says | Fails | Unreachable | Silent
"""The provider's answer to one request."""


@dataclass
class Stage:
    """An adapter in front of its provider."""

    adapter: ProviderAdapter
    """The adapter under test."""
    clock: FakeClock
    """The adapter's clock."""
    model: str
    """The model of the requests, with its prefix."""
    asked: Callable[[], int]
    """Returns the number of requests to the provider."""
    released: Callable[[], bool]
    """Returns whether every connection of the adapter was returned."""
    requests: Sequence[HttpRequest] | None = None
    """The requests that went over HTTP; None for an adapter without HTTP."""
    patience: float = 0.0
    """The time in seconds that real sockets may take to close."""

    @property
    def capabilities(self) -> AdapterCapabilities:
        """The capabilities of the stage's model."""
        return self.adapter.get_capabilities(self.model.partition(":")[2])

    async def must_release(self, message: str) -> None:
        """Require that every connection was returned.

        Args:
            message: The text of the error.

        Raises:
            AssertionError: The adapter still holds a connection.
        """
        deadline = anyio.current_time() + self.patience
        while not self.released():
            if anyio.current_time() >= deadline:
                raise AssertionError(message)
            await anyio.sleep(self.patience / 50)

    def request(self, *messages: Message, **changes: object) -> CanonicalRequest:
        """A request to the model of this stage, with the tools of `CALLS` if the model supports tools.

        Args:
            messages: The messages of the request. Without any, the user says hello.
            changes: Other fields of the request, by name.
        """
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
    """One adapter for the checks."""

    name: str
    """The adapter's name, equal to `adapter.name`."""
    model = "some-model"
    """The name of a model, without its prefix."""
    streams = True
    """Whether the provider streams.

    False: `stream()` yields whole pieces, and `streamed` of a scene is ignored.
    """
    real_time = False
    """Whether the adapter uses real sockets. Checks that would take minutes are then skipped."""

    takes_key = True
    """Whether the provider has keys."""

    names_model = True
    """Whether requests name a model. False for a provider with one model."""

    moment = 1.0
    """The time in seconds, real or virtual, after which all pending work is done."""
    usage: TokenUsage | None = TokenUsage(8, 7, cached_input_tokens=4)
    """The usage in every reply; None if the provider reports none and the adapter estimates it."""

    @abstractmethod
    def stage(self, *scenes: Scene, **config: object) -> AbstractAsyncContextManager[Stage]:
        """The adapter in front of a provider that plays scenes. The adapter is closed at the end.

        The adapter is made with a fake clock and with `KEY`.

        Args:
            scenes: The scenes, one for each request.
            config: Fields of `AdapterConfig`, by name.

        Raises:
            NotShown: The provider can't play a scene. The context manager raises it when it is entered.
        """

    @asynccontextmanager
    async def stage_or_none(self, *scenes: Scene, **config: object) -> AsyncIterator[Stage | None]:
        """The same as `stage`, with None in place of the stage if the provider can't play a scene."""
        async with AsyncExitStack() as stack:
            try:
                at = await stack.enter_async_context(self.stage(*scenes, **config))
            except NotShown:
                at = None
            yield at

    @abstractmethod
    def pieces(self, scene: Says) -> int:
        """The number of pieces of the reply in a scene."""
