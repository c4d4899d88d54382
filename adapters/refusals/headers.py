"""Rate limits from OpenAI's `x-ratelimit-*` headers, which most servers send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from ..contract import RateLimitInfo
from ..http.retry import duration_seconds, number_of

_NAMES = [f"{what}{unit}" for what in ("limit", "remaining", "reset") for unit in ("", "-requests", "-tokens")]
_LIMITS = {f"x-ratelimit-{name}": name for name in _NAMES}


def read_rate_limit(headers: Mapping[str, str]) -> RateLimitInfo | None:
    """The limits; None if there are none.

    A limit without a unit is OpenRouter's, with a fixed window.
    """
    told = _LIMITS.keys() & headers.keys()
    if not told:
        return None
    found = {_LIMITS[header]: headers[header] for header in told}
    return RateLimitInfo(
        requests_limit=_limit(found.get("limit-requests") or found.get("limit")),
        requests_remaining=_limit(found.get("remaining-requests") or found.get("remaining")),
        tokens_limit=_limit(found.get("limit-tokens")),
        tokens_remaining=_limit(found.get("remaining-tokens")),
        reset_at=found.get("reset-requests") or found.get("reset-tokens") or found.get("reset"),
        requests_reset=found.get("reset-requests") or found.get("reset"),
        tokens_reset=found.get("reset-tokens") or found.get("reset"),
        fixed_window="remaining" in found and "remaining-requests" not in found,
    )


def _limit(text: str | None) -> int | None:
    """A limit. Some gateways write -1 for none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12


def reset_seconds(headers: Mapping[str, str], now_us: int) -> float | None:
    """The seconds until all exhausted limits reset; None if unknown."""
    waits = [seconds_until(reset, now_us) for reset in _resets_of_what_is_used_up(headers)]
    return max((wait for wait in waits if wait), default=None)


def _resets_of_what_is_used_up(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if "ratelimit" in name and "reset" in name:
            left = headers.get(name.replace("reset", "remaining"))
            if left is None or number_of(left) == 0:
                yield value


def seconds_until(text: str, now_us: int) -> float | None:
    """Seconds until a reset, from a header; None for an invalid one."""
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
