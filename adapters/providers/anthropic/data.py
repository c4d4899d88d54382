"""Anthropic's models and error texts as data, because they change monthly.

The models are in `models.json`; see `adapters.provider`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Literal

from callboard.bus.errors import InvalidRequestError, QuotaExceededError, RateLimitError, ServerError

from ...http.errors import ErrorType
from ...http.repair import Refusal, RepairRules
from ...provider import ModelFile, ModelRow, ModelTable


class Model(ModelRow, frozen=True, kw_only=True):
    """The parameters of a model that differ from the common ones."""

    thinking: tuple[str, ...] = ()
    thinks_unasked: bool = False
    """Whether the model thinks by default."""
    efforts: tuple[str, ...] = ()
    """The values of `output_config.effort`, the weakest first."""
    sampling: Literal["free", "one", "none"]
    """The supported parameters of temperature and top_p: both (``free``), only ``one`` of them, or ``none``."""
    beginnings: bool = False
    """Whether the model continues its own last message. Models since Opus 4.6 reject such requests."""
    forced_tools: bool = True
    """Whether a tool call can be required if budgeted thinking is off."""
    cache_minimum: int = 1024
    """The smallest number of tokens of a prompt that is cached."""

    @property
    def reasons(self) -> bool:
        return bool(self.thinking)


TABLE = ModelTable(__name__, ModelFile[Model])

BUDGETS: Mapping[str, int] = {
    "minimal": 1_024,
    "low": 4_096,
    "medium": 10_000,
    "high": 20_000,
    "xhigh": 32_000,
    "max": 48_000,
}
"""Thinking tokens for each effort, for models with budgets only.

These are Callboard's values, because Anthropic publishes none.
"""

LEAST_BUDGET = 1_024

_SINCE_NO_SAMPLING = (4, 7)
"""From this version on, all model families reject temperature and top_p."""

_NAME = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<after>[a-z]+))?"
)


@functools.lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The row of a model, or None if it is unknown. The name may have a date or a vendor's prefix.

    An unlisted version uses the row of the closest older version in its family.
    """
    parsed = _parse(name)
    if parsed is None:
        return None
    family, version = parsed
    rows = _by_version().get(family, {})
    return next((rows[since] for since in sorted(rows, reverse=True) if since <= version), None)


def is_newer_claude(name: str) -> bool:
    """Whether an unlisted model is a newer Claude, by its name."""
    if "claude" not in name or "claude-instant" in name:
        return False
    parsed = _parse(name)
    return parsed is None or parsed[1] >= _SINCE_NO_SAMPLING


def _parse(name: str) -> tuple[str, tuple[int, int]] | None:
    """Family and version, such as ``opus`` and (4, 5)."""
    match = _NAME.search(name)
    if match is None:
        return None
    return match["family"] or match["after"] or "", (int(match["major"]), int(match["minor"] or 0))


@functools.cache
def _by_version() -> Mapping[str, Mapping[tuple[int, int], Model]]:
    rows: dict[str, dict[tuple[int, int], Model]] = {}
    for row in TABLE.rows:
        parsed = _parse(row.id)
        if parsed is None:
            raise ValueError(f"models.json: {row.id} has no version in its name")
        rows.setdefault(parsed[0], {})[parsed[1]] = row
    return rows


_PLACE = r"(?:The model returned the following errors: )?messages\.\d+"
_AT = _PLACE + r"(?:\.content\.\d+)?(?:\.\w+)?: "

REPAIRS = RepairRules(
    # Sources: wire-facts 1.6, and issues of 2025 and 2026 that quote the replies
    signatures=(
        _AT + r"Invalid `?signature`? in `?thinking`? block\b.*",
        _AT + r"Invalid `?data`? in `?redacted_thinking`? block\b.*",
        _AT + r"`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified\..*",
        _AT + r"each thinking block must contain thinking",
        _PLACE + r"\.content\.\d+\.thinking\.signature(?:\.str)?: "
        r"(?:Field required|Input should be a valid string)",
        _AT + r"The block is bound to a different conversation\..*",
    ),
    parameters=(
        Refusal(r"`?(?P<name>[a-z_.]+)`? is deprecated (?:for|in) this model\.?"),
        Refusal(r"`?\"?(?P<name>[a-z_.]+)\"?`? is not supported (?:for|on|with|by) this model\b.{0,300}"),
        Refusal(r"(?P<name>[A-Za-z_0-9.]+): Extra inputs are not permitted"),
        Refusal(r"`temperature` and `top_p` cannot both be specified for this model\b.{0,100}", "top_p"),
        Refusal(r"This model does not support effort level '\w+'\..{0,200}", "output_config.effort"),
        Refusal(r"This model does not support the effort parameter\.?", "output_config.effort"),
        Refusal(r"adaptive thinking is not supported on this model\.?", "thinking"),
    ),
    pairs=(
        _AT
        + r"`tool_use` ids were found without `tool_result` blocks immediately after: (?P<ids>[\w, -]+)\. Each .*",
        _AT + r"unexpected `tool_use_id` found in `tool_result` blocks: (?P<ids>[\w-]+)\..*",
    ),
    essential=frozenset(
        {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "output_config.format"}
    ),
    whole=frozenset({"thinking", "metadata"}),
    anywhere=frozenset({"cache_control", "strict", "citations", "caller"}),
)


ERROR_CODES: Mapping[str, ErrorType] = {
    # error.type
    # 413 counts bytes, not tokens: a smaller history does not help an image
    "request_too_large": InvalidRequestError,
    "conflict_error": InvalidRequestError,
    "timeout_error": ServerError,
    # error.details.error_code, which overrides the type
    "enforced_spend_limit_reached": QuotaExceededError,
    "contract_spend_limit_reached": QuotaExceededError,
    "ramp_limit_exceeded": RateLimitError,
    "image_dimensions_too_large": InvalidRequestError,
    "tool_name_conflict": InvalidRequestError,
    "available_tools_limit_exceeded": InvalidRequestError,
    "request_body_too_large_after_decoding": InvalidRequestError,
}
