"""The AdapterError for a provider's reply, out of the HTTP status and the body.

The evidence has the same order for every provider: the body's type and code, then the status, and the text of the
message last. The text decides only about errors that have nothing else (context overflow, spent credit, bad keys).
Each provider adds its own table of codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

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
from callboard.bus.values.json import Json, JsonObject

from ..http.retry import retry_after_seconds
from ..replies.broken_json import mend_body
from ..requests.text import as_text
from .details import USED_UP, detail_delay, detail_reason
from .gateways import LITELLM_CODES, exception_name
from .reset_hints import reset_seconds

ErrorType: TypeAlias = type[AdapterError]

COMMON_CODES: Mapping[str, ErrorType] = {
    "insufficient_quota": QuotaExceededError,
    "billing_error": QuotaExceededError,
    "billing_hard_limit_reached": QuotaExceededError,
    "credit_balance_exhausted": QuotaExceededError,
    "enforced_spend_limit_reached": QuotaExceededError,
    "contract_spend_limit_reached": QuotaExceededError,
    "exceeded_current_quota_error": QuotaExceededError,
    "context_length_exceeded": ContextOverflowError,
    "exceed_context_size_error": ContextOverflowError,
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
    # reasons among Google's details
    USED_UP: QuotaExceededError,
    "API_KEY_INVALID": AuthError,
    "API_KEY_EXPIRED": AuthError,
    **LITELLM_CODES,
}
"""Codes and types that mean the same wherever they are used."""

_WEAK_CODES = frozenset(
    {"invalid_request_error", "api_error", "server_error", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "INTERNAL"}
)
"""Types so general that a more telling message or status goes before them."""

_STATUS: Mapping[int, ErrorType] = {
    401: AuthError,
    402: QuotaExceededError,
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

_OVERFLOW = re.compile(
    r"prompt is too long"
    r"|input length and `max_tokens` exceed context limit"
    r"|input is too long for requested model"
    r"|exceeds the (?:model's )?context window"
    r"|maximum context length (?:is|of) [\d,]+"
    r"|input token count .*exceeds the maximum"
    r"|maximum prompt length is \d+"
    r"|reduce the length of the (?:messages|input|prompt)"
    r"|prompt token count of \d+ exceeds the limit of \d+"
    r"|exceeds the available context size"
    r"|input \(\d+ tokens\) is too large to process"
    r"|tokens to keep from the initial prompt is greater than the context length"
    r"|context window exceeds limit"
    r"|exceeded model token limit"
    r"|too large for model with \d+ maximum context length"
    r"|current length is \d+ while limit is \d+"
    r"|tokens \+ .max_new_tokens. must be <= \d+"
    r"|must have less than \d+ tokens"
    r"|longer than the (?:model's )?context length"
    r"|input length .*exceeds the (?:model's )?(?:maximum )?context length"
    r"|input tokens exceed the configured limit"
    r"|too many tokens(?! per|, please)"
    r"|token limit exceeded"
    r"|input tokens exceeded"
    r"|exceeds? context limit",
    re.IGNORECASE | re.DOTALL,
)
_QUOTA = re.compile(
    r"credit balance is too low"
    r"|exceeded your current quota, please check your plan and billing"
    r"|reached your specified (?:\w+ )?api usage limits"
    r"|insufficient balance",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(r"incorrect api key|invalid api key|api key not valid|api key not found", re.IGNORECASE)
_ASKED_OF_LIMIT = re.compile(
    r"\blimit:? (\d[\d,]{0,17})\b.{0,80}?\brequested:? (\d[\d,]{0,17})", re.IGNORECASE | re.DOTALL
)
_NO_MODEL = re.compile(r"invalid model name passed in model=", re.IGNORECASE)  # LiteLLM's
_NO_MEDIA = re.compile(r"(?:image|audio|video) input is not supported")  # llama.cpp's, with 500
_BY_MESSAGE: tuple[tuple[frozenset[int | None], re.Pattern[str], ErrorType], ...] = (
    (frozenset({None, 400, 402, 403, 429}), _QUOTA, QuotaExceededError),
    (frozenset({None, 400, 413, 422, 424, 500}), _OVERFLOW, ContextOverflowError),
    (frozenset({None, 400, 403}), _BAD_KEY, AuthError),
    (frozenset({None, 400}), _NO_MODEL, NotFoundError),
    (frozenset({None, 500}), _NO_MEDIA, InvalidRequestError),
)
"""The words of messages, in the order of their evidence, each with the statuses that it may come with."""
_EVENT_DATA = re.compile(rb"\s*(?:event:[^\n]*\n)?data:(?P<data>[^\n]*)")


class ErrorBody(msgspec.Struct, frozen=True):
    """The facts of an error reply, wherever they stand in its body. An empty string is an unknown fact."""

    type: str = ""
    """The provider's type of the error."""
    code: str = ""
    """The provider's code of the error."""
    message: str = ""
    """The provider's message."""
    param: str = ""
    """The name of the parameter that the error is about."""
    detail_code: str = ""
    """The code of the error's details."""
    request_id: str = ""
    """The provider's identifier of the request."""
    retry_after: float | None = None
    """The time to wait in seconds, if the body has a field for it."""


def read_error(body: bytes) -> ErrorBody:
    """Find the error in a body of any known shape. A body of unknown shape is itself the message."""
    event = _EVENT_DATA.match(body)  # LiteLLM refuses a stream so, with an error's status
    try:
        value = _decoded(body if event is None else event["data"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = re.sub(rb"<[^>]*>|\s+", b" ", body[:4000]).decode("utf-8", "replace")
        return ErrorBody(message=" ".join(text.split())[:500])
    return read_error_value(value)


def _decoded(body: bytes) -> Json:
    try:
        value: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        mended = mend_body(body)
        if mended is None:
            raise
        value = msgspec.json.decode(mended.text)
    return value


def read_error_value(value: Json) -> ErrorBody:
    """As `read_error`, for a body already decoded."""
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
        detail_code = "moderation"  # OpenRouter's, which has no other name for it
    canonical = _canonical(error.get("status"))
    return ErrorBody(
        type=_text(error.get("type")) or canonical,
        code="" if canonical else _text(error.get("code")),  # there it is but the HTTP status again
        message=message,
        param=_text(error.get("param")),
        detail_code=detail_code,
        request_id=request_id,
        retry_after=detail_delay(details),
    )


def _canonical(status: Json) -> str:
    """Google's name of a status. Other providers have a number in the field `status`."""
    return status if isinstance(status, str) and status.replace("_", "").isupper() else ""


def _text(value: Json) -> str:
    return "" if value is None else as_text(value)


def error_type(body: ErrorBody, status: int | None, codes: Mapping[str, ErrorType]) -> ErrorType:
    """The kind of an error, by the order of evidence.

    Args:
        body: The facts of the error reply.
        status: The HTTP status; None for an error inside a stream.
        codes: The provider's own table of codes, which goes first.
    """
    named = [name for name in (body.detail_code, body.code, body.type) if name]
    strong = [name for name in named if name not in _WEAK_CODES]
    for name in strong:
        if name in codes:
            return codes[name]
    for name in strong:
        if name in COMMON_CODES:
            return COMMON_CODES[name]
        if name.endswith("_spend_limit_exceeded"):
            return QuotaExceededError
    for statuses, words, kind in _BY_MESSAGE:
        if status in statuses and words.search(body.message):
            return kind
    if status is None and re.fullmatch(r"[1-9][0-9]{2}", body.code):
        status = int(body.code)
    if status is not None and status >= 300:
        return _by_status(status)
    for name in named:
        if name in COMMON_CODES:
            return COMMON_CODES[name]
    return AdapterError


def _never_fits(message: str) -> bool:
    """Whether a request is larger than the limit of a whole minute, as OpenAI and Groq say it."""
    found = _ASKED_OF_LIMIT.search(message)
    if found is None:
        return False
    limit, asked = (int(number.replace(",", "")) for number in found.groups())
    return asked > limit


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

    A 409 is worth another attempt. A rate limit with status 413 is not, nor is one whose request is larger than
    the limit, because it never fits. `x-should-retry: false` makes any error final. ``true`` can't make an error
    passing that the contract raises at once.

    Args:
        body: The facts of the error reply.
        provider: The adapter's name.
        codes: The provider's own table of codes.
        status: The HTTP status; None for an error inside a stream.
        headers: The headers of the reply, with lower-case names.
        now_us: The present time, in microseconds since the epoch.
    """
    kind = error_type(body, status, codes)
    retryable: bool | None = None
    if status == 409:
        retryable = True
    if kind is AdapterError:
        retryable = True  # unknown errors are retried, before any output was delivered
    if issubclass(kind, RateLimitError) and (status == 413 or _never_fits(body.message)):
        retryable = False
    if headers.get("x-should-retry") == "false":
        retryable = False
    said = body.message or body.type or body.code or "no explanation"
    code = body.detail_code or body.code or body.type or None
    hint = retry_after_seconds(headers, body.message, now_us)
    hint = body.retry_after if hint is None else hint
    if hint is None and status == 429:
        hint = reset_seconds(headers, now_us)
    return kind(
        f"{provider}: {said}" if status is None else f"{provider} answered {status}: {said}",
        provider=provider,
        provider_status=status,
        provider_code=code,
        provider_message=body.message,
        provider_param=body.param or None,
        retryable=retryable,
        retry_after_seconds=hint if issubclass(kind, RateLimitError | ServerError | NetworkError) else None,
        provider_request_id=headers.get("request-id") or headers.get("x-request-id") or body.request_id or None,
    )
