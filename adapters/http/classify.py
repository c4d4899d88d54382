"""The AdapterError for a provider's reply, by HTTP status and body.

Evidence is checked in the same order for every provider: words and status about money, the body's type and code,
other words in the message, the status. The words are in `servers/words.json`; `error_texts` reads them. Each
provider adds its codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
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

from ..replies.decoders import repair_body
from ..requests.content import as_text
from .error_texts import LITELLM_CODES, error_of_code, error_of_words, exception_name
from .retry import duration_seconds, reset_seconds, retry_after_seconds

# --- Google's error details ---

USED_UP = "QUOTA_USED_UP"
"""Callboard's code for a quota that is not refilled within a minute: a daily quota, or a quota of zero."""

_NO_LIMIT_LEFT = re.compile(r"\blimit: 0\b")


def detail_reason(details: Json, message: str) -> str:
    """The reason in an ErrorInfo, or `USED_UP` for a spent quota. Empty if there is neither."""
    reason = ""
    for kind, detail in _each(details):
        if kind == "QuotaFailure" and _is_used_up(detail, message):
            return USED_UP
        if kind == "ErrorInfo" and isinstance(named := detail.get("reason"), str):
            reason = named
    return reason


def detail_delay(details: Json) -> float | None:
    """Seconds to wait, from a RetryInfo."""
    for kind, detail in _each(details):
        if kind == "RetryInfo" and isinstance(delay := detail.get("retryDelay"), str):
            return duration_seconds(delay) or None  # zero means that no delay is given
    return None


def _each(details: Json) -> Iterator[tuple[str, JsonObject]]:
    """Yield each detail with the last part of its type name."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(kind := detail.get("@type"), str):
            yield kind.rpartition(".")[2], detail


def _is_used_up(detail: JsonObject, message: str) -> bool:
    violations = detail.get("violations")
    return any(
        "PerDay" in str(violation.get("quotaId"))
        or violation.get("quotaValue") == "0"
        or bool(_NO_LIMIT_LEFT.search(message))
        for violation in (violations if isinstance(violations, list) else ())
        if isinstance(violation, dict)
    )


ErrorType: TypeAlias = type[AdapterError]

COMMON_CODES: Mapping[str, ErrorType] = {
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "overloaded_error": OverloadedError,
    "server_is_overloaded": OverloadedError,
    "slow_down": OverloadedError,
    "invalid_api_key": AuthError,
    "authentication_error": AuthError,
    "permission_error": AccessDeniedError,
    "not_found_error": NotFoundError,
    "model_not_found": NotFoundError,
    "content_filter": ContentFilterError,
    "content_policy_violation": ContentFilterError,
    "moderation": ContentFilterError,
    "moderation_blocked": ContentFilterError,
    "api_error": ServerError,
    "server_error": ServerError,
    "timeout_error": ServerError,
    "unavailable_error": ServerError,
    "invalid_request_error": InvalidRequestError,
    "string_above_max_length": InvalidRequestError,
    # Google's canonical status, as `error.status`
    "INVALID_ARGUMENT": InvalidRequestError,
    "FAILED_PRECONDITION": InvalidRequestError,
    "UNAUTHENTICATED": AuthError,
    "PERMISSION_DENIED": AccessDeniedError,
    "NOT_FOUND": NotFoundError,
    "RESOURCE_EXHAUSTED": RateLimitError,
    "UNAVAILABLE": OverloadedError,
    "DEADLINE_EXCEEDED": RequestTimeoutError,
    "INTERNAL": ServerError,
    # reasons in Google's details
    USED_UP: QuotaExceededError,
    "API_KEY_INVALID": AuthError,
    "API_KEY_EXPIRED": AuthError,
    **LITELLM_CODES,
}
"""Codes and types with the same meaning at every provider, in addition to those in `servers/words.json`."""

_WEAK_CODES = frozenset(
    {"invalid_request_error", "api_error", "server_error", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "INTERNAL"}
)
"""General types that a specific message or status overrides."""

_PAYMENT_REQUIRED = 402
_STATUS: Mapping[int, ErrorType] = {
    401: AuthError,
    403: AccessDeniedError,
    404: NotFoundError,
    408: RequestTimeoutError,
    413: InvalidRequestError,
    424: ServerError,
    429: RateLimitError,
    498: OverloadedError,
    503: ServerError,
    529: OverloadedError,
}

_ASKED_OF_LIMIT = re.compile(
    r"\blimit:? (\d[\d,]{0,17})\b.{0,80}?\brequested:? (\d[\d,]{0,17})", re.IGNORECASE | re.DOTALL
)
_EVENT_DATA = re.compile(rb"\s*(?::[^\n]*\n\s*)*(?:event:[^\n]*\n)?(?:data|error):(?P<data>[^\n]*)")


class ErrorBody(msgspec.Struct, frozen=True):
    """The fields of an error reply. An empty string means unknown."""

    type: str = ""
    code: str = ""
    message: str = ""
    param: str = ""
    detail_code: str = ""
    request_id: str = ""
    retry_after: float | None = None
    """The time to wait in seconds, if the body has it."""
    details: JsonObject = {}
    """The other fields of the error."""


def read_error(body: bytes) -> ErrorBody:
    """Find the error in a body of any known shape. If the shape is unknown, the whole body is the message."""
    event = _EVENT_DATA.match(body)  # LiteLLM rejects a streamed request this way, with an error status
    try:
        value = _decoded(body if event is None else event["data"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = re.sub(rb"<[^>]*>|\s+", b" ", body[:4000]).decode("utf-8", "replace")
        return ErrorBody(message=" ".join(text.split())[:500])
    return read_error_value(value)


def find_error(body: bytes) -> ErrorBody | None:
    """The error in a body, or in its start; None if it contains none.

    The body is JSON or events. Servers send both with status 200.
    """
    event = _EVENT_DATA.match(body)
    try:
        value = _decoded(body if event is None else event["data"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return read_error_value(value) if is_error(value) else None


def is_foreign_error(data: bytes) -> bool:
    """Whether the data of an event named `error` contains only the error, not the protocol's envelope around it.

    llama.cpp sends it in a field named `error`. Proxies send a text or nothing.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return not data.lstrip().startswith(b"{")
    if not isinstance(value, dict):
        return True
    return "error" not in value and "error" not in (value.get("type"), value.get("event_type"))


def is_error(value: Json) -> bool:
    """Whether a decoded body or event is only an error, in any known shape."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict) or value.get("choices"):
        return False
    if value.get("error") or value.get("errors") or value.get("object") == "error" or value.get("type") == "error":
        return True
    of_minimax = value.get("base_resp")
    if isinstance(of_minimax, dict):
        return of_minimax.get("status_code") not in (None, 0, "0")
    if isinstance(value.get("message"), str):
        return any(value.get(name) for name in ("code", "type", "error_code")) and "content" not in value
    return "detail" in value and "content" not in value


def _decoded(body: bytes) -> Json:
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = repair_body(body)
        if repaired is None:
            raise
        value = msgspec.json.decode(repaired.text)
    return value


def read_error_value(value: Json) -> ErrorBody:
    """Like `read_error`, for a decoded body."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return ErrorBody(message=_text(value))
    request_id = _text(value.get("request_id"))
    inner = value.get("error")
    if isinstance(inner, dict):
        return _read_fields(inner, request_id)
    if isinstance(inner, str):
        kind = _text(value.get("error_type")) or _text(value.get("type"))
        return ErrorBody(type=kind, code=_text(value.get("code")), message=inner, request_id=request_id)
    if "detail" in value and "message" not in value:
        return ErrorBody(message=_text(value["detail"]), request_id=request_id)
    if isinstance(of_minimax := value.get("base_resp"), dict):
        code = f"base_resp.{_text(of_minimax.get('status_code'))}"
        return ErrorBody(code=code, message=_text(of_minimax.get("status_msg")), request_id=request_id)
    several = value.get("errors")  # Cloudflare's
    if isinstance(several, list) and several and isinstance(several[0], dict) and "message" not in value:
        return _read_fields(several[0], request_id)
    return _read_fields(value, request_id)


def _read_fields(error: JsonObject, request_id: str) -> ErrorBody:
    details = error.get("details")
    message = _text(error.get("message"))
    if isinstance(details, dict):
        detail_code = _text(details.get("error_code"))  # Anthropic's
    else:
        detail_code = detail_reason(details, message) or exception_name(message)
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        message = f"{message}: {_text(metadata['raw'])}"
    if isinstance(metadata, dict) and metadata.get("reasons"):
        detail_code = "moderation"  # OpenRouter sends no code for moderation
    elif isinstance(metadata, dict) and isinstance(metadata.get("limit_source"), str):
        detail_code = _text(metadata["limit_source"])  # for OpenRouter, the owner of the limit
    canonical = _canonical(error.get("status"))
    return ErrorBody(
        type=_text(error.get("type")) or canonical,
        # Next to a canonical status, `code` only repeats the HTTP status. `error_code` is Databricks' field.
        code="" if canonical else _text(error.get("code")) or _text(error.get("error_code")),
        message=message,
        param=_text(error.get("param")),
        detail_code=detail_code,
        request_id=request_id,
        retry_after=detail_delay(details),
        details={name: value for name, value in error.items() if name not in _KNOWN_FIELDS and value is not None},
    )


_KNOWN_FIELDS = frozenset({"message", "type", "code", "param", "status", "error_code", "request_id", "object"})
"""The error fields that `ErrorBody` stores, and `object`, which only names the kind of the value."""


def _canonical(status: Json) -> str:
    """Google's status name; empty for the numbers that other providers put in `status`."""
    return status if isinstance(status, str) and status.replace("_", "").isupper() else ""


def _text(value: Json) -> str:
    return "" if value is None else as_text(value)


def error_type(body: ErrorBody, status: int | None, codes: Mapping[str, ErrorType]) -> ErrorType:
    """The class of an error, from its strongest evidence."""
    named = [name for name in (body.detail_code, body.code, body.type) if name]
    strong = [name for name in named if name not in _WEAK_CODES]
    text = f"{body.message}\n{body.param}" if body.param else body.message
    if status == _PAYMENT_REQUIRED:  # OpenRouter's limit of concurrent requests is temporary
        detail = error_of_code(body.detail_code)
        return detail if detail is RateLimitError else QuotaExceededError
    certain = error_of_words(text, status, certain=True)
    if certain is not None:
        return certain
    for name in strong:
        if name in codes:
            return codes[name]
    for name in strong:
        if name in COMMON_CODES:
            return COMMON_CODES[name]
        error_class = error_of_code(name)
        if error_class is not None:
            return error_class
        if name.endswith("_spend_limit_exceeded"):
            return QuotaExceededError
    by_words = error_of_words(text, status, certain=False)
    if by_words is not None:
        return by_words
    if status is None and re.fullmatch(r"[1-9][0-9]{2}", body.code):
        status = int(body.code)
    if status is not None and status >= 300:
        return _by_status(status)
    for name in named:
        if name in COMMON_CODES:
            return COMMON_CODES[name]
    return AdapterError


def _never_fits(message: str) -> bool:
    """Whether the message says that the request is larger than the limit for a minute (OpenAI, Groq)."""
    found = _ASKED_OF_LIMIT.search(message)
    if found is None:
        return False
    limit, requested = (int(number.replace(",", "")) for number in found.groups())
    return requested > limit


def _by_status(status: int) -> ErrorType:
    if status in _STATUS:
        return _STATUS[status]
    return ServerError if status >= 500 else InvalidRequestError


def error_without_status(body: ErrorBody, codes: Mapping[str, ErrorType], provider: str) -> AdapterError:
    """The AdapterError for an error inside a reply or an event. The call adds its id."""
    return build_error(body, provider=provider, codes=codes)


def build_error(
    body: ErrorBody,
    *,
    provider: str,
    codes: Mapping[str, ErrorType] = {},
    status: int | None = None,
    headers: Mapping[str, str] = {},
    now_us: int = 0,
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream.

    A 409 is retried. A rate limit with status 413, or for a request above the limit, is not retried, because the
    request never fits. `x-should-retry: false` makes any error final. ``true`` can't make a final error temporary.
    """
    kind = error_type(body, status, codes)
    retryable: bool | None = None
    if status == 409:
        retryable = True
    if kind is AdapterError:
        retryable = True  # unknown errors are retried if no output was delivered
    if issubclass(kind, RateLimitError) and (status == 413 or _never_fits(body.message)):
        retryable = False
    if headers.get("x-should-retry") == "false":
        retryable = False
    explanation = body.message or body.type or body.code or "no explanation"
    code = body.detail_code or body.code or body.type or None
    hint = retry_after_seconds(headers, body.message, now_us)
    hint = body.retry_after if hint is None else hint
    if hint is None and status == 429:
        hint = reset_seconds(headers, now_us)
    error = kind(
        f"{provider}: {explanation}" if status is None else f"{provider} returned {status}: {explanation}",
        provider=provider,
        provider_status=status,
        provider_code=code,
        provider_message=body.message,
        provider_param=body.param or None,
        retryable=retryable,
        retry_after_seconds=hint if issubclass(kind, RateLimitError | ServerError | NetworkError) else None,
        provider_request_id=headers.get("request-id") or headers.get("x-request-id") or body.request_id or None,
    )
    error.provider_details = body.details
    return error
