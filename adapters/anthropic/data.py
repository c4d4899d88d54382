"""What Anthropic's models and servers take and say, as data: it changes monthly, and code must not."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import msgspec

from adapters.repair import Refusal, RepairRules


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes.

    thinking: the kinds of it that can be asked for. thinks_unasked: it does without being asked. efforts: for
    `output_config.effort`, weakest first. sampling: temperature and top_p, ``free``, ``one`` of them or ``none``.
    forced_tools: a choice that demands a call works, if budgeted thinking is off. structured: it has
    `output_config.format`. Limits, and the least that is cached of a prompt, are in tokens.
    """

    thinking: tuple[str, ...] = ()
    thinks_unasked: bool = False
    efforts: tuple[str, ...] = ()
    sampling: str = "none"
    forced_tools: bool = True
    structured: bool = True
    cache_minimum: int = 1024
    max_context_tokens: int = 200_000
    max_output_tokens: int = 64_000


_HIGH = ("low", "medium", "high")
_MAX = (*_HIGH, "max")
_ALL = (*_HIGH, "xhigh", "max")
_BUDGET = ("enabled", "disabled")
_ADAPTIVE = ("adaptive", "disabled")

_OLD = Model(sampling="free", structured=False, cache_minimum=2048, max_output_tokens=8_192)
_BUDGETED = Model(thinking=_BUDGET, sampling="one", structured=False)
_NEW = Model(
    thinking=_ADAPTIVE, thinks_unasked=True, efforts=_ALL, max_context_tokens=1_000_000, max_output_tokens=128_000
)


def _but(model: Model, **changes: object) -> Model:
    return msgspec.structs.replace(model, **changes)


_V46 = _but(_NEW, thinking=("adaptive", *_BUDGET), thinks_unasked=False, efforts=_MAX, sampling="one")
_V47 = _but(_NEW, thinks_unasked=False, cache_minimum=4096)
_V55 = _but(_NEW, cache_minimum=512)
_UNFORCED = _but(_V55, thinking=("adaptive",), forced_tools=False)

MODELS: Mapping[str, Mapping[tuple[int, int], Model]] = {
    "opus": {
        (3, 0): _but(_OLD, max_output_tokens=4_096),
        (4, 0): _but(_BUDGETED, max_output_tokens=32_000),
        (4, 5): _but(_BUDGETED, efforts=_HIGH, structured=True, cache_minimum=4096),
        (4, 6): _but(_V46, cache_minimum=4096),
        (4, 7): _V47,
        (5, 0): _NEW,
        (5, 5): _UNFORCED,
    },
    "sonnet": {
        (3, 0): _but(_OLD, cache_minimum=1024),
        (3, 7): _but(_BUDGETED, sampling="free"),
        (4, 0): _BUDGETED,
        (4, 5): _but(_BUDGETED, structured=True),
        (4, 6): _but(_V46, cache_minimum=2048),
        (5, 0): _NEW,
        (5, 5): _but(_UNFORCED, thinking=("adaptive", "between_tools")),
    },
    "haiku": {
        (3, 0): _OLD,
        (4, 5): _but(_BUDGETED, structured=True, cache_minimum=4096),
        (5, 5): _V55,
    },
    "fable": {
        (5, 0): _but(_NEW, thinking=("adaptive",), cache_minimum=2048),
        (5, 1): _but(_UNFORCED, cache_minimum=2048),
    },
    "mythos": {
        (5, 0): _but(_NEW, thinking=("adaptive",), cache_minimum=2048),
        (5, 1): _but(_UNFORCED, cache_minimum=2048),
    },
}
"""By family and by the version from which on a row holds: a newer name inherits the newest row before it.

Sources: wire-facts 1.2 (sampling), 1.5 (forced choice), 1.6 (thinking, effort), 1.7 (structured output) and 1.8
(cache minimum); the limits are from Anthropic's pages of each model.
"""

BUDGETS: Mapping[str, int] = {
    "minimal": 1_024,
    "low": 4_096,
    "medium": 10_000,
    "high": 20_000,
    "xhigh": 32_000,
    "max": 48_000,
}
"""Thinking tokens for an effort, for models that have budgets and no efforts. Ours: Anthropic names none."""

LEAST_BUDGET = 1_024

_NAME = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<after>[a-z]+))?"
)


@functools.lru_cache(maxsize=256)
def find_model(name: str) -> Model | None:
    """The row of a model by any of its names, dated or with a vendor's prefix; None for what is none of these."""
    match = _NAME.search(name)
    if match is None:
        return None
    rows = MODELS.get(match["family"] or match["after"] or "")
    if rows is None:
        return None
    version = (int(match["major"]), int(match["minor"] or 0))
    return next((rows[since] for since in sorted(rows, reverse=True) if since <= version), None)


_AT = r"messages\.\d+(?:\.content\.\d+)?(?:\.\w+)?: "

REPAIRS = RepairRules(
    # wire-facts 1.6, and issues of 2025 and 2026 that quote the replies
    signatures=(
        _AT + r"Invalid `?signature`? in `?thinking`? block\b.*",
        _AT + r"Invalid `?data`? in `?redacted_thinking`? block\b.*",
        _AT + r"`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified\..*",
        _AT + r"each thinking block must contain thinking",
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
