"""The AdapterError for a provider's reply, by HTTP status, body and words.

Evidence is checked in the same order for every provider: words and status about money, the body's type and code,
other words in the message, the status. Each provider adds its codes. The words are in `servers/words.json`, which
is loaded at the first error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

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
    StreamError,
)
from callboard.bus.values.base import Json, JsonObject

from ..requests.content import as_text, repair_body
from ..servers import data
from ..transport.addresses import host_of, place
from .retry import duration_seconds, reset_seconds, retry_after_seconds

ErrorType: TypeAlias = type[AdapterError]

# --- The fields of an error ---

USED_UP = "QUOTA_USED_UP"
"""Callboard's code for a quota that is not refilled within a minute: a daily quota, or a quota of zero."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EVENT_DATA = re.compile(rb"\s*(?::[^\n]*\n\s*)*(?:event:[^\n]*\n)?(?:data|error):(?P<data>[^\n]*)")
_KNOWN_FIELDS = frozenset({"message", "type", "code", "param", "status", "error_code", "request_id", "object"})
"""The error fields that `ErrorBody` stores, and `object`, which only names the kind of the value."""


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
    try:
        value = _decoded(body)
    except _UNREADABLE:
        return ErrorBody(message=_excerpt(body[:4000], 500))
    return read_error_value(value)


def find_error(body: bytes) -> ErrorBody | None:
    """The error in a body, or in its start; None if it contains none.

    The body is JSON or events. Servers send both with status 200.
    """
    try:
        value = _decoded(body)
    except _UNREADABLE:
        return None
    return read_error_value(value) if is_error(value) else None


def _decoded(body: bytes) -> Json:
    event = _EVENT_DATA.match(body)  # LiteLLM rejects a streamed request this way, with an error status
    text = body if event is None else event["data"]
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        repaired = repair_body(text)
        if repaired is None:
            raise
        value = msgspec.json.decode(repaired.text)
    return value


def is_foreign_error(data: bytes) -> bool:
    """Whether the data of an event named `error` contains only the error, not the protocol's envelope around it.

    llama.cpp sends it in a field named `error`. Proxies send a text or nothing.
    """
    try:
        value = msgspec.json.decode(data)
    except _UNREADABLE:
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
        detail_code = _google_reason(details, message) or _litellm_name(message)
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        message = f"{message}: {_text(metadata['raw'])}"
    if isinstance(metadata, dict) and metadata.get("reasons"):
        detail_code = "moderation"  # OpenRouter sends no code for moderation
    elif isinstance(metadata, dict) and isinstance(metadata.get("limit_source"), str):
        detail_code = _text(metadata["limit_source"])  # for OpenRouter, the owner of the limit
    status = error.get("status")
    # Google's status name. Other providers put a number in `status`.
    canonical = status if isinstance(status, str) and status.replace("_", "").isupper() else ""
    return ErrorBody(
        type=_text(error.get("type")) or canonical,
        # Next to a canonical status, `code` only repeats the HTTP status. `error_code` is Databricks' field.
        code="" if canonical else _text(error.get("code")) or _text(error.get("error_code")),
        message=message,
        param=_text(error.get("param")),
        detail_code=detail_code,
        request_id=request_id,
        retry_after=_google_delay(details),
        details={name: value for name, value in error.items() if name not in _KNOWN_FIELDS and value is not None},
    )


def _text(value: Json) -> str:
    return "" if value is None else as_text(value)


def _google_reason(details: Json, message: str) -> str:
    """The reason in an ErrorInfo, or `USED_UP` for a spent quota. Empty if there is neither."""
    reason = ""
    for kind, detail in _google_details(details):
        if kind == "QuotaFailure":
            violations = detail.get("violations")
            for violation in violations if isinstance(violations, list) else ():
                if isinstance(violation, dict) and (
                    "PerDay" in str(violation.get("quotaId"))
                    or violation.get("quotaValue") == "0"
                    or re.search(r"\blimit: 0\b", message)
                ):
                    return USED_UP
        if kind == "ErrorInfo" and isinstance(named := detail.get("reason"), str):
            reason = named
    return reason


def _google_delay(details: Json) -> float | None:
    """Seconds to wait, from a RetryInfo."""
    for kind, detail in _google_details(details):
        if kind == "RetryInfo" and isinstance(delay := detail.get("retryDelay"), str):
            return duration_seconds(delay) or None  # zero means that no delay is given
    return None


def _google_details(details: Json) -> Iterator[tuple[str, JsonObject]]:
    """Yield each detail with the last part of its type name."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(kind := detail.get("@type"), str):
            yield kind.rpartition(".")[2], detail


# --- LiteLLM's messages ---

_LITELLM_CODES: Mapping[str, ErrorType] = {
    # Names of exceptions. A code that agrees with its HTTP status needs no entry.
    "ContextWindowExceededError": ContextOverflowError,
    "ContentPolicyViolationError": ContentFilterError,
    "BudgetExceededError": QuotaExceededError,
    # types of the proxy's own errors, with any status
    "budget_exceeded": QuotaExceededError,
    "no_db_connection": AuthError,  # a proxy without a database accepts only the master key
    "expired_key": AuthError,
    "token_not_found_in_db": AuthError,
    "key_model_access_denied": AccessDeniedError,
    "team_model_access_denied": AccessDeniedError,
    "user_model_access_denied": AccessDeniedError,
    "customer_model_access_denied": AccessDeniedError,
    "org_model_access_denied": AccessDeniedError,
    "project_model_access_denied": AccessDeniedError,
}

_LITELLM_NAME = re.compile(r"litellm\.([A-Z][A-Za-z]{1,60}): ")
_WRAPPERS = re.compile(r"(?:(?:litellm\.)?[A-Z][A-Za-z]{1,60}(?:Error|Exception|Timeout)(?:: | - ))+")
_REMARK = re.compile(r"\n+(?:LiteLLM: model group |model=)|\.? ?Received Model Group=")


def _litellm_name(message: str) -> str:
    """The known LiteLLM exception name at the start of the message; empty if there is none."""
    match = _LITELLM_NAME.match(message)
    return match[1] if match is not None and match[1] in _LITELLM_CODES else ""


def unwrapped(message: str) -> str:
    """The provider's message inside LiteLLM's message. Any other message is returned unchanged."""
    if _LITELLM_NAME.match(message) is None:
        return message
    wrappers = _WRAPPERS.match(message)
    remark = _REMARK.search(message)
    inner = message[wrappers.end() if wrappers else 0 : remark.start() if remark else None].strip()
    return inner[2:-1] if inner.startswith(("b'", 'b"')) else inner


# --- The table of words ---

Meaning: TypeAlias = Literal[
    "money", "overflow", "key", "model", "media", "rate", "busy", "filter", "access", "server"
]

_ERRORS: Mapping[Meaning, ErrorType] = {
    "money": QuotaExceededError,
    "overflow": ContextOverflowError,
    "key": AuthError,
    "model": NotFoundError,
    "media": InvalidRequestError,
    "rate": RateLimitError,
    "busy": OverloadedError,
    "filter": ContentFilterError,
    "access": AccessDeniedError,
    "server": ServerError,
}

_STATUSES: Mapping[Meaning, frozenset[int | None] | None] = {
    "money": None,  # a payment error, at any status
    "overflow": frozenset({None, 400, 413, 422, 424, 500}),
    "key": frozenset({None, 400, 403}),
    "model": frozenset({None, 400}),
    "media": frozenset({None, 500}),
}
"""The HTTP statuses at which words count; None for any status. In a set, None means an error inside a stream."""

_Patterns: TypeAlias = tuple[tuple[Meaning, re.Pattern[str]], ...]


class WordRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One sign of an error: `words` or `code`."""

    means: Meaning
    servers: tuple[str, ...]
    """The servers that send the words or the code, by their names in field notes."""
    words: str = ""
    """A regular expression to search in the message, ignoring case."""
    code: str = ""
    """The error's code or type on the wire."""
    certain: bool = False
    """Whether the words override the error's code. Vendors report missing credit with the codes of rate limits,
    permissions and bad requests.
    """


class _Words(NamedTuple):
    codes: Mapping[str, ErrorType]
    certain: _Patterns
    weak: _Patterns


def word_rows() -> list[WordRow]:
    return msgspec.json.decode(data("words.json"), type=list[WordRow])


@lru_cache(maxsize=1)
def _words() -> _Words:
    rows = word_rows()
    return _Words(
        {row.code: _ERRORS[row.means] for row in rows if row.code},
        _patterns([row for row in rows if row.certain]),
        _patterns([row for row in rows if not row.certain]),
    )


def _patterns(rows: list[WordRow]) -> _Patterns:
    """One pattern for each meaning, in the order of `_ERRORS`."""
    found = []
    for meaning in _ERRORS:
        words = [f"(?:{row.words})" for row in rows if row.words and row.means == meaning]
        if words:
            found.append((meaning, re.compile("|".join(words), re.IGNORECASE | re.DOTALL)))
    return tuple(found)


def _error_of_words(patterns: _Patterns, message: str, status: int | None) -> ErrorType | None:
    for meaning, pattern in patterns:
        statuses = _STATUSES.get(meaning)
        if (statuses is None or status in statuses) and pattern.search(message):
            return _ERRORS[meaning]
    return None


# --- The class of an error ---

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
    **_LITELLM_CODES,
}
"""Codes and types with the same meaning at every provider, in addition to those in `servers/words.json`."""

_WEAK_CODES = frozenset(
    {"invalid_request_error", "api_error", "server_error", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "INTERNAL"}
)
"""General types that a specific message or status overrides."""

_BY_STATUS: Mapping[int, ErrorType] = {
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


def error_type(body: ErrorBody, status: int | None, codes: Mapping[str, ErrorType]) -> ErrorType:
    """The class of an error, from its strongest evidence."""
    named = [name for name in (body.detail_code, body.code, body.type) if name]
    strong = [name for name in named if name not in _WEAK_CODES]
    text = f"{body.message}\n{body.param}" if body.param else body.message
    words = _words()
    if status == 402:  # OpenRouter's limit of concurrent requests is temporary
        detail = words.codes.get(body.detail_code)
        return detail if detail is RateLimitError else QuotaExceededError
    certain = _error_of_words(words.certain, text, status)
    if certain is not None:
        return certain
    for name in strong:
        if name in codes:
            return codes[name]
    for name in strong:
        error_class = COMMON_CODES.get(name) or words.codes.get(name)
        if error_class is not None:
            return error_class
        if name.endswith("_spend_limit_exceeded"):
            return QuotaExceededError
    by_words = _error_of_words(words.weak, text, status)
    if by_words is not None:
        return by_words
    if status is None and re.fullmatch(r"[1-9][0-9]{2}", body.code):
        status = int(body.code)
    if status is not None and status >= 300:
        return _BY_STATUS.get(status) or (ServerError if status >= 500 else InvalidRequestError)
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
    if status == 409 or kind is AdapterError:  # unknown errors are retried if no output was delivered
        retryable = True
    if issubclass(kind, RateLimitError) and (status == 413 or _never_fits(body.message)):
        retryable = False
    if headers.get("x-should-retry") == "false":
        retryable = False
    explanation = body.message or body.type or body.code or "no explanation"
    hint = retry_after_seconds(headers, body.message, now_us)
    hint = body.retry_after if hint is None else hint
    if hint is None and status == 429:
        hint = reset_seconds(headers, now_us)
    error = kind(
        f"{provider}: {explanation}" if status is None else f"{provider} returned {status}: {explanation}",
        provider=provider,
        provider_status=status,
        provider_code=body.detail_code or body.code or body.type or None,
        provider_message=body.message,
        provider_param=body.param or None,
        retryable=retryable,
        retry_after_seconds=hint if issubclass(kind, RateLimitError | ServerError | NetworkError) else None,
        provider_request_id=headers.get("request-id") or headers.get("x-request-id") or body.request_id or None,
    )
    error.provider_details = body.details
    return error


# --- Replies that don't come from the provider ---

EXCERPT_BYTES = 2000
"""The number of bytes at the start of a body that are kept for an error message, which quotes its first words."""


def not_of_protocol(name: str, body: bytes, headers: Mapping[str, str], url: str, why: object) -> StreamError:
    """The error for an unreadable reply. If it is a web page or not JSON, the address is wrong, and the error is
    not retried.
    """
    kind = _content_type(headers)
    message = (
        f"{name}: the reply of {host_of(url)} does not follow its protocol ({kind or 'no content type'}): {why}"
    )
    message += f"; it starts with {_excerpt(body[:EXCERPT_BYTES], 160)!r}" if body.strip() else "; it is empty"
    of_model_servers = any(word in kind for word in ("json", "event-stream", "octet-stream"))
    if body.lstrip()[:1] == b"<" or (kind and body.strip() and not of_model_servers):
        return StreamError(f"{message}; is base_url right?", retryable=False)
    return StreamError(message)


def is_page(headers: Mapping[str, str]) -> bool:
    """Whether a reply is a web page or an image."""
    return _content_type(headers).startswith(
        ("text/html", "application/xhtml", "text/xml", "application/xml", "image/")
    )


def origin(status: int, headers: Mapping[str, str], body: bytes, url: str) -> str:
    """The origin of a reply, for an error's text. Empty if the provider obviously sent it."""
    if 300 <= status < 400:
        target = headers.get("location", "")
        where = f"to {place(target)}" if target else "without a target"
        return f" ({host_of(url)} redirects {where}, and redirects are not followed: correct base_url)"
    if body.lstrip()[:1] in (b"{", b"[") or body.startswith((b"data:", b"event:")):
        return ""
    return f" ({_content_type(headers) or 'no content type'}, from {host_of(url)})"


def _content_type(headers: Mapping[str, str]) -> str:
    """The media type in lower case, without parameters. Empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _excerpt(body: bytes, longest: int) -> str:
    """The first words of a body, without HTML tags."""
    text = re.sub(rb"<[^>]*>|\s+", b" ", body).decode("utf-8", "replace")
    return " ".join(text.split())[:longest]
