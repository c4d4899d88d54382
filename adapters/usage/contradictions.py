"""Contradictions between the counts of a usage. A usage with contradictions has no price."""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json
from callboard.bus.values.usage import UsageSource

_JSON = msgspec.json.Decoder(Json)


def source_of(*parts: tuple[int | None, int | None], raw: bytes | msgspec.Raw, whole: bool = True) -> UsageSource:
    """The trust that a reported usage deserves.

    Args:
        parts: Pairs of counts, of which the first can't be more than the second.
        raw: The usage as it came. No count in it can be negative.
        whole: Whether no count is missing, and none was worked out by us.
    """
    for part, total in parts:
        if part is not None and part > (total or 0):
            return UsageSource.INCONSISTENT
    if has_negative(raw):
        return UsageSource.INCONSISTENT
    return UsageSource.REPORTED if whole else UsageSource.PARTIAL


def has_negative(raw: bytes | msgspec.Raw) -> bool:
    """Whether a count in a usage is below zero. Amounts of money are left out."""
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
