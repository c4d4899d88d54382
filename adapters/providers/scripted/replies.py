"""What a script says: replies, as values in Python or as data in models.yaml."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from adapters.requests import settings
from bus.errors import (
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
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, TokenUsage

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


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The provider fails. retry_after: its hint, in seconds. Retried like any other failure of its kind."""

    kind: FailureKind = "server"
    message: str = "the script fails here"
    retry_after: float | None = None

    def error(self) -> AdapterError:
        """A fresh exception of that kind."""
        return _EXCEPTIONS[self.kind](self.message, retry_after_seconds=self.retry_after)


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call. fragments: the text of its arguments as it is streamed; without them, `input` in one piece."""

    name: str
    input: JsonObject = {}
    fragments: tuple[str, ...] = ()

    def pieces(self) -> tuple[str, ...]:
        """The text of the arguments."""
        return self.fragments or (msgspec.json.encode(self.input).decode(),)


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply: thinking, then text, then calls; then its end, or a failure.

    text, thinking: in one piece or in several. stop: why it ends, else ``tool_use`` after calls and ``end_turn``.
    usage: as reported; without it, it is estimated. delay: seconds before anything comes. pace: seconds before
    each piece and before the end. fails: instead of the end, or of everything if nothing is said before it.

    For Python only: raises, an exception to fail with, also one that no adapter should raise; pause, awaited
    before each piece and before the end.
    """

    text: str | tuple[str, ...] = ()
    thinking: str | tuple[str, ...] = ()
    signature: str | None = None
    calls: tuple[Call, ...] = ()
    stop: StopReason | None = None
    usage: TokenUsage | None = None
    delay: float = 0.0
    pace: float = 0.0
    fails: Failure | None = None
    raises: Exception | None = None
    pause: Callable[[], Awaitable[object]] | None = None

    @property
    def stop_reason(self) -> StopReason:
        """Why it ends."""
        return self.stop or (StopReason.TOOL_USE if self.calls else StopReason.END_TURN)

    @property
    def failure(self) -> Exception | None:
        """What it ends with instead."""
        return self.raises or (self.fails.error() if self.fails is not None else None)


def pieces_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """A text as its pieces."""
    return (text,) if isinstance(text, str) else text


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`AdapterConfig.options` of type ``scripted``. A reply that is only text may be a string. repeat: the script
    begins anew after its end; otherwise a call more than there are replies fails."""

    replies: tuple[str | Reply, ...] = ()
    repeat: bool = False


def read_options(options: Mapping[str, Json], name: str) -> ScriptedOptions:
    """Raises ConfigurationError that names the option."""
    return settings.read_options(options, ScriptedOptions, name=name, type_name="scripted")
