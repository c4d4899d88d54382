"""Token counts from the usage of an interaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.adapters.usage.contradictions import source_of
from callboard.adapters.usage.counts import reported_count
from callboard.bus.values.usage import TokenUsage, details_of, unusual_tier

from . import wire

_FEES = {"google_search": "web_search", "google_maps": "map_search"}
"""Tools that are billed by use, by our names of the rates."""


def read_usage(raw: msgspec.Raw, service_tier: object = None) -> TokenUsage | None:
    """Token counts in disjoint buckets; None if nothing is reported.

    Args:
        raw: The usage as it came.
        service_tier: The tier that served the reply.

    Raises:
        msgspec.DecodeError: It is no usage.
    """
    found = wire.decode_usage(raw)
    if found is None:
        return None
    prompt, cached = reported_count(found.total_input_tokens), reported_count(found.total_cached_tokens)
    said, thought = reported_count(found.total_output_tokens), reported_count(found.total_thought_tokens)
    tools = reported_count(found.total_tool_use_tokens)
    if prompt is None and said is None and thought is None:
        return None
    heard, heard_before = (
        _of(found.input_tokens_by_modality, "audio"),
        _of(found.cached_tokens_by_modality, "audio"),
    )
    seen, seen_before = (
        _of(found.input_tokens_by_modality, "image"),
        _of(found.cached_tokens_by_modality, "image"),
    )
    spoken, drawn = (_of(found.output_tokens_by_modality, kind) for kind in ("audio", "image"))
    fresh = max(0, (prompt or 0) - (cached or 0))
    audio = min(fresh, max(0, heard - heard_before))
    spoken = min(said or 0, spoken)
    return TokenUsage(
        input_tokens=fresh + (tools or 0),
        output_tokens=(said or 0) + (thought or 0),
        cached_input_tokens=cached or 0,
        reasoning_tokens=thought,
        source=source_of(
            *((cached, prompt), (heard + seen, prompt), (heard_before + seen_before, cached)),
            (spoken + drawn, said),
            raw=raw,
            whole=prompt is not None,
        ),
        details=details_of(
            audio_input=audio,
            image_input=min(fresh - audio, max(0, seen - seen_before)),
            audio_cache_read=min(cached or 0, heard_before),
            image_cache_read=min(max(0, (cached or 0) - heard_before), seen_before),
            audio_output=spoken,
            image_output=min((said or 0) - spoken, drawn),
            **_fees(found.grounding_tool_count),
        ),
        service_tier=unusual_tier(service_tier),
        raw=raw.copy(),
    )


def _of(parts: Sequence[wire.ModalityTokens] | None, modality: str) -> int:
    return sum(reported_count(part.tokens) or 0 for part in parts or () if part.modality == modality)


def _fees(uses: Sequence[wire.GroundingCount] | None) -> dict[str, int]:
    counts = dict.fromkeys(_FEES.values(), 0)
    for use in uses or ():
        if isinstance(use.type, str) and use.type in _FEES:
            counts[_FEES[use.type]] += reported_count(use.count) or 0
    return counts
