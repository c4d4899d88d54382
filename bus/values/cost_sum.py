"""The cost of several calls together, and how far the sum can be trusted."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from .usage import Cost, TokenUsage, UsageSource, usd_of

UNANSWERED = frozenset({"network", "cancelled", "process_lost"})
"""Error classes of calls that got no answer."""
UNCLEAR = frozenset({"server_error", "other"})
"""Error classes of calls that got an answer if they have a status of HTTP."""


def usage_is_unknown(error_class: str, provider_status: int | None) -> bool:
    """Whether a failed call may have used tokens although no usage of it is known.

    It may if no answer came: the call was cancelled, timed out, was dropped, or was lost with its process. A
    provider that answers with an error bills nothing. A request that was never sent is not billed either.

    Args:
        error_class: The class of the call's error, or ``process_lost``.
        provider_status: The HTTP status of the answer; None if there was none.
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
