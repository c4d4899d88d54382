"""Exceptions of Callboard, and the codes of warnings. docs/errors.md has a table of them.

    CallboardError
    ├── ConfigurationError            models.yaml, keys or names are wrong
    ├── AdmissionError                the engine is behind; never counted against a provider
    ├── SessionBusy                   too many sends wait for one session, or another node works on it
    ├── NoTurnRunning                 no turn is in progress to steer; send the message instead
    ├── StoreError                    the trace file can't be used
    ├── WrongLoop                     an object used from another thread or event loop than its own
    ├── ActorStopped, MailboxFull, DeadlineExceeded     an actor didn't answer
    ├── TaskCancelled                 a task below an actor was cancelled through its handle
    ├── SupervisorEscalated           a supervisor gave up; its whole tree is down
    ├── UnknownStream                 the stream log does not exist, or no longer exists
    └── AdapterError                  a call failed; `error_class` gives the class
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
        │   └── OutcomeUnknownError       the provider may have run and billed the request
        ├── ContextOverflowError
        ├── InvalidRequestError
        │   ├── NotFoundError
        │   ├── ContentFilterError
        │   └── CapabilityError           raised before any network
        │       ├── UnsupportedToolChoiceError
        │       └── PromptTooLongError
        ├── CancelledError
        └── NoModelAvailable              raised before any network

`adapters.embeddings.PartialEmbeddingError` is an AdapterError that holds several.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .events.sessions import TurnSoFar
    from .values.base import Json
    from .values.content import ContentBlock
    from .values.usage import Cost, TokenUsage


class CallboardError(Exception):
    """The root of all Callboard exceptions."""

    turn: TurnSoFar | None = None
    """The turn that the exception ended, with the content received so far; None outside of a turn."""


class ConfigurationError(CallboardError):
    """The configuration is wrong; the text names the file, the key and the expected value."""


class AdmissionError(CallboardError):
    """The engine did not admit a new turn.

    The trace writer is too far behind. In a cluster, it may also mean that the session's owner can't be
    determined.
    """


class SessionBusy(CallboardError):
    """More than 16 sends wait for one session, or another node of the cluster works on it."""


class NoTurnRunning(CallboardError):
    """No turn accepts the steering message. The text gives the reason and the alternative."""


class SessionTakenOver(CallboardError):
    """Another engine has resumed this session and now owns it. The text explains how to continue in this
    engine.
    """


class StoreError(CallboardError):
    """A trace file can't be opened or used. The text names the file and the remedy."""


class StoreUnavailable(StoreError):
    """A trace file can't be used now: the disk is full, or the file is locked, damaged, missing or forbidden.
    Retry later.

    Args:
        message: The text.
        reopen: Whether the file must be opened again before the next try.
    """

    def __init__(self, message: str, *, reopen: bool = True) -> None:
        super().__init__(message)
        self.reopen = reopen


class WrongLoop(CallboardError):
    """An object was used in another thread or event loop than its own."""


class ActorStopped(CallboardError):
    """The actor has stopped or crashed and will not answer."""


class MailboxFull(CallboardError):
    """The actor's mailbox is full; the message was not accepted."""


class DeadlineExceeded(CallboardError):
    """An actor did not answer in time."""


class TaskCancelled(CallboardError):
    """A task was cancelled through its handle, and has no result."""


class SupervisorEscalated(CallboardError):
    """A supervisor stopped all its children, because one of them could not be kept running."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """A text about the child that could not be kept running, and the reason."""


class UnknownStream(CallboardError, LookupError):
    """No log of that stream exists: it was never opened, or it has expired. The text names the remedy."""


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

    An exception that a turn raises also has the attribute `turn`, see `Session.send`.

    Args:
        message: The text for people. It never contains a key.
        provider: The adapter's name.
        provider_status: The HTTP status, if there was one.
        provider_code: The provider's own type or code.
        provider_message: The provider's own text; defaults to the message.
        provider_param: The request field that the provider rejects, if it names one.
        retryable: Whether the failure is temporary, so that the caller may retry later. None uses the class's
            default.
        retry_after_seconds: The wait that the provider requests, in seconds, if it gave one.
        request_id: Callboard's id of the request.
        provider_request_id: The provider's id of the request, for its support.
    """

    error_class: ClassVar[ErrorClass] = ErrorClass.OTHER
    """The class of the error, for routing and analytics."""
    default_retryable: ClassVar[bool] = False
    """Whether a failure of this class is temporary."""

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
        self.provider_details: Mapping[str, Json] = {}
        """More fields of the provider's error, such as Groq's ``failed_generation``. They may quote the
        conversation, and are not in the trace.
        """
        self.content: tuple[ContentBlock, ...] = ()
        """The content that had arrived when the call failed."""
        self.usage: TokenUsage | None = None
        """The tokens that the call used; None if unknown."""
        self.cost: Cost | None = None
        """The cost of the call, set by the engine; None if an adapter is used alone.

        The error's `turn` has the cost of all calls of the turn.
        """


class AuthError(AdapterError):
    """The key is missing, wrong or expired."""

    error_class = ErrorClass.AUTH


class AccessDeniedError(AuthError):
    """The key is valid but lacks a permission."""


class RateLimitError(AdapterError):
    """Too many requests or tokens for this key."""

    error_class = ErrorClass.RATE_LIMIT
    default_retryable = True


class OverloadedError(RateLimitError):
    """The provider is overloaded for all its users."""


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
    """True if no byte of the request was sent, so the provider can't have run it."""


class RequestTimeoutError(NetworkError):
    """A step took longer than allowed. The text names the step."""


class StreamError(NetworkError):
    """A reply broke off, or does not follow its protocol."""


class OutcomeUnknownError(NetworkError):
    """A request that must not run twice was sent, and its outcome is unknown.

    The provider may have run and billed the request. So it is not sent again, and no fallback model is tried. The
    exception's cause is the original failure.
    """

    default_retryable = False


class ContextOverflowError(AdapterError):
    """The request is larger than the model's context window."""

    error_class = ErrorClass.CONTEXT_OVERFLOW


class InvalidRequestError(AdapterError):
    """The provider rejects the request."""

    error_class = ErrorClass.INVALID_REQUEST


class NotFoundError(InvalidRequestError):
    """The model, or the address, does not exist."""


class ContentFilterError(InvalidRequestError):
    """The provider rejects the request because of its content."""


class GuardrailStopped(ContentFilterError):
    """A guardrail of the host stopped the reply.

    `content` is the part of the reply that the guardrail allowed. `cost` is the cost of the call. The call is not
    retried, and no fallback model is tried.
    """


class CapabilityError(InvalidRequestError):
    """The model does not support the request. Raised before anything is sent."""


class UnsupportedToolChoiceError(CapabilityError):
    """The model does not support this tool choice."""


class PromptTooLongError(CapabilityError):
    """The prompt exceeds the model's context window, by Callboard's estimate. Raised before anything is sent."""


class NoModelAvailable(AdapterError):
    """All models for the call are unavailable. The text gives the reasons. `retryable` is True.

    `retry_after_seconds` is the time until the first model may be tried again, if known.
    """


class CancelledError(AdapterError):
    """The call was cancelled. `content`, `usage` and `cost` cover the part that had arrived."""

    error_class = ErrorClass.CANCELLED


# --- Codes of warnings ---


class WarningCode(StrEnum):
    """The kind of a warning, for programs. A host's own warnings may have other codes."""

    meaning: str
    """The meaning of the code, for people, as in the documentation."""

    def __new__(cls, code: str, meaning: str) -> WarningCode:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # --- Settings that were dropped or changed before sending ---

    PARAMETER_DROPPED = "parameter_dropped", "A setting was not sent, because the model or the protocol lacks it."
    PARAMETER_CHANGED = "parameter_changed", "A setting was sent with the nearest value that the model accepts."
    TEMPERATURE_LOWERED = (
        "temperature_lowered",
        "The temperature was lowered to the highest that the model accepts.",
    )
    STOP_SEQUENCE_DROPPED = "stop_sequence_dropped", "A stop sequence with only white space was not sent."
    CONTENT_DROPPED = (
        "content_dropped",
        "A block of the history was not sent. The message has the block and the reason.",
    )
    TURN_ADDED = "turn_added", "A turn that the provider requires was added to the history."
    TOOL_NOT_STRICT = (
        "tool_not_strict",
        "A tool's schema does not fit strict mode. The tool was sent without strict mode.",
    )
    TOOLS_LEFT_OUT = (
        "tools_left_out",
        "The request has more tools than the model accepts. The message lists the tools that were left out.",
    )
    TOOLS_EMULATED = "tools_emulated", "The model does not support tools. Its tool calls are constrained output."
    SCHEMA_AS_TOOL = "schema_as_tool", "The output schema was sent as the arguments of a tool."
    SCHEMA_AS_INSTRUCTION = "schema_as_instruction", "The output schema was sent in the system prompt."
    SCHEMA_FOLDED = (
        "schema_folded",
        "A union at the root of a schema was sent as one object.",
    )
    SCHEMA_HINDERS_TOOLS = (
        "schema_hinders_tools",
        "The reply must follow the output schema, which may prevent tool calls.",
    )
    PROMPT_NEAR_WINDOW = "prompt_near_window", "The prompt may be too long for the model's context window."
    INPUT_TYPE_ASSUMED = (
        "input_type_assumed",
        "The provider requires the purpose of an embedding. Callboard sent `document`.",
    )
    INPUT_MAY_BE_CUT = "input_may_be_cut", "A text may be longer than the embedding model accepts."
    REQUEST_REPAIRED = "request_repaired", "The provider rejected the request. A corrected request was sent."
    REASONING_REFUSED = (
        "reasoning_refused",
        "The provider rejected its own reasoning in the history. The reasoning was left out.",
    )

    # --- Unexpected replies ---

    USAGE_ESTIMATED = (
        "usage_estimated",
        "The provider did not report all usage. The missing part is an estimate.",
    )
    USAGE_INCONSISTENT = "usage_inconsistent", "The reported usage contradicts itself. The call has no price."
    NO_STOP_REASON = "no_stop_reason", "The provider sent no stop reason."
    EMPTY_REPLY = "empty_reply", "The reply ended normally, but has no text and no tool call. See `retry_empty`."
    REFUSAL = "refusal", "The model refused to answer; the message gives the provider's reason."
    FINISH_MESSAGE = "finish_message", "The provider's own text about the end of the reply."
    BODY_MENDED = "body_mended", "A part of the reply could not be read and was replaced."
    EXTRA_CANDIDATES = "extra_candidates", "The reply has several candidates. Only the first one is used."
    PROVIDER_CHANGED_INPUT = (
        "provider_changed_input",
        "The provider dropped or changed parts of the request. `provider_details` lists them.",
    )
    UNKNOWN_EVENT = "unknown_event", "The stream has an event of an unknown kind."
    UNKNOWN_CONTENT = "unknown_content", "The reply has content of an unknown kind."
    UNKNOWN_DELTA = "unknown_delta", "The stream has a delta of an unknown kind."
    STRAY_DELTA = "stray_delta", "The stream has a delta for a block that was never started."
    MISPLACED_DELTA = "misplaced_delta", "The stream has a delta in a block of another kind."
    REPEATED_START = "repeated_start", "The stream started its message a second time."
    LATE_SIGNATURE = "late_signature", "A signature arrived after the end of its reasoning and was dropped."
    STRAY_TOOL_ARGUMENTS = "stray_tool_arguments", "Arguments for an unknown tool call were dropped."
    LATE_TOOL_ARGUMENTS = "late_tool_arguments", "Arguments after the end of their tool call were dropped."
    NAMELESS_TOOL_CALL = "nameless_tool_call", "A tool call without a name was dropped."
    TOOL_NAME_MENDED = "tool_name_mended", "Chat template tokens were removed from a tool name."
    REPEATED_CALL = "repeated_call", "A tool call arrived twice with the same id. It counts once."
    ARGUMENTS_UNWRAPPED = (
        "arguments_unwrapped",
        "The arguments of a tool call were a JSON string with the object inside.",
    )
    ARGUMENTS_REPLACED = (
        "arguments_replaced",
        "The arguments at the end of a tool call differ from the streamed ones. The last ones are used.",
    )
    MAX_TOOL_ROUNDS = "max_tool_rounds", "The turn ended because it reached the limit of tool rounds."
    FEWER_IMAGES = "fewer_images", "The provider returned fewer images than requested."
    FOUND_AGAIN = "found_again", "The answer with the id of a video job was lost. The job was found again."
    UNKNOWN_STATUS = "unknown_status", "A video job has an unknown status. It is treated as in progress."
