"""The parameters that Gemini's models accept, as data, because they change monthly and code must not.

The models are in `models.json`; see `adapters.model_table`.
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

from ...model_table import ModelFile, ModelRow, ModelTable
from ...refusals.classify import ErrorType, error_without_status, read_error_value
from ...refusals.repair import Refusal, RepairRules


class Model(ModelRow, frozen=True, kw_only=True):
    """What a model takes, besides what is known of any. With neither `levels` nor `budget` it doesn't think."""

    levels: tuple[str, ...] = ()
    """The thinking levels, the weakest first."""
    budget: tuple[int, int] | None = None
    """The least and the most tokens that the model may think with."""
    stops_thinking: bool = False
    """Whether a budget of 0 is taken."""
    sampling: bool = True
    """Whether temperature and top_p are heeded."""
    modern: bool = False
    """Whether the model is of Gemini 3 or later: calls must come back signed, results may hold images, and JSON
    goes together with tools, as do tools of ours with the provider's.
    """
    system: bool = True
    """Whether the model takes system text."""
    media: bool = True
    """Whether the model takes audio and documents."""

    @property
    def reasons(self) -> bool:
        return bool(self.levels) or self.budget is not None


TABLE = ModelTable(__name__, ModelFile[Model])

UNLISTED = Model(
    id="", display_name="", context_window=None, max_output=None, levels=("low", "medium", "high"), modern=True
)
"""A model that is like none in the table is taken for a newer one."""

BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 32_768}
"""Tokens to think with, for models that take no levels."""


@functools.lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The row of a model, with or without the folder it stands in; None if it is like none of them."""
    return TABLE.resembling(name.rpartition("/")[2])


_ENSURE = r"Please ensure that "
REPAIRS = RepairRules(
    # wire-facts 4.2, 4.4, and issues of 2024 to 2026 that quote the replies
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
"""Calls without the signature that a newer model wants are told in words, too."""


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
