"""OpenAI's error codes that have a meaning of their own, and errors inside a reply."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters.refusals.classify import ErrorType, error_without_status, read_error_value
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    ContentFilterError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    ServerError,
)
from callboard.bus.values.json import Json

CODES: Mapping[str, ErrorType] = {
    "invalid_prompt": InvalidRequestError,
    "invalid_encrypted_content": InvalidRequestError,
    "invalid_json_schema": InvalidRequestError,
    "invalid_function_parameters": InvalidRequestError,
    "unsupported_parameter": InvalidRequestError,
    "unsupported_value": InvalidRequestError,
    "invalid_value": InvalidRequestError,
    "invalid_base64_image": InvalidRequestError,
    "invalid_image": InvalidRequestError,
    "invalid_image_format": InvalidRequestError,
    "invalid_image_mode": InvalidRequestError,
    "invalid_image_url": InvalidRequestError,
    "image_too_large": InvalidRequestError,
    "image_too_small": InvalidRequestError,
    "image_parse_error": InvalidRequestError,
    "image_file_too_large": InvalidRequestError,
    "image_file_not_found": InvalidRequestError,
    "empty_image_file": InvalidRequestError,
    "unsupported_image_media_type": InvalidRequestError,
    "failed_to_download_image": InvalidRequestError,
    "image_content_policy_violation": ContentFilterError,
    "bio_policy": ContentFilterError,
    "cyber_policy": ContentFilterError,
    "misalignment_policy_violation": ContentFilterError,
    "data_residency_mismatch": AccessDeniedError,
    "unsupported_country_region_territory": AccessDeniedError,
    "DeploymentNotFound": NotFoundError,
    "previous_response_not_found": NotFoundError,
    "vector_store_timeout": ServerError,
    "engine_overloaded_error": OverloadedError,
    "usage_limit_reached": QuotaExceededError,
}


def error_in_reply(value: Json, provider: str) -> AdapterError:
    """What an error means that came with status 200: nested or flat, an event or a failed response's field."""
    return error_without_status(read_error_value(value), CODES, provider)
