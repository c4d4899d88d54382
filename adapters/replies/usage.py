"""Usage: the counts and costs that providers report, and the usage of a reply without an end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import NamedTuple

import msgspec

from callboard.bus.errors import AdapterError, CancelledError, NetworkError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..requests.estimate import at_most

_OBJECT = msgspec.json.Decoder(JsonObject | None)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def decode_usage(raw: bytes | msgspec.Raw) -> JsonObject:
    """The fields of a usage object; empty for null. A field that can't be decoded is left out.

    Raises msgspec's decoding errors for anything but an object.
    """
    try:
        return _OBJECT.decode(raw) or {}
    except _UNREADABLE:
        fields = _FIELDS.decode(raw)
    usage: JsonObject = {}
    for name, value in fields.items():
        with contextlib.suppress(*_UNREADABLE):
            usage[name] = msgspec.json.decode(value, type=Json)
    return usage


def reported_count(value: object) -> int | None:
    """Read a reported count; None if it is missing or not a finite number.

    Some proxies send floats. A negative number is read as 0, and `source_of` makes such a usage partial.
    """
    if type(value) is int:
        return max(0, value)
    if isinstance(value, float) and math.isfinite(value):
        return max(0, int(value))
    return None


def first_count(*counts: int | None) -> int | None:
    """The first count above zero. If there is none, 0 if any count is present, else None."""
    found = None
    for count in counts:
        if count:
            return count
        found = count if found is None else found
    return found


def reported_detail(details: Json, name: str) -> int | None:
    """A count in an object of counts; None if missing."""
    return reported_count(details.get(name)) if isinstance(details, dict) else None


_WRITES = frozenset(
    {"cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "cache_creation"}
)


def cache_writes(details: Json, flat: Json = None, split: Json = None) -> tuple[int, int]:
    """Return the tokens written to a cache, and how many of them were written for an hour.

    The fields may be inside or outside of the prompt's details. A field is `cache_write_tokens` (OpenRouter,
    OpenAI), `cache_creation_tokens` (LiteLLM), or has Anthropic's name (also Qwen).
    """
    if flat is None and split is None and not (isinstance(details, dict) and not _WRITES.isdisjoint(details)):
        return 0, 0
    total = first_count(
        reported_detail(details, "cache_write_tokens"),
        reported_detail(details, "cache_creation_tokens"),
        reported_detail(details, "cache_creation_input_tokens"),
        reported_count(flat),
    )
    inner = details.get("cache_creation") if isinstance(details, dict) else None
    lives = [each for each in (split, inner) if isinstance(each, dict)]
    short = first_count(*(reported_detail(each, "ephemeral_5m_input_tokens") for each in lives)) or 0
    hour = first_count(*(reported_detail(each, "ephemeral_1h_input_tokens") for each in lives)) or 0
    total = total or short + hour
    return total, min(hour, total)


_JSON = msgspec.json.Decoder(Json)


def source_of(
    *parts: tuple[int | None, int | None], raw: bytes | msgspec.Raw, complete: bool = True
) -> UsageSource:
    for part, total in parts:
        if part is not None and part > (total or 0):
            return UsageSource.INCONSISTENT
    if has_negative(raw):
        return UsageSource.INCONSISTENT
    return UsageSource.REPORTED if complete else UsageSource.PARTIAL


def has_negative(raw: bytes | msgspec.Raw) -> bool:
    """Whether a count in a usage is below zero, ignoring money."""
    data = bytes(raw)
    return b"-" in data and _negative(_JSON.decode(data))


def _negative(value: Json) -> bool:
    match value:
        case dict():
            return any(_negative(inner) for name, inner in value.items() if "cost" not in name)
        case list():
            return any(_negative(inner) for inner in value)
        case int() | float():
            return value < 0
        case _:
            return False


# --- Reported costs ---

MOST_DOLLARS = 1_000_000
"""The largest cost of one call in US dollars. A larger or infinite number is ignored."""

_UPSTREAM_PARTS = (
    ("upstream_inference_prompt_cost", "upstream_inference_completions_cost"),
    ("upstream_inference_input_cost", "upstream_inference_output_cost"),
)
"""The fields of the upstream cost's parts, in Chat and in Responses, for replies without a total."""


class StatedCost(NamedTuple):
    """The cost that a server reports, in nano-USD."""

    total: int | None = None
    """The cost of the call; None if no valid cost was reported."""
    upstream: int | None = None
    """The part that is paid to another provider; None if not reported."""


_NOTHING = StatedCost()


def reported_cost(cost: Json, is_byok: Json, cost_details: Json, ticks: Json = None) -> StatedCost:
    """The reported cost of a call.

    With the caller's own key (BYOK), the server charges only its fee, possibly zero, and the provider behind it
    bills the rest. The cost is the sum. If the server reports no fee and nothing about the key, it used the
    caller's key.
    """
    if cost is None and cost_details is None:
        return StatedCost(_of_ticks(ticks)) if ticks else _NOTHING
    charged = _dollars(cost.get("total_cost") if isinstance(cost, dict) else cost)
    own_key = is_byok is True or (is_byok is None and charged == 0)
    upstream = _upstream(cost_details) if own_key else None
    if upstream is None:
        return StatedCost(charged)
    return StatedCost((charged or 0) + upstream, upstream)


def _upstream(cost_details: Json) -> int | None:
    if not isinstance(cost_details, dict):
        return None
    upstream_cost = _dollars(cost_details.get("upstream_inference_cost"))
    if upstream_cost is not None:
        return upstream_cost
    for names in _UPSTREAM_PARTS:
        parts = [part for name in names if (part := _dollars(cost_details.get(name))) is not None]
        if parts:
            return sum(parts)
    return None


def _of_ticks(ticks: Json) -> int | None:
    if isinstance(ticks, bool) or not isinstance(ticks, int | float) or not 0 < ticks < MOST_DOLLARS * 10**10:
        return None
    return int((Decimal(repr(ticks)) / 10).to_integral_value(ROUND_HALF_EVEN))


def _dollars(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_DOLLARS:
        return None
    # repr gives the digits as the server sent them
    return int((Decimal(repr(value)) * 10**9).to_integral_value(ROUND_HALF_EVEN))


def only_written(cached: int, written: int, prompt: int) -> int:
    """The tokens that were written to the cache but not read from it.

    For Gemini, OpenRouter reports the same tokens as read and as written, so that their sum exceeds the prompt.
    The counts must be disjoint, so such tokens are counted as read.
    """
    return written if cached + written <= prompt else max(0, written - cached)


# --- A reply without its end ---

NOTHING_USED = TokenUsage(source=UsageSource.ESTIMATED)
"""The usage of a request that was never sent."""


def usage_until_now(reported: TokenUsage | None, estimate: TokenUsage) -> TokenUsage:
    if reported is None:
        return estimate
    if reported.source is UsageSource.INCONSISTENT:
        return reported
    more = estimate.output_tokens > at_most(reported.output_tokens)
    return msgspec.structs.replace(
        reported,
        input_tokens=reported.input_tokens if reported.total_input_tokens else estimate.input_tokens,
        output_tokens=estimate.output_tokens if more else reported.output_tokens,
        source=UsageSource.PARTIAL,
    )


def usage_of_failure(
    error: AdapterError, used: Callable[[], TokenUsage | None], *, received: bool
) -> TokenUsage | None:
    """The usage of a failed attempt; None if unknown, for example after a rejected request."""
    if received:
        return used()
    if isinstance(error, NetworkError) and error.before_sending:
        return NOTHING_USED
    unanswered = isinstance(error, NetworkError | CancelledError) or type(error) is AdapterError
    return used() if unanswered and error.provider_status is None else None
