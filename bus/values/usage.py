"""What a call used and cost: token counts in disjoint buckets, why it stopped, and money as integers."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

import msgspec


class StopReason(StrEnum):
    """Why a reply ended, for portable logic; the provider's own word stands beside it as `raw_stop_reason`."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    TOOL_USE = "tool_use"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE_TURN = "pause_turn"
    CANCELLED = "cancelled"
    ERROR = "error"
    PROVIDER_SPECIFIC = "provider_specific"


class UsageSource(StrEnum):
    """Where token counts come from, strongest first."""

    REPORTED = "reported"
    """The provider's final figures."""
    PARTIAL = "partial"
    """Reported in part: of a call that ended early, with an estimate where more had come; or with counts that we
    worked out from the others."""
    ESTIMATED = "estimated"
    """Counted by us, because the provider said nothing."""
    INCONSISTENT = "inconsistent"
    """Reported, but the figures contradict each other: they were made to fit, and have no price."""


_STRENGTH = tuple(UsageSource)

USAGE_PARTS = {
    "audio_input": "input",
    "image_input": "input",
    "video_input": "input",
    "audio_cache_read": "cache_read",
    "image_cache_read": "cache_read",
    "audio_output": "output",
    "image_output": "output",
}
"""Names in `TokenUsage.details` that are tokens, and the bucket that they are a part of: uncached input, input
read from a cache, output without reasoning. Every other name counts pieces: searches, images, seconds."""

_USUAL_TIERS = frozenset(
    {"", "default", "standard", "standard_only", "auto", "on_demand", "unspecified", "service_tier_unspecified"}
)


def unusual_tier(service_tier: object) -> str | None:
    """A service tier in lower case; None for each provider's word for the usual one, and for what is no word."""
    name = service_tier.strip().lower() if isinstance(service_tier, str) else ""
    return None if name in _USUAL_TIERS else name


def details_of(**counts: int | None) -> dict[str, int] | None:
    """`TokenUsage.details` of those counts that there are; None if there are none."""
    return {name: count for name, count in counts.items() if count} or None


class TokenUsage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of one call. The four counts are disjoint, for every provider.

    input_tokens: input that was neither read from nor written to a cache.
    output_tokens: everything generated, reasoning included.
    cached_input_tokens: input read from a cache.
    cache_creation_input_tokens: input written to a cache, of any lifetime.
    cache_creation_1h_input_tokens: the part of the former that was written for an hour (the rest is 5 minutes).
    reasoning_tokens: the part of `output_tokens` spent on reasoning; None if the provider doesn't say.
    source: how far the figures can be trusted.
    reported_cost_nano_usd: what the provider says that the call cost, in nano-USD; None if it says nothing.
    upstream_cost_nano_usd: the part of it that a gateway doesn't take itself: who owns the key pays it upstream.
    raw: the provider's usage object as it came, for prices that are invented later.
    details: what some prices count apart, where there is any of it: the tokens named in `USAGE_PARTS`, which are
    in the counts above as well, and pieces by the name of their rate, such as ``web_search``.
    service_tier: the tier that the provider says it served, as `unusual_tier` gives it; None for the usual one.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    reasoning_tokens: int | None = None
    source: UsageSource = UsageSource.REPORTED
    raw: msgspec.Raw | None = None
    reported_cost_nano_usd: int | None = None
    details: dict[str, int] | None = None
    service_tier: str | None = None
    upstream_cost_nano_usd: int | None = None

    @property
    def total_input_tokens(self) -> int:
        """All input, cached or not."""
        return self.input_tokens + self.cached_input_tokens + self.cache_creation_input_tokens

    @property
    def total_tokens(self) -> int:
        """All input and all output."""
        return self.total_input_tokens + self.output_tokens

    @property
    def estimated(self) -> bool:
        """True if these are not the provider's own figures."""
        return self.source is UsageSource.ESTIMATED

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """The sum of two usages; its source is the weaker of the two, and `raw` is dropped.

        A reported cost remains only if both have one, a service tier only if it is the same.
        """
        if not isinstance(other, TokenUsage):
            return NotImplemented
        reasoning = (self.reasoning_tokens, other.reasoning_tokens)
        costs = (self.reported_cost_nano_usd, other.reported_cost_nano_usd)
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_creation_input_tokens=self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            cache_creation_1h_input_tokens=self.cache_creation_1h_input_tokens
            + other.cache_creation_1h_input_tokens,
            reasoning_tokens=None if reasoning == (None, None) else (reasoning[0] or 0) + (reasoning[1] or 0),
            source=max(self.source, other.source, key=_STRENGTH.index),
            reported_cost_nano_usd=None if costs[0] is None or costs[1] is None else costs[0] + costs[1],
            details=_added(self.details, other.details),
            service_tier=self.service_tier if self.service_tier == other.service_tier else None,
            upstream_cost_nano_usd=_sum_of(self.upstream_cost_nano_usd, other.upstream_cost_nano_usd),
        )


def _sum_of(first: int | None, second: int | None) -> int | None:
    return None if first is None and second is None else (first or 0) + (second or 0)


def _added(first: dict[str, int] | None, second: dict[str, int] | None) -> dict[str, int] | None:
    if first is None or second is None:
        return first or second
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}


class CostSource(StrEnum):
    """How a cost was obtained."""

    COMPUTED = "computed"
    PROVIDER = "provider"
    UNPRICED = "unpriced"


def usd_of(nano_usd: int) -> Decimal:
    """Nano-USD as US dollars, exactly; nothing is ``0``."""
    return Decimal(nano_usd).scaleb(-9) if nano_usd else Decimal()


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Money, in integer nano-USD; None means unknown, which is never the same as zero.

    nano_usd: billionths of a US dollar. source: how the figure was obtained. pricing_version: the price table that
    gave the figure (12 hex digits), if one did.
    reason: why there is no figure, or what is remarkable about it.
    computed_nano_usd: what the price table gives, beside the figure of a provider that names its own; with it
    `pricing_version` is the table's, and `reason` says why the table has none, or what is remarkable about it.
    """

    nano_usd: int | None
    source: CostSource
    pricing_version: str | None = None
    reason: str | None = None
    computed_nano_usd: int | None = None

    @property
    def usd(self) -> Decimal | None:
        """The cost in US dollars, exactly; None if it is unknown."""
        return None if self.nano_usd is None else usd_of(self.nano_usd)

    def __add__(self, other: Cost) -> Cost:
        """The sum: unknown as soon as one is; the provider's, or of a price version, only if both are.

        What the price table gives beside a provider's figure is left out.
        """
        if not isinstance(other, Cost):
            return NotImplemented
        version = self.pricing_version if self.pricing_version == other.pricing_version else None
        if self.nano_usd is None or other.nano_usd is None:
            unknown = self if self.nano_usd is None else other
            return Cost(None, unknown.source, version, unknown.reason)
        source = self.source if self.source is other.source else CostSource.COMPUTED
        reason = self.reason if self.reason == other.reason else None
        return Cost(self.nano_usd + other.nano_usd, source, version, reason)
