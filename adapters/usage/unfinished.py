"""The usage of a call that ended early or is still under way: one rule for every wire.

Providers report the billed usage at the end of a reply, and some report a part of it before. For a call that ended
early, the output is the larger of the reported output and an estimate of the delivered output. The input is the
reported one, or else an estimate of the request. A request that surely was never sent has used nothing. If the
answer was nothing but an error, neither usage nor bill is known.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callboard.bus.errors import AdapterError, CancelledError, NetworkError
from callboard.bus.values.usage import TokenUsage, UsageSource

from .estimate import at_most

NOTHING_USED = TokenUsage(source=UsageSource.ESTIMATED)
"""Of a request that was never sent."""


def usage_until_now(reported: TokenUsage | None, estimate: TokenUsage) -> TokenUsage:
    """The usage of a reply as far as it has come."""
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
    """The usage of an attempt that failed; None if nothing is known of it, as after a refusal."""
    if heard:
        return used()
    if isinstance(error, NetworkError) and error.before_sending:
        return NOTHING_USED
    unanswered = isinstance(error, NetworkError | CancelledError) or type(error) is AdapterError
    return used() if unanswered and error.provider_status is None else None
