"""What a server says that it charged, in its usage: OpenRouter's fields, which its likes have taken over."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from bus.json_types import Json

MOST_DOLLARS = 1_000_000
"""For one call; whatever is more, infinite or no number is no cost."""


def reported_cost(cost: Json, is_byok: Json, cost_details: Json) -> int | None:
    """What the server says that it charged, in nano-USD; None if it says nothing that makes sense.

    With the caller's own key (BYOK) that is only its fee, and what stands behind it bills the rest.
    """
    charged = _dollars(cost)
    if charged is None or is_byok is not True or not isinstance(cost_details, dict):
        return charged
    return charged + (_dollars(cost_details.get("upstream_inference_cost")) or 0)


def _dollars(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_DOLLARS:
        return None
    return int((Decimal(repr(value)) * 10**9).to_integral_value(ROUND_HALF_EVEN))  # repr: the digits as sent


def only_written(cached: int, written: int, prompt: int) -> int:
    """The tokens written to a cache and not read from it.

    OpenRouter bills Gemini's cache for reading and for writing the same tokens in one call, and reports them under
    both; together they are more than the prompt then. Buckets are disjoint, so those were read.
    """
    return written if cached + written <= prompt else max(0, written - cached)
