"""Which providers answer: a table fed by the bus, published on change.

A provider is available until five failures in a row that count against it (overload, server error, network), or
one against the key (auth, quota); then it is unavailable for a cool-down that doubles, 30 s to 10 min. When that
is over, the next call is the probe that decides. The table informs; a call that names its model is never refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from bus import Actor, ActorContext, Bus, Clock, Envelope, LlmCallCompleted, LlmCallFailed, Subscription
from bus.events import ProviderAvailabilityChanged

State = Literal["available", "unavailable", "probing"]

FAILURES_IN_A_ROW = 5
FIRST_COOL_DOWN_US = 30_000_000
LONGEST_COOL_DOWN_US = 600_000_000

_AGAINST_PROVIDER = frozenset({"server_error", "network"})
_AGAINST_KEY = frozenset({"AuthError", "QuotaExceededError"})


class ProviderState(msgspec.Struct):
    """What is known of one provider. retry_at_us: when an unavailable one may be probed."""

    state: State = "available"
    failures: int = 0
    cool_down_us: int = FIRST_COOL_DOWN_US
    retry_at_us: int | None = None
    reason: str = ""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of a provider, or of one of its models. retry_at_us: when it may be tried again."""

    provider: str
    model: str | None
    state: State
    reason: str
    retry_at_us: int | None = None


class AvailabilityTable:
    """The states of all providers; a plain object that outlives the actor which feeds it."""

    def __init__(self) -> None:
        self.providers: dict[str, ProviderState] = {}

    def state(self, provider: str) -> State:
        known = self.providers.get(provider)
        return known.state if known is not None else "available"

    def snapshot(self) -> tuple[Availability, ...]:
        """Everything that is known, as it is now."""
        return tuple(
            Availability(
                provider=provider,
                model=None,
                state=known.state,
                reason=known.reason,
                retry_at_us=known.retry_at_us,
            )
            for provider, known in self.providers.items()
        )

    def observe(self, event: LlmCallCompleted | LlmCallFailed, now_us: int) -> ProviderAvailabilityChanged | None:
        """Take one attempt into account; the change to publish, if there is one."""
        known = self.providers.setdefault(event.provider, ProviderState())
        if isinstance(event, LlmCallCompleted):
            return self._succeeded(event.provider, known)
        overloaded = event.error_type == "OverloadedError"
        if event.error_type in _AGAINST_KEY:
            known.failures = FAILURES_IN_A_ROW
        elif event.error_class in _AGAINST_PROVIDER or overloaded:
            known.failures += 1
        else:
            return None  # the request's fault, or a rate limit of the key: the provider answers
        if known.failures < FAILURES_IN_A_ROW:
            return None
        return self._fail(event.provider, known, event.error_type, now_us)

    def _succeeded(self, provider: str, known: ProviderState) -> ProviderAvailabilityChanged | None:
        previous = known.state
        self.providers[provider] = ProviderState()
        if previous == "available":
            return None
        return ProviderAvailabilityChanged(
            provider=provider, model=None, previous=previous, current="available", reason="a call succeeded"
        )

    def _fail(
        self, provider: str, known: ProviderState, reason: str, now_us: int
    ) -> ProviderAvailabilityChanged | None:
        previous = known.state
        if previous == "unavailable" and known.retry_at_us is not None and now_us < known.retry_at_us:
            return None
        if previous == "unavailable":
            known.cool_down_us = min(known.cool_down_us * 2, LONGEST_COOL_DOWN_US)
        known.state, known.reason = "unavailable", reason
        known.retry_at_us = now_us + known.cool_down_us
        return ProviderAvailabilityChanged(
            provider=provider,
            model=None,
            previous=previous,
            current="unavailable",
            reason=reason,
            retry_at_us=known.retry_at_us,
        )


class AvailabilityActor(Actor):
    """Feeds the table from a lossless subscription that the engine owns."""

    def __init__(self, table: AvailabilityTable, subscription: Subscription, bus: Bus, clock: Clock) -> None:
        self._table = table
        self._subscription = subscription
        self._bus = bus
        self._clock = clock

    async def started(self, context: ActorContext) -> None:
        context.spawn(self._follow, name="availability")

    async def receive(self, message: object) -> object:
        raise TypeError(f"the availability actor takes no messages, got {type(message).__name__}")

    async def _follow(self) -> None:
        async for envelope in self._subscription:
            change = self._observe(envelope)
            if change is not None:
                self._bus.publish(change)

    def _observe(self, envelope: Envelope) -> ProviderAvailabilityChanged | None:
        event = envelope.data
        if isinstance(event, LlmCallCompleted | LlmCallFailed):
            return self._table.observe(event, self._clock.now_us())
        return None
