"""The one reading of counts that providers report: of tokens, images, searches and calls of tools."""

from __future__ import annotations

import math


def reported_count(value: object) -> int | None:
    """A count as a provider reports it; None if the value is missing or no finite number.

    Some proxies send counts as floats. A negative number counts as 0. `contradictions` makes such a usage partial.
    """
    if type(value) is int:
        return max(0, value)
    if isinstance(value, float) and math.isfinite(value):
        return max(0, int(value))
    return None
