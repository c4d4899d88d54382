"""Token counts from the usage of a reply."""

from __future__ import annotations

import msgspec

from callboard.adapters.usage.contradictions import source_of
from callboard.adapters.usage.counts import cache_writes, first_count, reported_count
from callboard.adapters.usage.counts import reported_detail as _detail
from callboard.adapters.usage.stated_cost import only_written, reported_cost
from callboard.bus.values.json import Json
from callboard.bus.values.usage import TokenUsage, details_of

from .wire import WireUsage, decode_usage


def read_usage(raw: msgspec.Raw, service_tier: str | None = None) -> TokenUsage | None:
    """Token counts in disjoint buckets.

    The prompt's count includes cache reads and writes. What the total has beyond prompt and completion is
    reasoning that some servers count nowhere else; where nobody names it, the figures are partial, for it was
    worked out. Perplexity counts its reasoning beside all of them.

    Three servers count otherwise. Gateways in front of Claude say cache reads and writes beside the prompt's
    details, by Anthropic's names. Mistral counts audio that was heard beside the prompt. Grok on Azure counts
    cached tokens beside the prompt, whose parts then add up to the prompt without them.

    Args:
        raw: The usage as it came.
        service_tier: The tier that served the reply, if it is an unusual one.

    Returns:
        The counts; None if nothing is reported.
    """
    wire = decode_usage(raw)
    if wire is None:
        return None
    prompt, completion = reported_count(wire.prompt_tokens), reported_count(wire.completion_tokens)
    total = reported_count(wire.total_tokens)
    if prompt is None and completion is None:
        return None
    derived = prompt is None or (completion is None and total is not None)
    if prompt is None:
        prompt = max(0, (total or 0) - (completion or 0))
    heard = _detail(wire.prompt_tokens_details, "audio_tokens") or 0
    if heard and (heard > prompt or wire.prompt_audio_seconds) and total == prompt + heard + (completion or 0):
        prompt += heard
    hidden = max(0, (total or 0) - prompt - (completion or 0))
    cached = first_count(
        _detail(wire.prompt_tokens_details, "cached_tokens"),
        _detail(wire.prompt_token_details, "cached_tokens"),
        reported_count(wire.prompt_cache_hit_tokens),
        reported_count(wire.cached_tokens),
        reported_count(wire.cache_read_input_tokens),
    )
    if cached and cached > prompt and _parts_of_prompt(wire.prompt_tokens_details) == prompt:
        prompt += cached
        derived = True
    written, written_1h = cache_writes(
        wire.prompt_tokens_details, wire.cache_creation_input_tokens, wire.cache_creation
    )
    written = only_written(cached or 0, written, prompt)
    named = first_count(
        _detail(wire.completion_tokens_details, "reasoning_tokens"), reported_count(wire.reasoning_tokens)
    )
    beside = (named or 0) if wire.citation_tokens is not None or wire.num_search_queries is not None else hidden
    output = (completion or 0) + beside
    reasoning = hidden if not named and hidden and completion is not None else named
    derived = derived or completion is None or (hidden > 0 and named != hidden)
    spoken = _detail(wire.completion_tokens_details, "audio_tokens") or 0
    source = source_of(
        *(((cached or 0) + written, prompt), (reasoning, output), (heard, prompt), (spoken, output)),
        raw=raw,
        whole=not derived,
    )
    fresh = max(0, prompt - (cached or 0) - written)
    stated = reported_cost(wire.cost, wire.is_byok, wire.cost_details, wire.cost_in_usd_ticks)
    return TokenUsage(
        input_tokens=fresh,
        output_tokens=output,
        cached_input_tokens=cached or 0,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(written_1h, written),
        reasoning_tokens=None if reasoning is None else min(reasoning, output),
        source=source,
        reported_cost_nano_usd=stated.total,
        upstream_cost_nano_usd=stated.upstream,
        details=details_of(
            audio_input=min(fresh, heard),
            audio_output=min(output - min(reasoning or 0, output), spoken),
            **_fees(wire),
        ),
        service_tier=service_tier,
        raw=msgspec.Raw(bytes(raw)),  # a copy, or the whole chunk would be kept alive
    )


def _fees(wire: WireUsage) -> dict[str, int | None]:
    """What is billed besides tokens of the model: searches, and what was cited or read for the reply."""
    searches = wire.server_tool_use or wire.server_tool_use_details or wire.num_search_queries
    if not (searches or wire.citation_tokens or wire.num_sources_used):
        return {}
    return {
        "web_search": first_count(
            _detail(wire.server_tool_use, "web_search_requests"),
            _detail(wire.server_tool_use_details, "web_search_requests"),
            reported_count(wire.num_search_queries),
        ),
        "citation_tokens": reported_count(wire.citation_tokens),
        "live_search_source": reported_count(wire.num_sources_used),
    }


def _parts_of_prompt(details: Json) -> int | None:
    """What the kinds of input in the prompt's details add up to; None if text is not among them."""
    text = _detail(details, "text_tokens")
    if text is None:
        return None
    return text + sum(_detail(details, name) or 0 for name in ("image_tokens", "audio_tokens"))
