"""The usage of a call that ended early or is in progress: one rule for every wire.

Providers report the billed usage at the end of a reply, and some report a part before. For an early end, the
output is the larger of the reported one and an estimate of the delivered one. The input is the reported one, or an
estimate. A request that was certainly not sent used nothing. After an error alone, usage and bill are unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callboard.bus.errors import AdapterError, CancelledError, NetworkError
from callboard.bus.values.usage import TokenUsage, UsageSource

from .estimate import at_most

NOTHING_USED = TokenUsage(source=UsageSource.ESTIMATED)
"""For a request that was never sent."""


def usage_until_now(reported: TokenUsage | None, estimate: TokenUsage) -> TokenUsage:
    if reported is None:
        return estimate
    if reported.source is UsageSource.INCONSISTENT:
        return reported
    more = estimate.output_tokens > at_most(reported.output_tokens)
    return msgspec.structs.replace(
        reported,
        input_tokens=reported.input_tokens if reported.total_input_tokens else estimate.input_tokens,
        output_tokens=estimate.output_tokens if more else reported.output_tokens,
        source=UsageSource.PARTIAL,
    )


def usage_of_failure(
    error: AdapterError, used: Callable[[], TokenUsage | None], *, heard: bool
) -> TokenUsage | None:
    """The usage of a failed attempt; None if unknown, as after a refusal."""
    if heard:
        return used()
    if isinstance(error, NetworkError) and error.before_sending:
        return NOTHING_USED
    unanswered = isinstance(error, NetworkError | CancelledError) or type(error) is AdapterError
    return used() if unanswered and error.provider_status is None else None
