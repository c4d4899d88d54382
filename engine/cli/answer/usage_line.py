"""What a reply took, in one line: tokens, their pace, seconds and cost. Pure."""

from __future__ import annotations

from typing import NamedTuple

from callboard.adapters import TokenUsage
from callboard.bus import Cost

from ..common.money import cost_text


class Pace(NamedTuple):
    """When a reply came, in seconds on one clock."""

    asked: float
    """When it was asked for."""
    first: float | None
    """When its first piece came; None if it came whole."""
    ended: float
    """When its last piece came."""


def usage_line(model: str, usage: TokenUsage, cost: Cost | None, pace: Pace, *, replies: int = 1) -> str:
    """The line.

    Args:
        model: The model that served the call, ``provider:name``.
        usage: The tokens of all replies.
        cost: The cost of all replies.
        pace: The times of the call.
        replies: The number of replies, which are more than one if tools were run.
    """
    parts = [f"{usage.total_input_tokens:,} in{_cached(usage)}", f"{usage.output_tokens:,} out"]
    if (rate := per_second(usage.output_tokens, pace, replies)) is not None:
        parts.append(f"{rate:,.0f} tokens a second" if rate >= 10 else f"{rate:.1f} tokens a second")
    if pace.first is not None:
        parts.append(f"the first after {pace.first - pace.asked:.1f} s")
    parts.append(f"{pace.ended - pace.asked:.1f} s in all")
    parts.append(cost_text(cost))
    calls = f" in {replies} calls" if replies > 1 else ""
    return f"{model}{calls}: {', '.join(parts)}"


def per_second(tokens: int, pace: Pace, replies: int) -> float | None:
    """The tokens a second once the reply had begun.

    None if that can't be said: the reply came whole, or in no time, or tools ran in the middle of it.
    """
    if pace.first is None or replies > 1 or tokens <= 1 or pace.ended <= pace.first:
        return None
    return (tokens - 1) / (pace.ended - pace.first)


def _cached(usage: TokenUsage) -> str:
    return f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
