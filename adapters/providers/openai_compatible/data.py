"""Error texts and codes of Chat Completions servers, as data."""

from __future__ import annotations

from collections.abc import Mapping

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
from callboard.bus.values.base import Json

from ...http.errors import ErrorType, error_without_status, read_error, read_error_value
from ...http.repair import Refusal, RepairRules

REPAIRS = RepairRules(
    # Sources: wire-facts 3.1, 3.2, 3.6, 3.7, and issues of 2024 to 2026 that quote the replies
    signatures=(
        r"(?:messages\.\d+(?:\.content\.\d+)?: )?Invalid `?signature`? in `?thinking`? block\b.*",
        r"(?:messages\.\d+(?:\.content\.\d+)?: )?`thinking` or `redacted_thinking` blocks in the latest assistant "
        r"message cannot be modified\..*",
        # Gemini, at its own endpoint or behind a gateway
        r"(?:Corrupted|Invalid) thought signature\.?",
        r"(?:Unable to submit request because )?[Tt]hought signature is not valid\b.{0,300}",
        # OpenAI, behind a gateway
        r"The encrypted content .{1,200} could not be (?:verified|decrypted)\b.{0,300}",
    ),
    parameter_codes=frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"}),
    parameters=(
        # OpenAI, and servers that quote it. In Chat Completions, models that reason by default reject tools with
        # reasoning.
        Refusal(
            r"Function tools with reasoning_effort are not supported for \S{1,100} in \S{1,50}\. .{0,200}",
            "reasoning_effort",
            "none",
        ),
        Refusal(r"Unsupported (?:parameter|value): '(?P<name>[\w.]+)' .{0,300}"),
        Refusal(r"Unknown parameter: '(?P<name>[\w.]+)'\.?.{0,100}"),
        Refusal(r"Unrecognized request arguments? supplied: (?P<name>\w+)"),
        # Groq, Cerebras
        Refusal(r"(?:'\w+' ?: ?)?property '(?P<name>\w+)' is unsupported(?:, did you mean '\w+'\?)?"),
        Refusal(
            r"'messages\.\d+' ?: for 'role:assistant' the following must be satisfied\[\('messages\.\d+' ?: "
            r"property '(?P<name>\w+)' is unsupported(?:, did you mean '\w+'\?)?\)\]"
        ),
        Refusal(r"messages\.\d+\.assistant\.(?P<name>\w+): property '[\w.]+' is unsupported(?:\n.{1,200}){0,99}"),
        Refusal(r"`?(?P<name>[a-z_]+)`? is not supported (?:for|with|by) this model\.?"),
        # xAI
        Refusal(r"Argument not supported on this model: (?P<name>\w+)"),
        Refusal(r"Model \S{1,100} does not support parameter (?P<name>\w+)\.?"),
        # Mistral, vLLM and other servers that check with pydantic; Fireworks
        Refusal(r'(?:\{"detail":)?\[\{"type":"extra_forbidden","loc":\["body","(?P<name>\w+)"\].*'),
        Refusal(r"Extra inputs are not permitted, field: '(?P<name>\w+)'.{0,200}"),
        # Gemini
        Refusal(r"Penalty is not enabled for .{1,150}", "frequency_penalty", also=("presence_penalty",)),
        Refusal(
            r"(?:Unable to submit request because )?[Tt]hinking[_ ]level (?:\w+ )?is not supported "
            r"(?:for|by) this model\..{0,300}",
            "reasoning_effort",
            also=("reasoning",),
        ),
        # Anthropic, behind a gateway
        Refusal(r"`temperature` and `top_p` cannot both be specified for this model\b.{0,100}", "top_p"),
        # Ollama
        Refusal(r'"[^"]{1,100}" does not support thinking', "reasoning_effort"),
    ),
    pairs=(
        r"An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        r"'tool_call_id'\. The following tool_call_ids did not have response messages: (?P<ids>[\w, .:-]+)",
        r"(?:Invalid parameter: )?messages with role 'tool' must be a response to a prece+ding message with "
        r"'tool_calls'\.?",
        r"Function call is missing a thought_signature in functionCall parts\..{0,800}",
        r"Not the same number of function calls and responses",
        r"No tool (?:output|call) found for function call (?:output with call_id )?(?P<ids>[\w.:-]+)",
    ),
    essential=frozenset(
        {
            "model",
            "messages",
            "tools",
            "tool_choice",
            "response_format",
            "stream",
            "store",
            "max_tokens",
            "max_completion_tokens",
            "modalities",
        }
    ),
    whole=frozenset({"thinking", "reasoning", "stream_options"}),
    renames={"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"},
    anywhere=frozenset({"strict", "reasoning_content", "reasoning_details", "cache_control"}),
)


# --- Error codes ---

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
    # vLLM, TGI. vLLM's BadRequestError adds nothing to the status: overflows have that name too.
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
"""The error codes. They take precedence over `adapters.http.errors.COMMON_CODES`."""


def error_in_reply(value: Json, provider: str) -> AdapterError:
    return error_without_status(read_error_value(value), ERROR_CODES, provider)


def error_in_body(body: bytes, provider: str) -> AdapterError:
    """Like `error_in_reply`, for a body or an event that is only the error, in any shape."""
    return error_without_status(read_error(body), ERROR_CODES, provider)


def overflow_of(error: AdapterError) -> ContextOverflowError:
    """Convert an error to the ContextOverflowError with the same fields."""
    return ContextOverflowError(
        str(error),
        provider=error.provider,
        provider_status=error.provider_status,
        provider_code=error.provider_code,
        provider_message=error.provider_message,
        request_id=error.request_id,
        provider_request_id=error.provider_request_id,
    )
