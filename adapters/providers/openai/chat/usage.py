"""The usage of the Responses API as our token counts, of which no two overlap."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.usage.contradictions import source_of
from callboard.adapters.usage.counts import cache_writes, first_count, reported_count, reported_detail
from callboard.adapters.usage.stated_cost import only_written, reported_cost
from callboard.bus.values.usage import TokenUsage, UsageSource, unusual_tier

from .tool_fees import with_tool_usage
from .wire import EMPTY, Usage, UsageDetails, read_or_default, read_value


def read_usage(
    data: msgspec.Raw,
    service_tier: str | None = None,
    *,
    fees: Mapping[str, int] | None = None,
    tool_usage: msgspec.Raw = EMPTY,
) -> TokenUsage | None:
    """Usage in disjoint buckets; None if nothing was reported.

    Args:
        data: The usage of the reply.
        service_tier: The service tier that was served.
        fees: The things that are billed besides tokens.
        tool_usage: The usage of tools in the reply, which is kept beside its usage.
    """
    usage = read_or_default(Usage, data)
    if usage.input_tokens is None and usage.output_tokens is None:
        return TokenUsage(details=dict(fees), source=UsageSource.PARTIAL) if fees else None
    read_in = read_value(usage.input_tokens_details)
    total, output = reported_count(usage.input_tokens) or 0, reported_count(usage.output_tokens) or 0
    flat = reported_count(usage.cache_read_input_tokens)
    cached = first_count(reported_detail(read_in, "cached_tokens"), flat) or 0
    written, written_1h = cache_writes(read_in, usage.cache_creation_input_tokens, usage.cache_creation)
    written = only_written(cached, written, total)
    thought = reported_count(read_or_default(UsageDetails, usage.output_tokens_details).reasoning_tokens)
    stated = reported_cost(usage.cost, usage.is_byok, usage.cost_details, usage.cost_in_usd_ticks)
    return TokenUsage(
        input_tokens=max(0, total - cached - written),
        output_tokens=output,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(written_1h, written),
        reasoning_tokens=None if thought is None else min(thought, output),
        source=source_of((cached + written, total), (thought, output), raw=data),
        reported_cost_nano_usd=stated.total,
        upstream_cost_nano_usd=stated.upstream,
        details=dict(fees) if fees else None,
        raw=with_tool_usage(data, tool_usage),
        service_tier=unusual_tier(service_tier),
    )
