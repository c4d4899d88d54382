"""Google's reasons and canonical statuses that have a meaning of their own, and errors inside a reply.

The time for which a caller should wait is in the body's details; see `adapters.refusals.details`.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters.refusals.classify import ErrorType, error_without_status, read_error_value
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    InvalidRequestError,
    QuotaExceededError,
    ServerError,
)
from callboard.bus.values.json import Json

CODES: Mapping[str, ErrorType] = {
    # reasons in an ErrorInfo, which go before the status
    "ACCESS_TOKEN_EXPIRED": AuthError,
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": AuthError,
    "CREDENTIALS_MISSING": AuthError,
    "API_KEY_SERVICE_BLOCKED": AccessDeniedError,
    "SERVICE_DISABLED": AccessDeniedError,
    "CONSUMER_SUSPENDED": AccessDeniedError,
    "BILLING_DISABLED": QuotaExceededError,
    # error.status
    "OUT_OF_RANGE": InvalidRequestError,
    "UNIMPLEMENTED": InvalidRequestError,
    "CANCELLED": ServerError,  # by the provider: what we cancel gets no answer
    "ABORTED": ServerError,
    "UNKNOWN": ServerError,
    "DATA_LOSS": ServerError,
}


def error_in_reply(value: Json, provider: str) -> AdapterError:
    """What an error means that came with status 200, as an event, a reply or a list of them."""
    return error_without_status(read_error_value(value), CODES, provider)
