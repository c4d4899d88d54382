"""What the headers of a reply say of limits, as the gate reads it."""

from __future__ import annotations

import time

from callboard.adapters import RateLimitInfo

from .amounts import Reading
from .gate import NO_HEADERS, Headers


def read_headers(said: RateLimitInfo) -> Headers:
    """What a provider says of its limits; `NO_HEADERS` if it doesn't say how much is left."""
    requests = _reading(said.requests_limit, said.requests_remaining, said.requests_reset, said.fixed_window)
    tokens = _reading(said.tokens_limit, said.tokens_remaining, said.tokens_reset, said.fixed_window)
    if requests is None and tokens is None:
        return NO_HEADERS
    return Headers(requests, tokens, said.counts_output)


def _reading(limit: int | None, remaining: int | None, reset: str | None, fixed: bool) -> Reading | None:
    if remaining is None or limit == 0:
        return None
    from callboard.adapters.refusals.reset_hints import seconds_until  # not needed where no provider sends such headers

    seconds = None if reset is None else seconds_until(reset, time.time_ns() // 1000)
    return Reading(limit, remaining, None if seconds is None else round(seconds * 1e6), fixed)
