"""Rate limits from `x-ratelimit-*` headers, OpenAI's, which most servers of its protocols send."""

from __future__ import annotations

from collections.abc import Mapping

from ..contract import RateLimitInfo

_LIMITS = [f"{what}{unit}" for what in ("limit", "remaining", "reset") for unit in ("", "-requests", "-tokens")]


def read_rate_limit(headers: Mapping[str, str]) -> RateLimitInfo | None:
    """The rate limits that a reply reports; None if it reports none.

    Args:
        headers: The headers of the reply, with lower-case names.
    """
    found = {name: headers[f"x-ratelimit-{name}"] for name in _LIMITS if f"x-ratelimit-{name}" in headers}
    if not found:
        return None
    return RateLimitInfo(
        requests_limit=_limit(found.get("limit-requests") or found.get("limit")),
        requests_remaining=_limit(found.get("remaining-requests") or found.get("remaining")),
        tokens_limit=_limit(found.get("limit-tokens")),
        tokens_remaining=_limit(found.get("remaining-tokens")),
        reset_at=found.get("reset-requests") or found.get("reset-tokens") or found.get("reset"),
    )


def _limit(text: str | None) -> int | None:
    """A limit. Some gateways write -1 for no limit."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
