"""A reply's usage, from the counts that its chunks report."""

from __future__ import annotations

import math

from bus.usage import TokenUsage, UsageSource

from . import wire


class UsageCounts:
    """A reply's counts. Each chunk reports all so far, now and then without some: the last of each counts."""

    def __init__(self) -> None:
        self._last = wire.Usage()
        self._chunk = b""  # the last that had counts

    def add(self, usage: wire.Usage, data: bytes) -> None:
        """Take in what a chunk reports. data: the chunk's JSON."""
        last = self._last
        if usage.promptTokenCount is None:
            usage.promptTokenCount = last.promptTokenCount
        else:
            self._chunk = data
        if usage.cachedContentTokenCount is None:
            usage.cachedContentTokenCount = last.cachedContentTokenCount
        if usage.candidatesTokenCount is None:
            usage.candidatesTokenCount = last.candidatesTokenCount
        if usage.thoughtsTokenCount is None:
            usage.thoughtsTokenCount = last.thoughtsTokenCount
        if usage.toolUsePromptTokenCount is None:
            usage.toolUsePromptTokenCount = last.toolUsePromptTokenCount
        self._last = usage

    def total(self, *, final: bool = False) -> TokenUsage | None:
        """The counts in disjoint buckets; None if there are none.

        The prompt includes what was read from a cache, and not what the provider's own tools put in; candidates
        don't include thoughts. A count that was left out is 0; without the prompt's, the figures are partial.
        """
        last = self._last
        prompt, cached = _count(last.promptTokenCount), _count(last.cachedContentTokenCount)
        candidates, thoughts = _count(last.candidatesTokenCount), _count(last.thoughtsTokenCount)
        tool_use = _count(last.toolUsePromptTokenCount)
        if prompt is None and candidates is None and cached is None and thoughts is None and tool_use is None:
            return None
        return TokenUsage(
            input_tokens=max(0, (prompt or 0) - (cached or 0)) + (tool_use or 0),
            output_tokens=(candidates or 0) + (thoughts or 0),
            cached_input_tokens=cached or 0,
            reasoning_tokens=thoughts,
            source=UsageSource.REPORTED if final and prompt is not None else UsageSource.PARTIAL,
            raw=wire.decode_usage(self._chunk).usageMetadata.copy() if self._chunk else None,
        )


def _count(value: object) -> int | None:
    """A token count. Some proxies send floats; nonsense is no count."""
    if type(value) is int:
        return max(0, value)
    if isinstance(value, float) and math.isfinite(value):
        return max(0, int(value))
    return None
