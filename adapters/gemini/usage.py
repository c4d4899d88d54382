"""A reply's usage, from the counts that its chunks report."""

from __future__ import annotations

import math

from bus.usage import TokenUsage, UsageSource

from . import wire


class UsageCounts:
    """A reply's counts. Each chunk reports all so far, now and then without some: the last of each counts."""

    def __init__(self) -> None:
        self._prompt: int | None = None
        self._cached: int | None = None
        self._candidates: int | None = None
        self._thoughts: int | None = None
        self._tool_use: int | None = None
        self._chunk = b""  # the last that had counts

    def add(self, usage: wire.Usage, data: bytes) -> bool:
        """Take in what a chunk reports; False if that is nothing. data: the chunk's JSON."""
        prompt, candidates = _count(usage.promptTokenCount), _count(usage.candidatesTokenCount)
        cached, thoughts = _count(usage.cachedContentTokenCount), _count(usage.thoughtsTokenCount)
        tool_use = _count(usage.toolUsePromptTokenCount)
        if prompt is None and candidates is None and cached is None and thoughts is None and tool_use is None:
            return False
        self._prompt = self._prompt if prompt is None else prompt
        self._candidates = self._candidates if candidates is None else candidates
        self._cached = self._cached if cached is None else cached
        self._thoughts = self._thoughts if thoughts is None else thoughts
        self._tool_use = self._tool_use if tool_use is None else tool_use
        self._chunk = data
        return True

    def total(self, *, final: bool = False) -> TokenUsage | None:
        """The counts in disjoint buckets; None if there are none.

        The prompt includes what was read from a cache, and not what the provider's own tools put in; candidates
        don't include thoughts. A count that was left out is 0; without the prompt's, the figures are partial.
        """
        if not self._chunk:
            return None
        prompt, cached = self._prompt or 0, self._cached or 0
        thoughts = self._thoughts or 0
        return TokenUsage(
            input_tokens=max(0, prompt - cached) + (self._tool_use or 0),
            output_tokens=(self._candidates or 0) + thoughts,
            cached_input_tokens=cached,
            reasoning_tokens=self._thoughts,
            source=UsageSource.REPORTED if final and self._prompt is not None else UsageSource.PARTIAL,
            raw=wire.decode_usage(self._chunk).usageMetadata.copy() if final else None,
        )


def _count(value: object) -> int | None:
    """A token count. Some proxies send floats; nonsense is no count."""
    if type(value) is int:
        return max(0, value)
    if isinstance(value, float) and math.isfinite(value):
        return max(0, int(value))
    return None
