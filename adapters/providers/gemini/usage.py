"""A reply's usage, from the counts that its chunks report."""

from __future__ import annotations

import msgspec

from callboard.adapters.usage.contradictions import source_of
from callboard.adapters.usage.counts import reported_count
from callboard.bus.values.usage import TokenUsage, UsageSource, details_of, unusual_tier

from . import wire


class UsageCounts:
    """A reply's counts. Each chunk reports all so far, now and then without some: the last of each counts."""

    def __init__(self) -> None:
        self.fees: dict[str, int] = {}
        """The counts of what is billed besides tokens, by the names of the rates. The reply tells them outside of
        the usage."""
        self._former: wire.Usage | None = None  # what was said before a chunk that has other counts
        self._latest = wire.ABSENT
        self._form: bytes | None = None  # of the latest: all but its digits; None before the first
        self._prompted = False  # whether it has the prompt's count
        self._counted = wire.ABSENT  # the last that had

    def add(self, raw: msgspec.Raw) -> None:
        """Take in what a chunk reports.

        A chunk that differs from the one before by digits alone takes its place, and is read when the total is
        asked for: in a stream each chunk has counts.

        Raises:
            msgspec.DecodeError: It is no usage.
        """
        form = bytes(raw).translate(None, b"0123456789")
        if form != self._form:
            if self._form is not None:
                self._former = self._so_far()
            usage = wire.decode_counts(raw)
            self._form, self._prompted = form, usage is not None and usage.promptTokenCount is not None
        self._latest = raw
        if self._prompted:
            self._counted = raw

    def _so_far(self) -> wire.Usage:
        """The last of each count."""
        usage, former = wire.decode_counts(self._latest) or wire.Usage(), self._former
        for name in usage.__struct_fields__ if former is not None else ():
            if getattr(usage, name) is None:
                setattr(usage, name, getattr(former, name))
        return usage

    def total(self, *, final: bool = False) -> TokenUsage | None:
        """The counts in disjoint buckets; None if there are none.

        The prompt includes what was read from a cache, and not what the provider's own tools put in; candidates
        don't include thoughts. A count that was left out is 0; without the prompt's, the figures are partial.
        """
        last = self._so_far()
        prompt, cached = reported_count(last.promptTokenCount), reported_count(last.cachedContentTokenCount)
        candidates, thoughts = reported_count(last.candidatesTokenCount), reported_count(last.thoughtsTokenCount)
        tool_use = reported_count(last.toolUsePromptTokenCount)
        if prompt is None and candidates is None and cached is None and thoughts is None and tool_use is None:
            return None
        heard, seen = _sound_and_pictures(last.promptTokensDetails)
        heard_before, seen_before = _sound_and_pictures(last.cacheTokensDetails)
        spoken, drawn = _sound_and_pictures(last.candidatesTokensDetails)
        raw = self._counted
        source = UsageSource.PARTIAL
        if final:
            source = source_of(
                *((cached, prompt), (heard + seen, prompt)),
                *((heard_before + seen_before, cached), (spoken + drawn, candidates)),
                raw=raw,
                whole=prompt is not None,
            )
        fresh = max(0, (prompt or 0) - (cached or 0))
        audio = min(fresh, max(0, heard - heard_before))
        spoken = min(candidates or 0, spoken)
        return TokenUsage(
            input_tokens=fresh + (tool_use or 0),
            output_tokens=(candidates or 0) + (thoughts or 0),
            cached_input_tokens=cached or 0,
            reasoning_tokens=thoughts,
            source=source,
            details=details_of(
                audio_input=audio,
                image_input=min(fresh - audio, max(0, seen - seen_before)),
                audio_cache_read=min(cached or 0, heard_before),
                image_cache_read=min(max(0, (cached or 0) - heard_before), seen_before),
                audio_output=spoken,
                image_output=min((candidates or 0) - spoken, drawn),
                **self.fees,
            ),
            service_tier=unusual_tier(last.serviceTier),
            raw=None if raw is wire.ABSENT else _with_fees(raw, self.fees),
        )


def _with_fees(raw: msgspec.Raw, fees: dict[str, int]) -> msgspec.Raw:
    """The usage as it came, with the counts that were found elsewhere beside it."""
    if not any(fees.values()):
        return raw.copy()
    return msgspec.Raw(msgspec.json.encode({**wire.decode_fields(raw), "grounding": fees}))


def _sound_and_pictures(details: object) -> tuple[int, int]:
    """The tokens of sound and of pictures in a list of the tokens of each modality."""
    if not isinstance(details, list):
        return 0, 0
    counts = {"AUDIO": 0, "IMAGE": 0}
    for part in details:
        modality = part.get("modality") if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(modality, str) and modality in counts:
            counts[modality] += reported_count(part.get("tokenCount")) or 0
    return counts["AUDIO"], counts["IMAGE"]
