"""What a server says that it charged, in its usage: the fields of OpenRouter and its likes, and xAI's."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import NamedTuple

from callboard.bus.values.json import Json

MOST_DOLLARS = 1_000_000
"""The largest cost of one call in US dollars. A larger or infinite number is no cost."""

_UPSTREAM_PARTS = (
    ("upstream_inference_prompt_cost", "upstream_inference_completions_cost"),
    ("upstream_inference_input_cost", "upstream_inference_output_cost"),
)
"""Where the upstream cost isn't named as a whole: on Chat, on Responses."""


class StatedCost(NamedTuple):
    """The cost that a server states, in nano-USD."""

    total: int | None = None
    """The cost of the call; None if the server states nothing that makes sense."""
    upstream: int | None = None
    """The part that is paid to somebody else than the server; None if the server states none."""


_NOTHING = StatedCost()


def reported_cost(cost: Json, is_byok: Json, cost_details: Json, ticks: Json = None) -> StatedCost:
    """The cost of a call, as the server states it.

    With the caller's own key (BYOK) the server charges only its fee, which may be zero, and the provider behind it
    bills the rest. The cost of the call is their sum. A server that doesn't say whose key it was, and charges
    nothing for a call with a cost behind it, used the caller's key.

    Args:
        cost: The cost in US dollars, or an object with its total.
        is_byok: Whether the caller's own key was used.
        cost_details: The parts of the cost.
        ticks: xAI's `cost_in_usd_ticks`, of 1e-10 US dollars each. Zero is no statement: Azure sends it always.
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
    whole = _dollars(cost_details.get("upstream_inference_cost"))
    if whole is not None:
        return whole
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
    return int((Decimal(repr(value)) * 10**9).to_integral_value(ROUND_HALF_EVEN))  # repr: the digits as sent


def only_written(cached: int, written: int, prompt: int) -> int:
    """The tokens written to a cache and not read from it.

    OpenRouter bills Gemini's cache for reading and for writing the same tokens in one call, and reports them under
    both. Together they are then more than the prompt. Buckets are disjoint, so such tokens count as read.
    """
    return written if cached + written <= prompt else max(0, written - cached)
