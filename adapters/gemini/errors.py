"""Google's errors: a canonical status in words, and details, each with a type of its own.

What a waiting caller needs is in the details, not in headers: RetryInfo has the delay, QuotaFailure which quota it
was. A quota for a minute is a rate limit; one for a day, or one of nothing at all, is used up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from adapters.classify import ErrorType, build_error, read_error_value
from adapters.retry import duration_seconds
from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
)
from bus.json_types import Json, JsonObject

_USED_UP = "QUOTA_USED_UP"

CODES: Mapping[str, ErrorType] = {
    # reasons in an ErrorInfo, which go before the status
    "API_KEY_INVALID": AuthError,  # with status 400
    "API_KEY_EXPIRED": AuthError,
    "ACCESS_TOKEN_EXPIRED": AuthError,
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": AuthError,
    "CREDENTIALS_MISSING": AuthError,
    "API_KEY_SERVICE_BLOCKED": AccessDeniedError,
    "SERVICE_DISABLED": AccessDeniedError,
    "CONSUMER_SUSPENDED": AccessDeniedError,
    "BILLING_DISABLED": QuotaExceededError,
    _USED_UP: QuotaExceededError,
    # error.status; INVALID_ARGUMENT and FAILED_PRECONDITION say less than the message does
    "UNAUTHENTICATED": AuthError,
    "PERMISSION_DENIED": AccessDeniedError,
    "NOT_FOUND": NotFoundError,
    "OUT_OF_RANGE": InvalidRequestError,
    "UNIMPLEMENTED": InvalidRequestError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": OverloadedError,
    "DEADLINE_EXCEEDED": RequestTimeoutError,
    "CANCELLED": ServerError,  # by the provider: what we cancel gets no answer
    "ABORTED": ServerError,
    "UNKNOWN": ServerError,
    "DATA_LOSS": ServerError,
}

_RETRY_IN = re.compile(r"retry in ((?:[\d.]+(?:h|ms|m|s))+)", re.IGNORECASE)
_NO_LIMIT_LEFT = re.compile(r"\blimit: 0\b")


def error_of(
    value: Json, *, provider: str, status: int | None = None, headers: Mapping[str, str] | None = None,
    request_id: str = "", now_us: int = 0,
) -> AdapterError:  # fmt: skip
    """The error that a body means. value: the body, decoded. status: None if it came with a status of 200."""
    said = read_error_value(value)
    error = _error_object(value)
    canonical, code = error.get("status"), error.get("code")
    if status is None and isinstance(code, int) and 400 <= code < 600:
        status = code
    details = list(_details(error))
    if isinstance(canonical, str) and canonical:
        said = msgspec.structs.replace(said, type=canonical, code="")
    said = msgspec.structs.replace(said, detail_code=_reason(details, said.message))
    failure = build_error(
        said,
        status=status,
        headers=headers or {},
        codes=CODES,
        provider=provider,
        request_id=request_id,
        now_us=now_us,
    )
    if failure.retry_after_seconds is None and isinstance(failure, RateLimitError | ServerError | NetworkError):
        failure.retry_after_seconds = _retry_delay(details, said.message)
    return failure


def _error_object(value: Json) -> JsonObject:
    if isinstance(value, list) and value:  # a stream without alt=sse is one array
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {}


def _details(error: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Each detail, with the last word of its type."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(kind := detail.get("@type"), str):
            yield kind.rpartition(".")[2], detail


def _reason(details: list[tuple[str, JsonObject]], message: str) -> str:
    reason = ""
    for kind, detail in details:
        if kind == "QuotaFailure":
            violations = detail.get("violations")
            for violation in violations if isinstance(violations, list) else ():
                if not isinstance(violation, dict):
                    continue
                per_day = "PerDay" in str(violation.get("quotaId"))
                if per_day or violation.get("quotaValue") == "0" or _NO_LIMIT_LEFT.search(message):
                    return _USED_UP
        elif kind == "ErrorInfo" and isinstance(named := detail.get("reason"), str):
            reason = named
    return reason


def _retry_delay(details: list[tuple[str, JsonObject]], message: str) -> float | None:
    for kind, detail in details:
        if kind == "RetryInfo" and isinstance(delay := detail.get("retryDelay"), str):
            return duration_seconds(delay)
    found = _RETRY_IN.search(message)
    return duration_seconds(found[1]) if found else None
