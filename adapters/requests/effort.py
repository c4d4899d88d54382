"""Reasoning efforts as OpenAI's protocols name them."""

from __future__ import annotations

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts, from least to most."""


def nearest_effort(asked: str, known: tuple[str, ...]) -> str:
    """The known effort that is nearest to the wanted one. Of two, the lesser. An unknown word stays as it is."""
    if asked in known or asked not in EFFORTS:
        return asked
    place = EFFORTS.index(asked)
    return min(known, key=lambda effort: (abs(EFFORTS.index(effort) - place), EFFORTS.index(effort)))
