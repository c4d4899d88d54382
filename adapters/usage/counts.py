"""The one reading of counts that providers report: of tokens, images, searches and calls of tools."""

from __future__ import annotations

import math

from callboard.bus.values.json import Json


def reported_count(value: object) -> int | None:
    """A count as a provider reports it; None if the value is missing or no finite number.

    Some proxies send counts as floats. A negative number counts as 0. `contradictions` makes such a usage partial.
    """
    if type(value) is int:
        return max(0, value)
    if isinstance(value, float) and math.isfinite(value):
        return max(0, int(value))
    return None


def first_count(*counts: int | None) -> int | None:
    """The first count above zero; else zero if any was there. Zero never replaces a count."""
    found = None
    for count in counts:
        if count:
            return count
        found = count if found is None else found
    return found


def reported_detail(details: Json, name: str) -> int | None:
    """A count in an object of counts; None if there is no such object or no such count."""
    return reported_count(details.get(name)) if isinstance(details, dict) else None


def cache_writes(details: Json, flat: Json = None, split: Json = None) -> tuple[int, int]:
    """Tokens that were written to a cache, and the part of them that is kept for an hour.

    Servers of OpenAI's protocols name them in the details of the prompt or beside it. The names are OpenRouter's
    and OpenAI's `cache_write_tokens`, LiteLLM's `cache_creation_tokens`, and Anthropic's, which Qwen shares.

    Args:
        details: The details of the prompt's count.
        flat: `cache_creation_input_tokens` of the usage itself.
        split: `cache_creation` of the usage itself.
    """
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
