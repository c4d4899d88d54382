"""Gemini's models and error texts as data, because they change monthly.

The models are in `models.json`; see `adapters.provider`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    InvalidRequestError,
    QuotaExceededError,
    ServerError,
)
from callboard.bus.values.base import Json

from ...http.errors import ErrorType, error_without_status, read_error_value
from ...http.repair import Refusal, RepairRules
from ...provider import ModelFile, ModelRow, ModelTable


class Model(ModelRow, frozen=True, kw_only=True):
    """The parameters of a model that differ from the common ones.

    A model without `levels` and `budget` doesn't think.
    """

    levels: tuple[str, ...] = ()
    """The thinking levels in increasing order."""
    budget: tuple[int, int] | None = None
    """The smallest and the largest number of thinking tokens."""
    stops_thinking: bool = False
    """Whether a budget of 0 is accepted."""
    sampling: bool = True
    """Whether temperature and top_p have an effect."""
    modern: bool = False
    """Whether the model is of Gemini 3 or later.

    Such a model requires signed calls, accepts images in results, and can combine tools with a JSON schema and
    with the provider's own tools.
    """
    system: bool = True
    media: bool = True
    """Whether the model accepts audio and documents."""

    @property
    def reasons(self) -> bool:
        return bool(self.levels) or self.budget is not None


TABLE = ModelTable(__name__, ModelFile[Model])

UNLISTED = Model(
    id="", display_name="", context_window=None, max_output=None, levels=("low", "medium", "high"), modern=True
)
"""The row for an unlisted model, which is treated as a newer model."""

BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 32_768}
"""Thinking tokens for each effort, for models without levels."""


@functools.lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The row of a model, with or without its folder; None if unknown."""
    return TABLE.resembling(name.rpartition("/")[2])


_ENSURE = r"Please ensure that "
REPAIRS = RepairRules(
    # Sources: wire-facts 4.2, 4.4, and issues of 2024 to 2026 that quote the replies
    signatures=(
        r"(?:Corrupted|Invalid) thought signature\.?",
        r"(?:Unable to submit request because )?[Tt]hought signature is not valid\b.{0,300}",
        r"Invalid value at '(?:request\.)?contents\[\d+\]\.parts\[\d+\]\.thought_?[sS]ignature' \(TYPE_BYTES\), "
        r"Base64 decoding failed.{0,3000}",
    ),
    parameters=(
        Refusal(
            r"Penalty is not enabled for .{1,150}",
            "generationConfig.frequencyPenalty",
            also=("generationConfig.presencePenalty",),
        ),
        Refusal(
            r"(?:Unable to submit request because )?[Tt]hinking[_ ]level (?:\w+ )?is not supported "
            r"(?:for|by) this model\..{0,300}",
            "generationConfig.thinkingConfig",
        ),
        Refusal(
            r"(?:thinking_config|Thinking) is not (?:supported|enabled)\b.{0,150}",
            "generationConfig.thinkingConfig",
        ),
        Refusal(
            r"Budget 0 is invalid\. This model only works in thinking mode\..{0,200}",
            "generationConfig.thinkingConfig",
        ),
    ),
    pairs=(
        _ENSURE
        + r"function call turn comes immediately after a user turn or after a function response turn\..{0,200}",
        _ENSURE
        + r"the number of function response parts is equal to the number of function call parts of the "
        + r"function call turn\..{0,200}",
        r"Function call is missing a thought_signature in functionCall parts\..{0,800}",
    ),
    essential=frozenset(
        {
            "contents",
            "systemInstruction",
            "tools",
            "toolConfig",
            "cachedContent",
            "generationConfig.maxOutputTokens",
            "generationConfig.responseMimeType",
            "generationConfig.responseJsonSchema",
        }
    ),
)
"""The repair rules. Calls without the signature that a newer model requires are written as text."""


CODES: Mapping[str, ErrorType] = {
    # reasons in an ErrorInfo, which override the status
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
    "CANCELLED": ServerError,  # cancelled by the provider; a reply that Callboard cancels never has this status
    "ABORTED": ServerError,
    "UNKNOWN": ServerError,
    "DATA_LOSS": ServerError,
}


def error_in_reply(value: Json, provider: str) -> AdapterError:
    return error_without_status(read_error_value(value), CODES, provider)
