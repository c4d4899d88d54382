"""The errors of Ollama. Each has a status and a sentence. An error inside a stream has only the sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.adapters.refusals.classify import ErrorBody, ErrorType, build_error, read_error_value
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from callboard.bus.values.json import Json

ERROR_CODES: Mapping[str, ErrorType] = {
    "server_busy": OverloadedError,
    "unsupported": CapabilityError,
    "model_missing": NotFoundError,
    "out_of_memory": ServerError,
    "runner_failed": ServerError,
    "request_canceled": ServerError,
    "context_exceeded": ContextOverflowError,
    "usage_limit": QuotaExceededError,
    "too_many_requests": RateLimitError,
    "unauthorized": AuthError,
    "cloud_disabled": AccessDeniedError,
    "bad_value": InvalidRequestError,
}
"""By the names that `named` gives to sentences."""

_SENTENCES: tuple[tuple[str, str], ...] = (
    (r"server busy|maximum pending requests exceeded|server overloaded", "server_busy"),
    (r"does not support (?:chat|tools|thinking|insert|vision|images?|generate|completion)", "unsupported"),
    (r"think value .+ is not supported", "unsupported"),
    (r"model .+ not found|try pulling it first", "model_missing"),
    (r"requires more system memory|out of memory|cudamalloc failed", "out_of_memory"),
    (r"longer than the context length|exceeds the (?:model's maximum )?context length", "context_exceeded"),
    (r"runner process (?:has terminated|no longer running)|timed out waiting for llama runner", "runner_failed"),
    (r"request cancell?ed|context canceled", "request_canceled"),
    (r"reached your .*usage limit", "usage_limit"),
    (r"too many (?:concurrent )?requests", "too_many_requests"),
    (r"^unauthorized", "unauthorized"),
    (r"cloud .*disabled", "cloud_disabled"),
    (r"^invalid |cannot unmarshal|is required", "bad_value"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), code) for pattern, code in _SENTENCES)

_LASTING = frozenset({"out_of_memory"})
"""What another attempt on the same machine won't heal."""


def named(body: ErrorBody) -> ErrorBody:
    """The error with a code made of its sentence, if it is a known one and the server gave none."""
    if body.code or body.type:
        return body
    for pattern, code in _PATTERNS:
        if pattern.search(body.message):
            return msgspec.structs.replace(body, code=code)
    return body


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (then `status` is None)."""
    body = named(body)
    error = build_error(
        body,
        status=status,
        headers=headers,
        codes=ERROR_CODES,
        provider=provider,
        now_us=now_us,
    )
    if body.code in _LASTING:
        error.retryable = False
    return error


def error_in_reply(error: Json, provider: str) -> AdapterError:
    """The error that a reply of status 200, or a line of one, carries."""
    return classify(read_error_value({"error": error}), None, {}, provider=provider, now_us=0)
