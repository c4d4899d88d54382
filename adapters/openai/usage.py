"""The Responses API's usage, in our disjoint buckets."""

from __future__ import annotations

import msgspec

from bus.usage import TokenUsage, unusual_tier

from ..reported_cost import only_written, reported_cost
from .wire import Usage, UsageDetails, read_or_default


def read_usage(data: msgspec.Raw, service_tier: str | None = None) -> TokenUsage | None:
    """Usage in disjoint buckets; None if nothing was reported. service_tier: as served."""
    usage = read_or_default(Usage, data)
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    read_in = read_or_default(UsageDetails, usage.input_tokens_details)
    total, cached = _count(usage.input_tokens), _count(read_in.cached_tokens)
    written = only_written(cached, _count(read_in.cache_write_tokens), total)
    reasoning = read_or_default(UsageDetails, usage.output_tokens_details).reasoning_tokens
    return TokenUsage(
        input_tokens=max(0, total - cached - written),
        output_tokens=_count(usage.output_tokens),
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        reasoning_tokens=None if reasoning is None else min(_count(reasoning), _count(usage.output_tokens)),
        reported_cost_nano_usd=reported_cost(usage.cost, usage.is_byok, usage.cost_details),
        raw=msgspec.Raw(bytes(data)),
        service_tier=unusual_tier(service_tier),
    )


def _count(number: float | None) -> int:
    return max(0, int(number or 0))
