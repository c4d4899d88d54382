"""The replies of a script, as values in Python or as data in models.yaml."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage

from ...requests import settings

FailureKind: TypeAlias = Literal[
    "access_denied",
    "auth",
    "content_filter",
    "context_overflow",
    "invalid_request",
    "network",
    "not_found",
    "overloaded",
    "quota",
    "rate_limit",
    "server",
    "timeout",
]

_EXCEPTIONS: Mapping[str, type[AdapterError]] = {
    "access_denied": AccessDeniedError,
    "auth": AuthError,
    "content_filter": ContentFilterError,
    "context_overflow": ContextOverflowError,
    "invalid_request": InvalidRequestError,
    "network": NetworkError,
    "not_found": NotFoundError,
    "overloaded": OverloadedError,
    "quota": QuotaExceededError,
    "rate_limit": RateLimitError,
    "server": ServerError,
    "timeout": RequestTimeoutError,
}


class ScriptedFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of the provider. It is retried like any other of its kind."""

    kind: FailureKind = "server"
    """The kind of the failure."""
    message: str = "the script fails here"
    """The provider's message."""
    retry_after: float | None = None
    """The wait that the provider asks for, in seconds."""

    def error(self) -> AdapterError:
        """A new exception of that kind."""
        return _EXCEPTIONS[self.kind](self.message, retry_after_seconds=self.retry_after)


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call."""

    name: str
    """The tool's name."""
    input: JsonObject = {}
    """The arguments."""
    fragments: tuple[str, ...] = ()
    """The text of the arguments as it is streamed; defaults to `input` in one piece."""

    def pieces(self) -> tuple[str, ...]:
        """The text of the arguments."""
        return self.fragments or (msgspec.json.encode(self.input).decode(),)


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply: thinking, then text, then calls, and then its end or a failure."""

    text: str | tuple[str, ...] = ()
    """The text, in one piece or in several."""
    thinking: str | tuple[str, ...] = ()
    """The reasoning, in one piece or in several."""
    signature: str | None = None
    """The signature of the reasoning."""
    calls: tuple[ScriptedCall, ...] = ()
    """The tool calls."""
    stop: StopReason | None = None
    """The stop reason; defaults to ``tool_use`` after calls, and otherwise ``end_turn``."""
    usage: TokenUsage | None = None
    """The reported usage; None leads to an estimate."""
    delay: float = 0.0
    """The time before the first piece, in seconds."""
    pace: float = 0.0
    """The time before each piece and before the end, in seconds."""
    fails: ScriptedFailure | None = None
    """The failure in place of the end. Without any content it is the whole reply."""
    raises: Exception | None = None
    """For Python only: an exception to raise, also one that adapters should not raise."""
    pause: Callable[[], Awaitable[object]] | None = None
    """For Python only: awaited before each piece and before the end."""

    @property
    def stop_reason(self) -> StopReason:
        """The stop reason, given or default."""
        return self.stop or (StopReason.TOOL_USE if self.calls else StopReason.END_TURN)

    @property
    def failure(self) -> Exception | None:
        """The failure at its end."""
        return self.raises or (self.fails.error() if self.fails is not None else None)


def pieces_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `AdapterConfig.options` of type ``scripted``."""

    replies: tuple[str | ScriptedReply, ...] = ()
    """The replies in order. A reply that is only text may be a string."""
    repeat: bool = False
    """Whether the script starts again after its end. Otherwise a call after it fails."""


def read_options(options: Mapping[str, Json], name: str) -> ScriptedOptions:
    """Parse the options. Raises ConfigurationError with the option."""
    return settings.read_options(options, ScriptedOptions, name=name, type_name="scripted")
