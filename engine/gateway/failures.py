"""Failures for clients: their kinds, their types on each wire, and the failures for exceptions of Callboard.

The text for a client never contains the name of a file or a key of this machine. The log has the full text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from callboard.adapters import AdapterError
from callboard.bus import (
    AdmissionError,
    CallboardError,
    ConfigurationError,
    ContextOverflowError,
    PromptTooLongError,
    SessionBusy,
    WrongLoop,
)
from callboard.bus.errors import (
    AccessDeniedError,
    AuthError,
    CancelledError,
    ContentFilterError,
    InvalidRequestError,
    NetworkError,
    NoModelAvailable,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    StreamError,
)
from callboard.bus.log import Log
from callboard.bus.values.base import Json, JsonObject

from ..budgets.ledger import BudgetExceededError
from ..tree import TurnLimitError

_log = Log("gateway")

# --- Failures ---

FailureKind: TypeAlias = Literal[
    "invalid_request",
    "context_overflow",  # the prompt is too long
    "content_filter",
    "authentication",
    "budget",  # with `retry_after` if a window ends
    "permission",
    "not_found",  # a model
    "missing",  # an address or a stored response
    "wrong_method",
    "too_large",
    "rate_limit",
    "server",
    "unavailable",
    "timeout",
    "overloaded",
]


class FailureWords(NamedTuple):
    """A kind of failure in the words of each vendor."""

    status: int
    openai: str
    """OpenAI's type."""
    code: str | None
    """OpenAI's code."""
    anthropic: str
    """Anthropic's type."""
    google: str
    """Google's canonical status (google/rpc/code.proto)."""


_INVALID = "invalid_request_error"
WORDS: Mapping[FailureKind, FailureWords] = {
    "invalid_request": FailureWords(400, _INVALID, None, _INVALID, "INVALID_ARGUMENT"),
    "context_overflow": FailureWords(400, _INVALID, "context_length_exceeded", _INVALID, "INVALID_ARGUMENT"),
    "content_filter": FailureWords(400, _INVALID, "content_filter", _INVALID, "INVALID_ARGUMENT"),
    "authentication": FailureWords(401, _INVALID, "invalid_api_key", "authentication_error", "UNAUTHENTICATED"),
    "budget": FailureWords(429, "insufficient_quota", "insufficient_quota", "billing_error", "RESOURCE_EXHAUSTED"),
    "permission": FailureWords(403, _INVALID, "insufficient_permissions", "permission_error", "PERMISSION_DENIED"),
    "not_found": FailureWords(404, _INVALID, "model_not_found", "not_found_error", "NOT_FOUND"),
    "missing": FailureWords(404, _INVALID, None, "not_found_error", "NOT_FOUND"),
    # Google's API has no name for this error
    "wrong_method": FailureWords(405, _INVALID, "method_not_supported", _INVALID, "UNIMPLEMENTED"),
    "too_large": FailureWords(413, _INVALID, "request_too_large", "request_too_large", "INVALID_ARGUMENT"),
    "rate_limit": FailureWords(429, "requests", "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "server": FailureWords(500, "server_error", None, "api_error", "INTERNAL"),
    "unavailable": FailureWords(503, "server_error", "service_unavailable", "api_error", "UNAVAILABLE"),
    "timeout": FailureWords(504, "server_error", "timeout", "timeout_error", "DEADLINE_EXCEEDED"),
    "overloaded": FailureWords(503, "server_error", "server_is_overloaded", "overloaded_error", "UNAVAILABLE"),
}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed request, in a form that is independent of the wire."""

    kind: FailureKind
    """The kind. A wire maps it to its own type and status."""
    message: str
    """The error's text."""
    param: str | None = None
    """The field that caused the error, as named on the client's wire."""
    code: str | None = None
    """The provider's own code, if it gave one."""
    retry_after: float | None = None
    """Seconds after which a retry may succeed."""
    request_id: str | None = None
    """The id of the call in the trace."""
    details: Mapping[str, Json] = {}
    """More fields of the provider's error, if the provider uses the client's wire."""
    allow: tuple[str, ...] = ()
    """The methods of the address, for `wrong_method`."""


class BadRequest(Exception):
    """A client's request that a wire can't read. `failure` has the details."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        kind: FailureKind = "invalid_request",
        code: str | None = None,
        retry_after: float | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            kind=kind, message=message, param=param, code=code, retry_after=retry_after, allow=allow
        )


_PARAMS: Mapping[FailureKind, str] = {"context_overflow": "messages", "not_found": "model"}


def openai_failure(failure: Failure) -> tuple[int, JsonObject]:
    """The status and the body of a failure for Chat Completions. Responses has nearly the same."""
    words = WORDS[failure.kind]
    code = words.code
    param = failure.param if failure.param is not None else _PARAMS.get(failure.kind)
    if failure.kind == "not_found" and (vendor_code := _vendors_code(failure.code)) not in (None, code):
        code, param = vendor_code, failure.param  # a file or an earlier response is missing, not a model
    error: JsonObject = {
        **failure.details,
        "message": failure.message,
        "type": words.openai,
        "param": param,
        "code": code if code is not None else _vendors_code(failure.code),
    }
    return words.status, {"error": error}


def _vendors_code(code: str | None) -> str | None:
    """A provider's code; None if it is another vendor's error type."""
    return None if code is None or code.endswith("_error") or code.isupper() else code


# --- Failures for exceptions ---

KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (BudgetExceededError, "budget"),
    (TurnLimitError, "budget"),
    (ContextOverflowError, "context_overflow"),
    (PromptTooLongError, "context_overflow"),
    (ContentFilterError, "content_filter"),
    (NotFoundError, "not_found"),
    (InvalidRequestError, "invalid_request"),
    (RecursionError, "invalid_request"),
    # The gateway's own key is wrong, not the client's. A 401 would make clients request another key from their
    # user.
    (AuthError, "permission"),
    (QuotaExceededError, "budget"),
    (OverloadedError, "overloaded"),
    (RateLimitError, "rate_limit"),
    (RequestTimeoutError, "timeout"),
    (StreamError, "server"),
    (OutcomeUnknownError, "server"),
    (NetworkError, "unavailable"),
    (NoModelAvailable, "unavailable"),
    (CancelledError, "unavailable"),
    (AdmissionError, "unavailable"),
    (SessionBusy, "rate_limit"),
)
"""The kind of failure for each exception class. The first matching class is used; any other exception is
``server``.
"""

_FALLBACK = "internal error. The gateway's log has the details"


def failure_of(error: Exception, request_id: str = "") -> Failure:
    """The failure for an exception. An internal error is logged, and its text is left out."""
    if isinstance(error, BadRequest):
        return error.failure
    kind: FailureKind = next((kind for classes, kind in KINDS if isinstance(error, classes)), "server")
    return Failure(
        kind=kind,
        message=_text(error, request_id),
        param=error.provider_param if isinstance(error, AdapterError) else None,
        code=error.provider_code if isinstance(error, AdapterError) else None,
        retry_after=_retry_after(error),
        request_id=request_id or None,
    )


def _text(error: Exception, request_id: str) -> str:
    match error:
        case AuthError():
            lacks = "lacks a permission" if isinstance(error, AccessDeniedError) else "was refused"
            _log.warning("provider_key_refused", request_id=request_id, error=str(error))
            return f"the gateway's key for {error.provider or 'the provider'} {lacks}"
        case CancelledError():
            return "the request was cancelled"
        case RecursionError():
            return "the request is nested too deeply"
        case AdapterError() if type(error) is not AdapterError or error.provider_status is not None:
            return error.provider_message
        case ConfigurationError() | WrongLoop():
            _log.error("request_failed", request_id=request_id, error=str(error))
            return "the gateway is not configured for this request. Its log has the details"
        case BudgetExceededError() | TurnLimitError() | AdmissionError() | SessionBusy():
            return str(error)
        case CallboardError():
            _log.error("request_failed", request_id=request_id, error=repr(error))
            return _FALLBACK
        case _:
            _log.error("request_failed", error, request_id=request_id, error=repr(error))
            return _FALLBACK


def _retry_after(error: Exception) -> float | None:
    if isinstance(error, AdapterError):
        return error.retry_after_seconds
    if isinstance(error, AdmissionError | SessionBusy):
        return 1.0
    if isinstance(error, BudgetExceededError) and error.fits_at is not None:
        return max((error.fits_at - datetime.now(UTC)).total_seconds(), 1.0)
    return None


def may_retry(error: Exception) -> bool:
    """Whether the same request may succeed later, so that a client's SDK may send it again."""
    if isinstance(error, AdapterError):
        return error.retryable or error.retry_after_seconds is not None
    return isinstance(error, AdmissionError | SessionBusy)
