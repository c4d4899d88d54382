"""What a call has used that did not come to its end, or has not yet: one rule, for every wire.

Providers say what they bill at the end of a reply, and some say a part of it before. For what ended early the
output is the larger of what was reported and an estimate of what had been delivered; the input is what was
reported, or else an estimate of what was sent. A request that surely was never sent has used nothing. Of one that
was answered with nothing but an error no usage is known, nor any bill.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bus.errors import AdapterError, CancelledError, NetworkError
from bus.values.usage import TokenUsage, UsageSource

from .estimate import at_most

NOTHING_USED = TokenUsage(source=UsageSource.ESTIMATED)
"""Of a request that was never sent."""


def usage_until_now(reported: TokenUsage | None, estimate: TokenUsage) -> TokenUsage:
    """What a reply has used as far as it has come.

    estimate: of what was sent, and of all that has been delivered: text, reasoning and arguments. Within its own
    error it says nothing against a report, which may be the final one.
    """
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
    """What an attempt has used that failed so; None if nothing is known of it, as after a refusal.

    used: what it has used if the provider worked on it. heard: something of a reply had come.
    """
    if heard:
        return used()
    if isinstance(error, NetworkError) and error.before_sending:
        return NOTHING_USED
    unanswered = isinstance(error, NetworkError | CancelledError) or type(error) is AdapterError
    return used() if unanswered and error.provider_status is None else None
