"""What each exception means, in one table: the page `docs/errors.md` shows it, and a test walks both.

`retried` is what an adapter does by itself: "yes" as often as `max_retries` allows, and only while nothing of the
reply was delivered; "no" raises at once. `hint` is what a wait is taken from, instead of the schedule. `counts` is
against whom a failure counts when models are chosen: "key" and "provider" set the provider back with all its
models, "model" that model alone, "nobody" neither.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from . import errors
from .errors import ErrorClass

Retried: TypeAlias = Literal["yes", "no", "if it says so"]
Hint: TypeAlias = Literal["provider's", "none"]
Counts: TypeAlias = Literal["key", "provider", "provider and model", "model", "nobody"]


class ErrorRow(msgspec.Struct, frozen=True):
    """One exception that a call may raise."""

    kind: type[errors.AdapterError]
    """The exception."""
    error_class: ErrorClass
    """Its error class."""
    retried: Retried
    """Whether an adapter retries it by itself."""
    hint: Hint
    """The source of the wait before a retry, in place of the schedule."""
    counts: Counts
    """The part of the provider against which the failure counts."""
    seen: str
    """The signs by which it is recognised."""


_E: Final = ErrorClass

ERROR_TABLE: Final[tuple[ErrorRow, ...]] = (
    ErrorRow(errors.AuthError, _E.AUTH, "no", "none", "key",
             "401; 400 and 403 that speak of the key; UNAUTHENTICATED, API_KEY_INVALID"),
    ErrorRow(errors.AccessDeniedError, _E.AUTH, "no", "none", "model", "403; PERMISSION_DENIED"),
    ErrorRow(errors.RateLimitError, _E.RATE_LIMIT, "yes", "provider's", "model",
             "429; RESOURCE_EXHAUSTED; with 413, or where more is requested than the limit is, not retried,"
             " for it never fits"),
    ErrorRow(errors.OverloadedError, _E.RATE_LIMIT, "yes", "provider's", "provider and model",
             "529, 498, overloaded_error, UNAVAILABLE"),
    ErrorRow(errors.QuotaExceededError, _E.RATE_LIMIT, "no", "provider's", "key",
             "402; 429 and 400 that speak of credit or quota; a quota for a day"),
    ErrorRow(errors.RateLimitWaitError, _E.RATE_LIMIT, "no", "provider's", "nobody",
             "before anything was sent, where a call would wait too long for a rate limit"),
    ErrorRow(errors.ServerError, _E.SERVER_ERROR, "yes", "provider's", "provider and model",
             "424 and 5xx; INTERNAL; a reply that ends with `error`, `abort` or the like"),
    ErrorRow(errors.NetworkError, _E.NETWORK, "yes", "provider's", "provider", "no connection, or one that broke"),
    ErrorRow(errors.RequestTimeoutError, _E.NETWORK, "yes", "provider's", "provider",
             "408; DEADLINE_EXCEEDED; our own limits (that of the whole call is final)"),
    ErrorRow(errors.StreamError, _E.NETWORK, "yes", "provider's", "provider",
             "a reply that broke off, or whose stream ends without saying why; what is none of its protocol"),
    ErrorRow(errors.OutcomeUnknownError, _E.NETWORK, "no", "provider's", "provider",
             "the request for an image, a video, a batch or a background reply: its answer was lost, or was a 5xx "
             "other than 503"),
    ErrorRow(errors.ContextOverflowError, _E.CONTEXT_OVERFLOW, "no", "none", "nobody",
             "the provider's own words and codes for it; never with 429"),
    ErrorRow(errors.InvalidRequestError, _E.INVALID_REQUEST, "no", "none", "nobody",
             "400, 413, 422 and other 4xx (409 is retried); INVALID_ARGUMENT, FAILED_PRECONDITION"),
    ErrorRow(errors.NotFoundError, _E.INVALID_REQUEST, "no", "none", "model", "404; NOT_FOUND"),
    ErrorRow(errors.ContentFilterError, _E.INVALID_REQUEST, "no", "none", "nobody",
             "content_filter, content_policy_violation, moderation"),
    ErrorRow(errors.GuardrailStopped, _E.INVALID_REQUEST, "no", "none", "nobody",
             "a guardrail of the host's answered with a Stop; the call is cancelled at its provider"),
    ErrorRow(errors.CapabilityError, _E.INVALID_REQUEST, "no", "none", "nobody", "before anything was sent"),
    ErrorRow(errors.UnsupportedToolChoiceError, _E.INVALID_REQUEST, "no", "none", "nobody",
             "before anything was sent"),
    ErrorRow(errors.PromptTooLongError, _E.INVALID_REQUEST, "no", "none", "nobody", "before anything was sent"),
    ErrorRow(
        errors.CancelledError,
        _E.CANCELLED,
        "no",
        "none",
        "nobody",
        "`cancel()`, leaving the stream, a signal, or closing the engine",
    ),
    ErrorRow(errors.NoModelAvailable, _E.OTHER, "no", "none", "nobody",
             "every model that might have been taken is unavailable; nothing was sent"),
    ErrorRow(errors.AdapterError, _E.OTHER, "if it says so", "none", "nobody",
             "an error that says nothing we know; retried, because it may pass"),
)  # fmt: skip
"""Every AdapterError. The other exceptions of `errors` are the host's own business and never of a call."""
