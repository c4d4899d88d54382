"""What a server says that it charged, in its usage: OpenRouter's fields, which its likes have taken over."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from bus.json_types import Json

MOST_DOLLARS = 1_000_000
"""For one call; whatever is more, infinite or no number is no cost."""


def reported_nano_usd(cost: Json, is_byok: Json, cost_details: Json) -> int | None:
    """Nano-USD; None if it says nothing.

    With the caller's own key (BYOK) `cost` is only the server's fee, and what stands behind it bills the rest.
    """
    charged = _dollars(cost)
    if charged is None or is_byok is not True or not isinstance(cost_details, dict):
        return charged
    return charged + (_dollars(cost_details.get("upstream_inference_cost")) or 0)


def _dollars(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST_DOLLARS:
        return None
    return int((Decimal(repr(value)) * 10**9).to_integral_value(ROUND_HALF_EVEN))  # repr: the digits as sent
