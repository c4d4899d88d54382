"""Every exception that Callboard raises.

    CallboardError
    ├── ConfigurationError            models.yaml, keys, names: mend the configuration
    ├── AdmissionError                the engine is behind; try later (never counted against a provider)
    ├── SessionBusy                   too many sends wait for one session, or another node is at work on it
    ├── NoTurnRunning                 nothing is under way that could be steered: send the message instead
    ├── StoreError                    the trace file can't be used
    ├── WrongLoop                     an object used from another thread or event loop than its own
    ├── ActorStopped, MailboxFull, DeadlineExceeded     an actor didn't answer
    ├── TaskCancelled                 a task below an actor was cancelled through its handle
    ├── SupervisorEscalated           a supervisor gave up; its whole tree is down
    ├── UnknownStream                 no such stream log, or no more
    └── AdapterError                  a call failed; `error_class` says how
        ├── AuthError
        │   └── AccessDeniedError
        ├── RateLimitError
        │   ├── OverloadedError
        │   ├── QuotaExceededError
        │   └── RateLimitWaitError        raised before any network
        ├── ServerError
        ├── NetworkError
        │   ├── RequestTimeoutError
        │   ├── StreamError
        │   └── OutcomeUnknownError       it may have been carried out, and be billed
        ├── ContextOverflowError
        ├── InvalidRequestError
        │   ├── NotFoundError
        │   ├── ContentFilterError
        │   └── CapabilityError           raised before any network
        │       ├── UnsupportedToolChoiceError
        │       └── PromptTooLongError
        ├── CancelledError
        └── NoModelAvailable              raised before any network

Beside them there is `adapters.embeddings.PartialEmbeddingError`, an AdapterError that holds several.

`error_table` says of each AdapterError its class, whether it is retried, and against whom it counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .values.content import ContentBlock
    from .values.turn_so_far import TurnSoFar
    from .values.usage import Cost, TokenUsage


class CallboardError(Exception):
    """The root of all our exceptions."""

    turn: TurnSoFar | None = None
    """The turn that the exception ended, with everything that the turn had brought; None outside of a turn."""


class ConfigurationError(CallboardError):
    """The configuration is wrong; the text names the file, the key and what was expected."""


class AdmissionError(CallboardError):
    """The engine did not admit a new turn: its trace writer is too far behind, or, in a cluster, it can't be asked
    whose the session is. The text says which.
    """


class SessionBusy(CallboardError):
    """More than 16 sends wait for one session; or, in a cluster, another node is at work on it."""


class NoTurnRunning(CallboardError):
    """A message was to steer a turn, and no turn takes it; the text says why, and what to do instead."""


class SessionTakenOver(CallboardError):
    """Another engine has resumed this session since, and goes on with it; the text says how to go on here."""


class StoreError(CallboardError):
    """A trace file can't be opened or used; the text names it and says what to do."""


class StoreUnavailable(StoreError):
    """A trace file can't be used now: no room, no right, locked, damaged, gone. It may be tried again later.

    Args:
        message: The text.
        reopen: Whether the file has to be opened again before the next try.
    """

    def __init__(self, message: str, *, reopen: bool = True) -> None:
        super().__init__(message)
        self.reopen = reopen


class WrongLoop(CallboardError):
    """An object was used from another thread or event loop than the one it belongs to."""


class ActorStopped(CallboardError):
    """The actor that was asked has stopped or crashed, and will not answer."""


class MailboxFull(CallboardError):
    """The actor's mailbox is full; the message was not accepted."""


class DeadlineExceeded(CallboardError):
    """An actor did not answer in time."""


class TaskCancelled(CallboardError):
    """A task was cancelled through its handle, and has no result."""


class SupervisorEscalated(CallboardError):
    """A supervisor stopped everything below it, because a child could not be kept alive."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """The child that could not be kept alive, and why, in words."""


class UnknownStream(CallboardError, LookupError):
    """No log of that stream exists: it was never opened, or its time is over. The text says what to do."""


class ErrorClass(StrEnum):
    """The closed set of error classes that routing and analytics rely on."""

    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    SERVER_ERROR = "server_error"
    NETWORK = "network"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    CANCELLED = "cancelled"
    OTHER = "other"


class AdapterError(CallboardError):
    """A call failed.

    An exception of a turn has `turn` as well, see `Session.send`.

    Args:
        message: The text for people; it never holds a key.
        provider: The adapter's name.
        provider_status: The HTTP status, if there was one.
        provider_code: The provider's own type or code.
        provider_message: The provider's own words, or else the message.
        provider_param: The part of the request that the provider complains of, if it names one.
        retryable: Whether the failure is of a passing kind, so that the caller may try again later. None takes the
            class's word.
        retry_after_seconds: The provider's hint how long to wait, in seconds, if it gave one.
        request_id: Our id of the request.
        provider_request_id: The provider's id of the request, for its support.
    """

    error_class: ClassVar[ErrorClass] = ErrorClass.OTHER
    """The class of the error, for routing and analytics."""
    default_retryable: ClassVar[bool] = False
    """Whether a failure of this class is of a passing kind."""

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        provider_status: int | None = None,
        provider_code: str | None = None,
        provider_message: str = "",
        provider_param: str | None = None,
        retryable: bool | None = None,
        retry_after_seconds: float | None = None,
        request_id: str = "",
        provider_request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.provider_status = provider_status
        self.provider_code = provider_code
        self.provider_message = provider_message or message
        self.provider_param = provider_param
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id
        self.provider_request_id = provider_request_id
        self.content: tuple[ContentBlock, ...] = ()
        """The content that had arrived when the call failed."""
        self.usage: TokenUsage | None = None
        """The tokens that the call had used; None if nothing is known of them."""
        self.cost: Cost | None = None
        """The cost of the call, set by the engine; None where an adapter is used alone. The error's `turn` has the
        cost of all calls of the turn."""


class AuthError(AdapterError):
    """The key is missing, wrong or expired."""

    error_class = ErrorClass.AUTH


class AccessDeniedError(AuthError):
    """The key is good, but it may not do this."""


class RateLimitError(AdapterError):
    """Too many requests or tokens for this key."""

    error_class = ErrorClass.RATE_LIMIT
    default_retryable = True


class OverloadedError(RateLimitError):
    """The provider has too much to do, for everyone."""


class QuotaExceededError(RateLimitError):
    """The account has no credit left; waiting does not help."""

    default_retryable = False


class RateLimitWaitError(RateLimitError):
    """The call would have waited too long for a rate limit. Nothing was sent."""

    default_retryable = False


class ServerError(AdapterError):
    """The provider failed."""

    error_class = ErrorClass.SERVER_ERROR
    default_retryable = True


class NetworkError(AdapterError):
    """The provider could not be reached, or the connection broke."""

    error_class = ErrorClass.NETWORK
    default_retryable = True
    before_sending = False
    """Whether no byte of the request had left, so that surely nothing of it was carried out."""


class RequestTimeoutError(NetworkError):
    """Something took longer than allowed; the text says what."""


class StreamError(NetworkError):
    """A reply broke off, or is no reply of its protocol."""


class OutcomeUnknownError(NetworkError):
    """A request that must not be carried out twice was sent, and its outcome is not known.

    It may have been carried out and be billed. So it is not sent again, and no other model stands in. The
    exception's cause is the failure itself.
    """

    default_retryable = False


class ContextOverflowError(AdapterError):
    """The request is larger than the model's context window."""

    error_class = ErrorClass.CONTEXT_OVERFLOW


class InvalidRequestError(AdapterError):
    """The provider refuses the request as it is."""

    error_class = ErrorClass.INVALID_REQUEST


class NotFoundError(InvalidRequestError):
    """The model, or the address, does not exist."""


class ContentFilterError(InvalidRequestError):
    """The provider refuses the request for its content."""


class GuardrailStopped(ContentFilterError):
    """A guardrail of the host's stopped the reply. `content` is what it had let pass, and `cost` that of the call.

    No other model is asked, and nothing is repeated.
    """


class CapabilityError(InvalidRequestError):
    """The model can't do what the request asks; found before anything was sent."""


class UnsupportedToolChoiceError(CapabilityError):
    """The model can't be told to choose tools that way."""


class PromptTooLongError(CapabilityError):
    """The prompt is surely larger than the model's context window, as estimated before anything was sent."""


class NoModelAvailable(AdapterError):
    """All models for the call are unavailable; the text says why. `retryable` is set.

    `retry_after_seconds` is the time until the first of them may be tried again, if that is known.
    """


class CancelledError(AdapterError):
    """The call was cancelled. `content`, `usage` and `cost` hold the content that had arrived, its tokens and its
    cost.
    """

    error_class = ErrorClass.CANCELLED
