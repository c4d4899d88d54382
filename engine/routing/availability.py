"""Which providers and models answer: a state table fed by the bus, published on change.

There is one record for each provider, and one for each of its models that has had trouble of its own:

    available    nothing speaks against it
    degraded     it wavers (three failures in a row), or it asked for a pause: used after those that are available
    unavailable  left alone until `retry_at`, except by calls that have nowhere else to go
    probing      one call finds out whether it is back; to all others it is still unavailable

`TRANSITIONS` is the whole state machine: what happened to a record, and the state that follows. What happened is
read from the events by `blame`. Three failures in a row are `wavering`, five are an `outage`. A refused key, an
empty account and a model that isn't there are `refused` at the first. The cool-down of an outage is 30 s and
doubles with each probe that fails, up to 10 min; a refusal's is 10 min at once, and a reload of the
configuration ends it. While a call probes, only that call decides, except that any success is a success.

The table is a plain object: whoever changes it gets the events to publish. It never waits and never asks the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal, TypeAlias

import msgspec

from bus import Actor, ActorContext, Bus, Clock, Envelope, LlmCallCompleted, LlmCallFailed, Subscription
from bus.events.catalogue import ActorStopped, ProviderAvailabilityChanged

State: TypeAlias = Literal["available", "degraded", "unavailable", "probing"]
Signal: TypeAlias = Literal[
    "success", "answered", "inconclusive", "failure", "wavering", "outage", "limited", "refused", "crashed",
    "probe", "reloaded",
]  # fmt: skip
Changes: TypeAlias = tuple[ProviderAvailabilityChanged, ...]

STATES: tuple[State, ...] = ("available", "degraded", "unavailable", "probing")

_ROWS: dict[Signal, tuple[State, State, State, State]] = {
    # in state:      available      degraded       unavailable    probing
    "success":      ("available",   "available",   "available",   "available"),
    "answered":     ("available",   "degraded",    "unavailable", "available"),   # with the request's own fault
    "inconclusive": ("available",   "degraded",    "unavailable", "unavailable"), # cancelled, or never sent
    "failure":      ("available",   "degraded",    "unavailable", "unavailable"),
    "wavering":     ("degraded",    "degraded",    "unavailable", "unavailable"),
    "outage":       ("unavailable", "unavailable", "unavailable", "unavailable"),
    "limited":      ("degraded",    "degraded",    "unavailable", "degraded"),
    "refused":      ("unavailable", "unavailable", "unavailable", "unavailable"),
    "crashed":      ("unavailable", "unavailable", "unavailable", "unavailable"),
    "probe":        ("available",   "degraded",    "probing",     "probing"),
    "reloaded":     ("available",   "available",   "available",   "available"),
}  # fmt: skip

TRANSITIONS: dict[tuple[State, Signal], State] = {
    (state, signal): row[place] for signal, row in _ROWS.items() for place, state in enumerate(STATES)
}

WAVERING_AFTER = 3
OUTAGE_AFTER = 5
FIRST_COOL_DOWN_US = 30_000_000
LONGEST_COOL_DOWN_US = 600_000_000
PAUSE_US = 10_000_000
"""How long a rate limit without a hint sets a model back."""

MAX_RECORDS = 4096
"""Of how many providers and models trouble is remembered; the oldest is forgotten first."""

_REFUSED_KEY = frozenset({"AuthError", "QuotaExceededError"})
_REFUSED_MODEL = frozenset({"AccessDeniedError", "NotFoundError"})


class Record(msgspec.Struct):
    """What is known of a provider, or of one of its models.

    failures: in a row. retry_at_us: when it may be tried again. probe: the request that finds out. early: that
    request did not wait for `retry_at_us`, so its failure says nothing new.
    """

    provider: str
    model: str | None
    state: State = "available"
    failures: int = 0
    cool_down_us: int = FIRST_COOL_DOWN_US
    retry_at_us: int | None = None
    reason: str = ""
    probe: str | None = None
    early: bool = False


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider, or one of its models, stands.

    model: ``provider:name``; None for the provider as a whole. state: ``available``; ``degraded``, chosen after
    others; ``unavailable``, left alone for now; ``probing``, one call finds out. reason: why, in words.
    retry_at_us: when it may be tried again, in microseconds since the epoch.
    """

    provider: str
    model: str | None
    state: State
    reason: str
    retry_at_us: int | None = None


class Standing(msgspec.Struct, frozen=True):
    """What the table says to a call that has a choice.

    retry_after_seconds: until a call may go there again, of what is closed or to be used later; None while a probe
    is under way, whose end nobody knows.
    """

    kind: Literal["ready", "later", "closed"] = "ready"
    reason: str = ""
    retry_after_seconds: float | None = None


READY = Standing()


def blame(event: LlmCallCompleted | LlmCallFailed) -> tuple[Signal, Signal]:
    """What an attempt's end says of the provider, and of the model."""
    if isinstance(event, LlmCallCompleted):
        return "success", "success"
    kind = event.error_type
    if kind in _REFUSED_KEY:
        return "refused", "inconclusive"
    if kind in _REFUSED_MODEL:
        return "answered", "refused"
    if kind == "OverloadedError" or event.error_class == "server_error":
        return "failure", "failure"  # one model of it, or all: nobody says
    if event.error_class == "rate_limit":
        return "answered", "limited"  # providers count for each model
    if event.error_class == "network":
        return "failure", "inconclusive"
    if event.provider_status is not None and event.error_class != "cancelled":
        return "answered", "answered"
    return "inconclusive", "inconclusive"


class AvailabilityTable:
    """The states of all providers and models; it outlives the actor that feeds it."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str | None], Record] = {}

    # -- what it knows

    def state(self, provider: str, model: str | None = None) -> State:
        """Of a provider; with `model` (with or without ``provider:``), the worse of the provider's and its own."""
        if model is not None and not model.startswith(f"{provider}:"):
            model = f"{provider}:{model}"
        order = ("available", "degraded", "probing", "unavailable")
        states = [record.state for record in self._of(provider, model)]
        return max(states, key=order.index, default="available")

    def snapshot(self) -> tuple[Availability, ...]:
        """Everything that is not simply available, with the reason."""
        return tuple(
            Availability(
                provider=record.provider,
                model=record.model,
                state=record.state,
                reason=record.reason,
                retry_at_us=record.retry_at_us,
            )
            for record in self._records.values()
            if record.state != "available"
        )

    def standing(self, provider: str, model: str, now_us: int) -> Standing:
        """Whether a call that has a choice should go there now."""
        closed: list[Standing] = []
        worst = READY
        for record in self._of(provider, model):
            wait = max((record.retry_at_us or now_us) - now_us, 0) / 1e6
            if record.state == "probing":
                closed.append(Standing("closed", f"unavailable ({record.reason}), being probed"))
            elif record.state == "unavailable" and wait:
                closed.append(Standing("closed", f"unavailable ({record.reason})", wait))
            elif record.state == "degraded" and wait:
                worst = Standing("later", f"degraded ({record.reason})", wait)
        if not closed:
            return worst
        waits = [standing.retry_after_seconds for standing in closed]
        last = None if None in waits else max(wait for wait in waits if wait is not None)
        return msgspec.structs.replace(closed[0], retry_after_seconds=last)

    # -- what happens to it

    def observe(
        self, event: LlmCallCompleted | LlmCallFailed, now_us: int, *, request_id: str | None = None
    ) -> Changes:
        """Take the end of one attempt into account."""
        of_provider, of_model = blame(event)
        ended = isinstance(event, LlmCallCompleted) or not event.will_retry
        reason = "a call succeeded" if isinstance(event, LlmCallCompleted) else _reason(event)
        hint = None if isinstance(event, LlmCallCompleted) else event.retry_after_seconds
        changes: list[ProviderAvailabilityChanged] = []
        for model, signal in ((None, of_provider), (event.model, of_model)):
            record = self._record(event.provider, model, signal)
            if record is None:
                continue
            if record.state == "probing" and signal != "success" and not (ended and record.probe == request_id):
                continue  # only the probe decides
            changes += self._signal(record, self._counted(record, signal, now_us), reason, now_us, hint)
        return tuple(changes)

    def begin(self, provider: str, model: str, request_id: str, now_us: int) -> Changes:
        """A call is about to go there: what is unavailable, and not probed yet, is probed by it."""
        changes: list[ProviderAvailabilityChanged] = []
        for record in self._of(provider, model):
            if record.state == "unavailable":
                record.probe = request_id
                record.early = record.retry_at_us is not None and now_us < record.retry_at_us
                changes += self._signal(record, "probe", record.reason, now_us)
        return tuple(changes)

    def abandon(self, request_id: str, now_us: int) -> Changes:
        """A call that had begun to probe was never sent."""
        changes: list[ProviderAvailabilityChanged] = []
        for record in list(self._records.values()):
            if record.probe == request_id:
                changes += self._signal(record, "inconclusive", record.reason, now_us)
        return tuple(changes)

    def crashed(self, provider: str, now_us: int) -> Changes:
        """The provider's adapter can't be kept running."""
        record = self._record(provider, None, "crashed")
        return self._signal(record, "crashed", "adapter_crashed", now_us) if record is not None else ()

    def reloaded(self, changed: Collection[str], removed: Collection[str], now_us: int) -> Changes:
        """The configuration was read anew: changed providers begin afresh, the others' refusals may be probed."""
        changes: list[ProviderAvailabilityChanged] = []
        for record in list(self._records.values()):
            if record.provider in removed:
                del self._records[record.provider, record.model]
            elif record.provider in changed:
                changes += self._signal(record, "reloaded", "its configuration changed", now_us)
            elif record.state == "unavailable":
                record.retry_at_us = now_us
        return tuple(changes)

    def restore(self, history: Iterable[Envelope], now_us: int) -> None:
        """Take over what an earlier run published. Nobody probes any more, so a probe may begin at once."""
        for envelope in history:
            event = envelope.data
            if not isinstance(event, ProviderAvailabilityChanged):
                continue
            key = event.provider, event.model
            self._records.pop(key, None)
            if event.current not in ("degraded", "unavailable", "probing"):
                continue
            record = self._records[key] = Record(event.provider, event.model, reason=event.reason)
            record.state = "degraded" if event.current == "degraded" else "unavailable"
            record.retry_at_us = event.retry_at_us if event.current != "probing" else now_us
            if record.state == "unavailable" and event.retry_at_us is not None:
                waited = event.retry_at_us - envelope.ts_us
                record.cool_down_us = min(max(waited, FIRST_COOL_DOWN_US), LONGEST_COOL_DOWN_US)
        self._bound()

    # -- how

    def _of(self, provider: str, model: str | None) -> list[Record]:
        keys = [(provider, None)] if model is None else [(provider, None), (provider, model)]
        return [self._records[key] for key in keys if key in self._records]

    def _record(self, provider: str, model: str | None, signal: Signal) -> Record | None:
        """The record to change; made only for what leaves a trace."""
        record = self._records.get((provider, model))
        if record is None and signal in ("failure", "limited", "refused", "crashed"):
            record = self._records[provider, model] = Record(provider, model)
            self._bound()
        return record

    def _bound(self) -> None:
        while len(self._records) > MAX_RECORDS:
            del self._records[next(iter(self._records))]

    def _counted(self, record: Record, signal: Signal, now_us: int) -> Signal:
        """A failure by its place in the row; a success during a pause that was asked for doesn't end the pause."""
        if signal == "failure":
            record.failures += 1
            if record.failures >= OUTAGE_AFTER:
                return "outage"
            return "wavering" if record.failures >= WAVERING_AFTER else "failure"
        if signal == "success" and record.state == "degraded" and now_us < (record.retry_at_us or 0):
            record.failures = 0
            return "answered"
        return signal

    def _signal(
        self, record: Record, signal: Signal, reason: str, now_us: int, hint_seconds: float | None = None
    ) -> Changes:
        previous = record.state
        record.state = TRANSITIONS[previous, signal]
        if record.state != "probing":
            record.probe = None
        match record.state:
            case "available":
                self._relieve(record, previous, signal)
            case "degraded" if signal == "limited":
                pause_us = PAUSE_US if hint_seconds is None else round(max(hint_seconds, 0.0) * 1e6)
                record.retry_at_us = max(record.retry_at_us or 0, now_us + pause_us)
            case "degraded" if previous != "degraded":
                record.retry_at_us = None
            case "unavailable":
                self._cool_down(record, previous, signal, now_us)
            case _:
                pass
        if record.state == previous:
            return ()
        if record.state != "probing":
            record.reason = reason
        change = ProviderAvailabilityChanged(
            provider=record.provider,
            model=record.model,
            previous=previous,
            current=record.state,
            reason=reason,
            retry_at_us=record.retry_at_us,
        )
        return (change,)

    def _relieve(self, record: Record, previous: State, signal: Signal) -> None:
        """Forget what is past: nothing is kept of a record that is available and has no failures."""
        record.retry_at_us, record.cool_down_us = None, FIRST_COOL_DOWN_US
        if signal in ("success", "reloaded") or previous == "probing":
            record.failures = 0
        if record.failures == 0:
            self._records.pop((record.provider, record.model), None)

    def _cool_down(self, record: Record, previous: State, signal: Signal, now_us: int) -> None:
        """Until when an unavailable record is left alone."""
        if signal in ("refused", "crashed") and previous != "probing":
            record.cool_down_us = max(
                record.cool_down_us, LONGEST_COOL_DOWN_US if signal == "refused" else FIRST_COOL_DOWN_US
            )
        if previous == "unavailable":
            return
        if previous == "probing" and signal == "inconclusive":
            record.retry_at_us = now_us if not record.early else record.retry_at_us
            return
        if previous == "probing":
            if record.early and record.retry_at_us is not None and now_us < record.retry_at_us:
                return
            doubled = LONGEST_COOL_DOWN_US if signal == "refused" else record.cool_down_us * 2
            record.cool_down_us = min(doubled, LONGEST_COOL_DOWN_US)
        record.retry_at_us = now_us + record.cool_down_us


def _reason(event: LlmCallFailed) -> str:
    match event.error_type:
        case "AuthError":
            return "key refused"
        case "QuotaExceededError":
            return "quota exhausted"
        case "AccessDeniedError":
            return "access denied"
        case "NotFoundError":
            return "model not found"
        case _:
            return f"{event.error_class}: {event.error_type}"


WATCHED = ("llm.call_completed", "llm.call_failed", "actor.stopped")
"""The topics that an AvailabilityActor reads. How a call begins, the table is told directly."""


class AvailabilityActor(Actor):
    """Feeds the table from a lossless subscription that the engine owns.

    provider_of: the provider that an actor serves; None for actors that are no adapters.
    """

    def __init__(
        self,
        table: AvailabilityTable,
        subscription: Subscription,
        bus: Bus,
        clock: Clock,
        provider_of: Callable[[str], str | None] = lambda actor: None,
    ) -> None:
        self._table = table
        self._subscription = subscription
        self._bus = bus
        self._clock = clock
        self._provider_of = provider_of

    async def started(self, context: ActorContext) -> None:
        context.spawn(self._follow, name="availability")

    async def receive(self, message: object) -> object:
        raise TypeError(f"the availability actor takes no messages, got {type(message).__name__}")

    async def _follow(self) -> None:
        async for envelope in self._subscription:
            for change in self._observe(envelope):
                self._bus.publish(change)

    def _observe(self, envelope: Envelope) -> Changes:
        now_us = self._clock.now_us()
        match envelope.data:
            case LlmCallCompleted() | LlmCallFailed() as event:
                return self._table.observe(event, now_us, request_id=envelope.request_id)
            case ActorStopped(actor=actor, reason="restart limit"):
                provider = self._provider_of(actor)
                return self._table.crashed(provider, now_us) if provider is not None else ()
            case _:
                return ()
