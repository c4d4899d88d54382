"""The errors of TGI. Each has a sentence and an `error_type`. An error in a streamed reply comes as an event,
whatever the status of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.refusals.classify import ErrorBody, ErrorType, build_error, error_type
from callboard.bus.errors import AdapterError, InvalidRequestError, OverloadedError, ServerError
from callboard.bus.values.json import Json

ERROR_CODES: Mapping[str, ErrorType] = {
    "overloaded": OverloadedError,
    "generation": ServerError,
    "incomplete_generation": ServerError,
    "incomplete_generation_stream": ServerError,
    "unhealthy": ServerError,
    "template_error": InvalidRequestError,
    "tool_error": InvalidRequestError,
    "missing_template_vertices": InvalidRequestError,
}
"""By `error_type`. ``validation`` is not among them: a prompt that is too long comes under that name as well."""

_VALIDATION = "validation"
_VALIDATION_STATUS = 422


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (then `status` is None)."""
    codes = dict(ERROR_CODES)
    if body.type == _VALIDATION:
        codes[_VALIDATION] = error_type(msgspec.structs.replace(body, type=""), _VALIDATION_STATUS, {})
    return build_error(
        body,
        status=status,
        headers=headers,
        codes=codes,
        provider=provider,
        now_us=now_us,
    )


def loading_seconds(value: Json) -> float | None:
    """How long a model that is still being loaded may take, as hosted inference says with a 503."""
    seconds = value.get("estimated_time") if isinstance(value, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return None
    return float(seconds)
