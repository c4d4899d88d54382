"""The time at which a limit begins anew, out of headers. It is the hint of a rate limit without `retry-after`.

Each limit has a header for its rest and a header for its reset: OpenAI's and Groq's (``x-ratelimit-reset-tokens:
6m0s``), OpenRouter's (``x-ratelimit-reset``, milliseconds since the epoch), the IETF draft's (``ratelimit-reset:
30``) and Anthropic's (``anthropic-ratelimit-requests-reset``, RFC 3339).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from ..http.retry import duration_seconds, number_of

_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12


def reset_seconds(headers: Mapping[str, str], now_us: int) -> float | None:
    """The seconds until all limits that are used up begin anew; None if the headers don't say.

    Args:
        headers: The headers of a rate limit's reply, with lower-case names.
        now_us: The present time, in microseconds since the epoch.
    """
    waits = [seconds_until(reset, now_us) for reset in _resets_of_what_is_used_up(headers)]
    return max((wait for wait in waits if wait), default=None)


def _resets_of_what_is_used_up(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if "ratelimit" in name and "reset" in name:
            left = headers.get(name.replace("reset", "remaining"))
            if left is None or number_of(left) == 0:
                yield value


def seconds_until(text: str, now_us: int) -> float | None:
    """Seconds until a reset, as a header says it; None for nonsense.

    Args:
        text: A duration, seconds, or a moment as a number or in words.
        now_us: The time in microseconds since the epoch.
    """
    now = now_us / 1e6
    value = number_of(text)
    if value is None:
        found = duration_seconds(text)
        return _until(text, now) if found is None else found
    if value >= _EPOCH_MILLISECONDS:
        return max(0.0, value / 1000 - now)
    return max(0.0, value - now) if value >= _EPOCH_SECONDS else value


def _until(text: str, now: float) -> float | None:
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, when.timestamp() - now)
