"""Rate limits from `x-ratelimit-*` headers, OpenAI's, which most servers of its protocols send."""

from __future__ import annotations

from collections.abc import Mapping

from ..calls import RateLimitInfo

_NAMES = [f"{what}{unit}" for what in ("limit", "remaining", "reset") for unit in ("", "-requests", "-tokens")]
_LIMITS = {f"x-ratelimit-{name}": name for name in _NAMES}


def read_rate_limit(headers: Mapping[str, str]) -> RateLimitInfo | None:
    """The limits; None if there are none.

    A limit without a unit is OpenRouter's, which counts in fixed windows.

    Args:
        headers: The reply's headers, with lower-case names.
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
    """A limit. Some gateways write -1 for no limit."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
