"""What several calls cost together, and how far that sum can be trusted."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from .usage import Cost, TokenUsage, UsageSource, usd_of

UNANSWERED = frozenset({"network", "cancelled", "process_lost"})
"""Error classes of calls that got no answer."""
UNCLEAR = frozenset({"server_error", "other"})
"""Error classes of calls that got an answer if they have a status of HTTP."""


def usage_is_unknown(error_class: str, provider_status: int | None) -> bool:
    """Whether a failed call may have used something, although no usage of it is known.

    It may if no answer came: it was cancelled, timed out, dropped, or lost with its process. A provider that
    answers with an error bills nothing, nor does a request that was never sent.
    """
    return error_class in UNANSWERED or (error_class in UNCLEAR and provider_status is None)


class CostSum(msgspec.Struct, frozen=True, gc=False):
    """A sum of costs, with four counts beside it; what is not known is in no amount, and never taken for zero.

    nano_usd: over the calls whose cost is known. calls: attempts, whatever became of them. estimated: how many of
    them have usage that was estimated. unpriced: how many have usage and no cost. unknown: of how many not even
    the usage is known.
    """

    nano_usd: int = 0
    calls: int = 0
    estimated: int = 0
    unpriced: int = 0
    unknown: int = 0

    @classmethod
    def of_call(cls, usage: TokenUsage | None, cost: Cost | None, *, unknown: bool = False) -> CostSum:
        """One attempt. unknown: it has no usage, and may have used something all the same."""
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
        """The known part in US dollars, exactly."""
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
