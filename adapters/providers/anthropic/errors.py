"""The error types of the Messages API that have a meaning of their own.

The types that it shares with others (`rate_limit_error`, `overloaded_error`, `authentication_error` and so on) are
in `adapters.refusals.classify.COMMON_CODES`. That module also recognises messages, such as those of an overlong
prompt or of spent credit.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters.refusals.classify import ErrorType
from callboard.bus.errors import InvalidRequestError, QuotaExceededError, RateLimitError, ServerError

ERROR_CODES: Mapping[str, ErrorType] = {
    # error.type
    "request_too_large": InvalidRequestError,  # 413 counts bytes, not tokens: no smaller history helps an image
    "conflict_error": InvalidRequestError,
    "timeout_error": ServerError,
    # error.details.error_code, which goes before the type
    "enforced_spend_limit_reached": QuotaExceededError,
    "contract_spend_limit_reached": QuotaExceededError,
    "ramp_limit_exceeded": RateLimitError,
    "image_dimensions_too_large": InvalidRequestError,
    "tool_name_conflict": InvalidRequestError,
    "available_tools_limit_exceeded": InvalidRequestError,
    "request_body_too_large_after_decoding": InvalidRequestError,
}
