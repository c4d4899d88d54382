"""The codes and types of errors in this protocol, and errors inside a reply."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters.refusals.classify import ErrorType, error_without_status, read_error, read_error_value
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
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
    # OpenAI and Azure
    "insufficient_permissions": AccessDeniedError,
    "unsupported_country_region_territory": AccessDeniedError,
    "DeploymentNotFound": NotFoundError,
    "responsible_ai_policy_violation": ContentFilterError,
    # Groq
    "tool_use_failed": InvalidRequestError,
    "json_validate_failed": InvalidRequestError,
    "model_decommissioned": NotFoundError,
    # vLLM, TGI (vLLM's BadRequestError is no better than a status: an overflow comes under that name, too)
    "NotFoundError": NotFoundError,
    "generation": ServerError,
    "overloaded": OverloadedError,
    "incomplete_generation": ServerError,
    # Moonshot
    "engine_overloaded_error": OverloadedError,
    "rate_limit_reached_error": RateLimitError,
    "invalid_authentication_error": AuthError,
    "resource_not_found_error": NotFoundError,
    # Together, Fireworks
    "model_not_available": NotFoundError,
    # Z.ai
    "1000": AuthError,
    "1001": AuthError,
    "1002": AuthError,
    "1003": AuthError,
    "1113": QuotaExceededError,
    "1210": InvalidRequestError,
    "1211": NotFoundError,
    "1220": AccessDeniedError,
    "1234": ServerError,
    "1261": ContextOverflowError,
    "1301": ContentFilterError,
    "1302": RateLimitError,
    "1303": RateLimitError,
    "1304": QuotaExceededError,
    "1305": OverloadedError,
    "1308": QuotaExceededError,
    "1309": QuotaExceededError,
    "1310": QuotaExceededError,
    # Cerebras
    "wrong_api_key": AuthError,
    "queue_exceeded": OverloadedError,
    "too_many_requests_error": RateLimitError,
}
"""Beside `adapters.refusals.classify.COMMON_CODES`, and before them."""


def error_in_reply(value: Json, provider: str) -> AdapterError:
    """The error that a reply of status 200 carries.

    Args:
        value: The decoded object that has the error.
        provider: The adapter's name.
    """
    return error_without_status(read_error_value(value), ERROR_CODES, provider)


def error_in_body(body: bytes, provider: str) -> AdapterError:
    """As `error_in_reply`, for a body or an event that is nothing but the error, in any shape."""
    return error_without_status(read_error(body), ERROR_CODES, provider)


def overflow_of(error: AdapterError) -> ContextOverflowError:
    """The same error, understood as a prompt that is too long."""
    return ContextOverflowError(
        str(error),
        provider=error.provider,
        provider_status=error.provider_status,
        provider_code=error.provider_code,
        provider_message=error.provider_message,
        request_id=error.request_id,
        provider_request_id=error.provider_request_id,
    )
