"""The usage and the cost of a call: token counts in disjoint buckets, the stop reason, and money as integers."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

import msgspec

from .base import Shown


class StopReason(StrEnum):
    """The reason why a reply ended, the same for all providers. The provider's own word stands beside it as
    `raw_stop_reason`.
    """

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
    """The origin of token counts, the strongest first."""

    REPORTED = "reported"
    """The provider's final figures."""
    PARTIAL = "partial"
    """Reported in part. Either the call ended early, and an estimate stands for the rest, or some counts were
    worked out from the others."""
    ESTIMATED = "estimated"
    """Counted by us, because the provider reported nothing."""
    INCONSISTENT = "inconsistent"
    """Reported, but the figures contradict each other. They were made to fit, and have no price."""


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
    """A service tier in lower case."""
    name = service_tier.strip().lower() if isinstance(service_tier, str) else ""
    return None if name in _USUAL_TIERS else name


def details_of(**counts: int | None) -> dict[str, int] | None:
    """The counts that are above zero, as `TokenUsage.details` holds them; None if there are none."""
    return {name: count for name, count in counts.items() if count} or None


class TokenUsage(Shown, frozen=True, gc=False):
    """Token counts of one call. `input_tokens`, `output_tokens`, `cached_input_tokens` and
    `cache_creation_input_tokens` are disjoint, for every provider.
    """

    input_tokens: int = 0
    """Input that was neither read from a cache nor written to one."""
    output_tokens: int = 0
    """Everything generated, reasoning included."""
    cached_input_tokens: int = 0
    """Input read from a cache."""
    cache_creation_input_tokens: int = 0
    """Input written to a cache, of any lifetime."""
    cache_creation_1h_input_tokens: int = 0
    """The part of `cache_creation_input_tokens` that was written for an hour; the rest was written for 5 minutes.
    """
    reasoning_tokens: int | None = None
    """The part of `output_tokens` spent on reasoning; None if the provider doesn't say."""
    source: UsageSource = UsageSource.REPORTED
    """How far the figures can be trusted."""
    raw: msgspec.Raw | None = None
    """The provider's usage object as it came, for prices that are invented later."""
    reported_cost_nano_usd: int | None = None
    """The cost of the call as the provider states it, in nano-USD; None if it states none."""
    details: dict[str, int] | None = None
    """Counts that some prices treat apart, where there are any. A name in `USAGE_PARTS` counts tokens that are in
    the counts above as well. Any other name, such as ``web_search``, counts pieces by the name of their rate."""
    service_tier: str | None = None
    """The tier that the provider says it served, as `unusual_tier` gives it; None for the usual one."""
    upstream_cost_nano_usd: int | None = None
    """The part of `reported_cost_nano_usd` that a gateway doesn't take itself, in nano-USD; the owner of the key
    pays it upstream."""

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
        """The sum of two usages.

        Its source is the weaker of the two, and `raw` is dropped. A reported cost remains only if both have one, a
        service tier only if both have the same.
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
    """The way by which a cost was obtained."""

    COMPUTED = "computed"
    PROVIDER = "provider"
    UNPRICED = "unpriced"


def usd_of(nano_usd: int) -> Decimal:
    """Nano-USD as US dollars, exactly. Zero nano-USD is ``0``."""
    return Decimal(nano_usd).scaleb(-9) if nano_usd else Decimal()


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Money, in integer nano-USD. None means unknown, which is never the same as zero."""

    nano_usd: int | None
    """The cost in billionths of a US dollar; None if it is unknown."""
    source: CostSource
    """The way by which the figure was obtained."""
    pricing_version: str | None = None
    """The price table that gave the figure (12 hex digits), if one did. Beside `computed_nano_usd` it is the table
    of that figure."""
    reason: str | None = None
    """The reason why there is no figure, or a remark about it. Where a provider names its own cost, the reason and
    the remark are about the table's figure."""
    computed_nano_usd: int | None = None
    """The price table's figure in nano-USD, beside the cost of a provider that names its own."""

    @property
    def usd(self) -> Decimal | None:
        """The cost in US dollars, exactly; None if it is unknown."""
        return None if self.nano_usd is None else usd_of(self.nano_usd)

    def __add__(self, other: Cost) -> Cost:
        """The sum of two costs.

        The sum is unknown as soon as one of them is. Its source is the provider only if both sources are, and it
        has a price version only if both have the same. The table's figure beside a provider's cost is left out.
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


# The cost of several calls together, and how far the sum can be trusted.

UNANSWERED = frozenset({"network", "cancelled", "process_lost"})
"""Error classes of calls that got no answer."""
UNCLEAR = frozenset({"server_error", "other"})
"""Error classes of calls that got an answer if they have a status of HTTP."""


def usage_is_unknown(error_class: str, provider_status: int | None) -> bool:
    """Whether a failed call may have used tokens although no usage of it is known.

    It may if no answer came: the call was cancelled, timed out, was dropped, or was lost with its process. A
    provider that answers with an error bills nothing. A request that was never sent is not billed either.
    """
    return error_class in UNANSWERED or (error_class in UNCLEAR and provider_status is None)


class CostSum(msgspec.Struct, frozen=True, gc=False):
    """A sum of costs, with four counts beside it. An unknown cost is in no amount, and is never taken for zero."""

    nano_usd: int = 0
    """The sum in nano-USD over the calls whose cost is known."""
    calls: int = 0
    """The number of attempts, whatever became of them."""
    estimated: int = 0
    """The number of attempts whose usage was estimated."""
    unpriced: int = 0
    """The number of attempts with usage and without a cost."""
    unknown: int = 0
    """The number of attempts of which not even the usage is known."""

    @classmethod
    def of_call(cls, usage: TokenUsage | None, cost: Cost | None, *, unknown: bool = False) -> CostSum:
        """The sum of one attempt.

        Args:
            usage: The attempt's usage; None if none is known.
            cost: The attempt's cost; None if none is known.
            unknown: Whether an attempt without usage may have used something all the same.
        """
        nano = None if cost is None else cost.nano_usd
        return cls(
            nano or 0,
            1,
            int(usage is not None and usage.source is UsageSource.ESTIMATED),
            int(usage is not None and nano is None),
            int(usage is None and nano is None and unknown),
        )

    @property
    def complete(self) -> bool:
        """True if every call's cost is known."""
        return not self.unpriced and not self.unknown

    @property
    def usd(self) -> Decimal:
        """The known part of the cost in US dollars, exactly."""
        return usd_of(self.nano_usd)

    def __add__(self, other: CostSum) -> CostSum:
        if not isinstance(other, CostSum):
            return NotImplemented
        return CostSum(
            self.nano_usd + other.nano_usd,
            self.calls + other.calls,
            self.estimated + other.estimated,
            self.unpriced + other.unpriced,
            self.unknown + other.unknown,
        )
