"""Converts exceptions of Callboard to failures for clients.

The text for a client never contains the name of a file or a key of this machine. The log has the full text.
"""

from __future__ import annotations

from datetime import UTC, datetime

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

from ..budgets.ledger import BudgetExceededError
from ..tree import TurnLimitError
from .wire import BadRequest, Failure, FailureKind

_log = Log("gateway")

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
