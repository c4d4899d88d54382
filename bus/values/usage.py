"""Usage and cost of a call, with token counts in disjoint buckets."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

import msgspec

from .base import ShortRepr


class StopReason(StrEnum):
    """How a reply ended, the same for all providers. `raw_stop_reason` has the provider's own word."""

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
    """The origin of token counts, the most reliable first."""

    REPORTED = "reported"
    """The provider's final figures."""
    PARTIAL = "partial"
    """Partly reported. The other counts are derived, or estimated after an early end."""
    ESTIMATED = "estimated"
    """An estimate by Callboard, because the provider reported no usage."""
    INCONSISTENT = "inconsistent"
    """Reported, but contradictory. The counts were adjusted and have no price."""


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
"""Names in `TokenUsage.details` that count tokens, each with the bucket that contains them.

The buckets are uncached input, input read from a cache, and output without reasoning. All other names count units
such as searches, images or seconds.
"""

_USUAL_TIERS = frozenset(
    {"", "default", "standard", "standard_only", "auto", "on_demand", "unspecified", "service_tier_unspecified"}
)


def unusual_tier(service_tier: object) -> str | None:
    """A service tier in lower case; None for a usual tier."""
    name = service_tier.strip().lower() if isinstance(service_tier, str) else ""
    return None if name in _USUAL_TIERS else name


_USUAL_GEOGRAPHIES = frozenset({"", "global", "not_available"})


def tier_in(tier: str | None, geography: object) -> str | None:
    """Combine a service tier with the geography of inference, because the combination has its own price.

    Anthropic reports the geography as ``inference_geo``. For ``us``, the result is ``geo-us`` at the default tier,
    and ``fast+geo-us`` at the tier ``fast``.
    """
    name = geography.strip().lower() if isinstance(geography, str) else ""
    if name in _USUAL_GEOGRAPHIES:
        return tier
    return f"{tier}+geo-{name}" if tier else f"geo-{name}"


def split_tier(service_tier: str | None) -> tuple[str | None, str | None]:
    """Split a name that `tier_in` made into the tier and the geography. Each is None if the name does not contain
    it.
    """
    tier, _, geography = (service_tier or "").partition("geo-")
    return tier.rstrip("+") or None, geography or None


def details_of(**counts: int | None) -> dict[str, int] | None:
    """The counts above zero, in the form of `TokenUsage.details`; None if there are none."""
    return {name: count for name, count in counts.items() if count} or None


class TokenUsage(ShortRepr, frozen=True, gc=False):
    """Token counts of one call.

    `input_tokens`, `output_tokens`, `cached_input_tokens` and `cache_creation_input_tokens` are disjoint.
    """

    input_tokens: int = 0
    """Input tokens that were neither read from a cache nor written to one."""
    output_tokens: int = 0
    """All generated tokens, reasoning included."""
    cached_input_tokens: int = 0
    """Input tokens read from a cache."""
    cache_creation_input_tokens: int = 0
    """Input tokens written to a cache, of any lifetime."""
    cache_creation_1h_input_tokens: int = 0
    """The part of `cache_creation_input_tokens` that was written for an hour; the rest was written for 5 minutes.
    """
    reasoning_tokens: int | None = None
    """The part of `output_tokens` spent on reasoning; None if the provider reports none."""
    source: UsageSource = UsageSource.REPORTED
    """The origin of the counts."""
    raw: msgspec.Raw | None = None
    """The provider's usage object, unchanged, so that later price tables can use it."""
    reported_cost_nano_usd: int | None = None
    """The cost that the provider reports, in nano-USD; None if it reports none."""
    details: dict[str, int] | None = None
    """Counts with separate prices. A name in `USAGE_PARTS` counts tokens that are part of the counts above.

    Any other name, such as ``web_search``, counts units with their own price.
    """
    service_tier: str | None = None
    """The service tier that the provider reports, converted by `unusual_tier`; None for the standard tier."""
    upstream_cost_nano_usd: int | None = None
    """The part of `reported_cost_nano_usd` that is billed to the key's owner by the provider behind a gateway, in
    nano-USD.
    """

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
        """True if the counts are not the provider's final figures."""
        return self.source is UsageSource.ESTIMATED

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """The sum of two usages.

        The source is the less reliable of the two sources, and `raw` is dropped. The sum has a reported cost if
        both usages have one, and a service tier if both usages have the same.
        """
        if not isinstance(other, TokenUsage):
            return NotImplemented
        costs = (self.reported_cost_nano_usd, other.reported_cost_nano_usd)
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_creation_input_tokens=self.cache_creation_input_tokens + other.cache_creation_input_tokens,
            cache_creation_1h_input_tokens=self.cache_creation_1h_input_tokens
            + other.cache_creation_1h_input_tokens,
            reasoning_tokens=_sum_of(self.reasoning_tokens, other.reasoning_tokens),
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
    """The origin of a cost."""

    COMPUTED = "computed"
    PROVIDER = "provider"
    UNPRICED = "unpriced"


def usd_of(nano_usd: int) -> Decimal:
    """Nano-USD as US dollars, exactly. Zero nano-USD is ``0``."""
    return Decimal(nano_usd).scaleb(-9) if nano_usd else Decimal()


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Money, in integer nano-USD. None means unknown, which is not zero."""

    nano_usd: int | None
    """The cost in billionths of a US dollar; None if unknown."""
    source: CostSource
    """The origin of the figure."""
    pricing_version: str | None = None
    """The version of the price table, as 12 hex digits. The table computed `computed_nano_usd`, or `nano_usd` if
    that is None. None if no table was used.
    """
    reason: str | None = None
    """The reason why there is no figure, or a remark about the figure. If the provider reports the cost, the
    reason concerns the price table's figure.
    """
    computed_nano_usd: int | None = None
    """The cost by the price table in nano-USD, if `nano_usd` is the provider's own figure."""

    @property
    def usd(self) -> Decimal | None:
        """The cost in US dollars, exactly; None if unknown."""
        return None if self.nano_usd is None else usd_of(self.nano_usd)

    def __add__(self, other: Cost) -> Cost:
        """The sum of two costs.

        The sum is unknown if either cost is unknown. Its source is the provider only if both sources are. It has a
        price version only if both costs have the same. `computed_nano_usd` is dropped.
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


# --- Sums of costs ---

UNANSWERED = frozenset({"network", "cancelled", "process_lost"})
"""Error classes of calls without an answer."""
UNCLEAR = frozenset({"server_error", "other"})
"""Error classes of calls that were answered only if the error has an HTTP status."""


def usage_is_unknown(error_class: str, provider_status: int | None) -> bool:
    """Whether a failed call may have used tokens that are unknown.

    The usage is unknown if no answer arrived: the call was cancelled, timed out, was dropped, or was lost with its
    process. A provider bills neither an error response nor a request that was not sent.
    """
    return error_class in UNANSWERED or (error_class in UNCLEAR and provider_status is None)


class CostSum(msgspec.Struct, frozen=True, gc=False):
    """A sum of costs, with four counts. No amount includes an unknown cost, which is never treated as zero."""

    nano_usd: int = 0
    """The sum of the known costs in nano-USD."""
    calls: int = 0
    """The number of attempts, with any end."""
    estimated: int = 0
    """The number of attempts with estimated usage."""
    unpriced: int = 0
    """The number of attempts with usage and without a cost."""
    unknown: int = 0
    """The number of attempts with unknown usage."""

    @classmethod
    def of_call(cls, usage: TokenUsage | None, cost: Cost | None, *, unknown: bool = False) -> CostSum:
        """The sum of one attempt.

        Args:
            usage: The attempt's usage; None if none is known.
            cost: The attempt's cost; None if none is known.
            unknown: Whether an attempt without usage may have used tokens.
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
