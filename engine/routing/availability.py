"""The availability of providers and models: a table of states that follows the calls.

    available    there are no known failures
    degraded     three failures in a row, or a requested pause: used only if no available model can serve
    unavailable  skipped until `retry_at_us`, except by calls without an alternative
    probing      one call tests whether it works again; for all other calls it is still unavailable

`TRANSITIONS` is the whole state machine. `signals_of` reads the signals from the events. Five failures in a row
are an `outage`: its cool-down is 30 s and doubles with each failed probe, up to 10 min. A refused key, an empty
account and a missing model are `refused` at the first failure, for 10 min or until a reload of the configuration.
During a probe, failures of other calls are ignored, but every success is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.keys import Keyring
from callboard.bus import (
    Bus,
    Clock,
    ConfigurationError,
    Envelope,
    LlmCallCompleted,
    LlmCallFailed,
    Subscription,
)
from callboard.bus.events.operation import ActorStopped, ProviderAvailabilityChanged

State: TypeAlias = Literal["available", "degraded", "unavailable", "probing"]
Signal: TypeAlias = Literal[
    "success", "answered", "inconclusive", "failure", "wavering", "outage", "limited", "refused", "crashed",
    "probe", "reloaded",
]  # fmt: skip
RecordKey: TypeAlias = tuple[str, str | None]
"""A provider, and one of its models; None for the provider as a whole."""
Changes: TypeAlias = tuple[ProviderAvailabilityChanged, ...]

STATES: tuple[State, ...] = ("available", "degraded", "unavailable", "probing")

_ROWS: dict[Signal, tuple[State, State, State, State]] = {
    # in state:      available      degraded       unavailable    probing
    "success":      ("available",   "available",   "available",   "available"),
    "answered":     ("available",   "degraded",    "unavailable", "available"),   # an error in the request itself
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
"""Microseconds until a model with a rate limit is tried again, if the provider gives no time."""

MAX_RECORDS = 4096
"""The maximum number of records. When it is exceeded, the oldest record is dropped."""

_REFUSED_KEY = frozenset({"AuthError", "QuotaExceededError"})
_REFUSED_MODEL = frozenset({"AccessDeniedError", "NotFoundError"})
_OF_KEY = _REFUSED_KEY | {"AccessDeniedError", "RateLimitError"}


class Record(msgspec.Struct):
    """The state of a provider, or of one of its models."""

    provider: str
    model: str | None
    """The model as ``provider:name``; None for the provider as a whole."""
    state: State = "available"
    failures: int = 0
    cool_down_us: int = FIRST_COOL_DOWN_US
    """The length of the next cool-down, in microseconds."""
    retry_at_us: int | None = None
    """The earliest time of the next try, in microseconds since the epoch."""
    reason: str = ""
    """The reason for the state, as text."""
    probe: str | None = None
    early: bool = False
    """Whether the probing call started before `retry_at_us`. If True, its failure changes nothing."""
    elsewhere: bool = False
    """Whether the state comes only from another node, or another node is probing it."""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """The availability of a provider, or of one of its models."""

    provider: str
    """The provider."""
    model: str | None
    """The model as ``provider:name``; None for the provider as a whole."""
    state: State
    """``available``; ``degraded``, chosen after others; ``unavailable``, skipped for now; or ``probing``, while
    one call checks it."""
    reason: str
    """The reason for the state, as text."""
    retry_at_us: int | None = None
    """The earliest time of the next try, in microseconds since the epoch."""


class Readiness(msgspec.Struct, frozen=True):
    """Whether a call with several candidates should use this model."""

    kind: Literal["ready", "later", "closed"] = "ready"
    """``ready``; ``later``, used only after the ready ones; or ``closed``, not used."""
    reason: str = ""
    retry_after_seconds: float | None = None
    """Seconds until a call may try the model again; None while a probe of unknown length is in progress."""


READY = Readiness()
LIMITED = Readiness("later", "its rate limit is exhausted")
"""The readiness of a model without room in its known rate limits."""


def signals_of(event: LlmCallCompleted | LlmCallFailed) -> tuple[Signal, Signal]:
    """The signals about the provider and the model that the end of an attempt gives."""
    if isinstance(event, LlmCallCompleted):
        return "success", "success"
    if event.of_batch:
        return "inconclusive", "inconclusive"  # a job or a batch ran hours ago, or in another queue
    kind = event.error_type
    if event.key is not None and kind in _OF_KEY:
        return "answered", "answered"  # only this key is paused, see `adapters.keys`
    if kind in _REFUSED_KEY:
        return "refused", "inconclusive"
    if kind in _REFUSED_MODEL:
        return "answered", "refused"
    if kind == "OverloadedError" or event.error_class == "server_error":
        return "failure", "failure"  # The error doesn't show whether one model or all are affected.
    if kind == "RateLimitWaitError":
        return "inconclusive", "inconclusive"  # never sent
    if event.error_class == "rate_limit":
        return "answered", "limited"  # providers limit each model separately
    if event.error_class == "network":
        return "failure", "inconclusive"
    if event.provider_status is not None and event.error_class != "cancelled":
        return "answered", "answered"
    return "inconclusive", "inconclusive"


class AvailabilityTable:
    """The states of all providers and models. The table outlives the actor that updates it."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str | None], Record] = {}

    # --- Reading the table ---

    def state(self, provider: str, model: str | None = None) -> State:
        """The state of a provider, or the worse of the states of a provider and its model."""
        if model is not None and not model.startswith(f"{provider}:"):
            model = f"{provider}:{model}"
        order = ("available", "degraded", "probing", "unavailable")
        states = [record.state for record in self._of(provider, model)]
        return max(states, key=order.index, default="available")

    def snapshot(self) -> tuple[Availability, ...]:
        """All providers and models that are not simply available."""
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

    def readiness(self, provider: str, model: str, now_us: int) -> Readiness:
        """Whether a call with several candidates should use a model now."""
        if not self._records:
            return READY
        closed: list[Readiness] = []
        worst = READY
        for record in self._of(provider, model):
            wait = max((record.retry_at_us or now_us) - now_us, 0) / 1e6
            if record.state == "probing":
                closed.append(Readiness("closed", f"unavailable ({record.reason}), probe in progress"))
            elif record.state == "unavailable" and wait:
                closed.append(Readiness("closed", f"unavailable ({record.reason})", wait))
            elif record.state == "degraded" and wait:
                worst = Readiness("later", f"degraded ({record.reason})", wait)
        if not closed:
            return worst
        waits = [readiness.retry_after_seconds for readiness in closed]
        last = None if None in waits else max(wait for wait in waits if wait is not None)
        return msgspec.structs.replace(closed[0], retry_after_seconds=last)

    def half_open(self, provider: str, model: str, now_us: int) -> list[RecordKey]:
        """The provider or model that a call would probe now, because the cool-down has ended."""
        keys = [(record.provider, record.model) for record in self._of(provider, model)]
        return [key for key in keys if self.is_half_open(key, now_us)]

    def is_half_open(self, key: RecordKey, now_us: int) -> bool:
        """Whether the next call to a provider or a model, if it has alternatives, would probe it."""
        record = self._records.get(key)
        return record is not None and record.state == "unavailable" and (record.retry_at_us or 0) <= now_us

    def is_probing(self, key: RecordKey) -> bool:
        record = self._records.get(key)
        return record is not None and record.state == "probing"

    # --- Signals ---

    def leave_to_other(self, provider: str, model: str | None, until_us: int) -> None:
        """Let another node probe a provider or a model, at most until the given time."""
        record = self._records.get((provider, model))
        if record is not None and record.state == "unavailable":
            record.retry_at_us, record.elsewhere = max(record.retry_at_us or 0, until_us), True

    def observe(
        self, event: LlmCallCompleted | LlmCallFailed, now_us: int, *, request_id: str | None = None
    ) -> Changes:
        """Record the end of an attempt. `request_id` is the id of its call."""
        if not self._records and isinstance(event, LlmCallCompleted):
            return ()
        of_provider, of_model = signals_of(event)
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
        """Record that a call is about to start. It probes every record that is unavailable and not probed yet."""
        if not self._records:
            return ()
        changes: list[ProviderAvailabilityChanged] = []
        for record in self._of(provider, model):
            if record.state == "unavailable":
                record.probe = request_id
                record.early = record.retry_at_us is not None and now_us < record.retry_at_us
                changes += self._signal(record, "probe", record.reason, now_us)
        return tuple(changes)

    def abandon(self, request_id: str, now_us: int) -> Changes:
        """Record that a call was never sent although it had started a probe."""
        changes: list[ProviderAvailabilityChanged] = []
        for record in list(self._records.values()):
            if record.probe == request_id:
                changes += self._signal(record, "inconclusive", record.reason, now_us)
        return tuple(changes)

    def crashed(self, provider: str, now_us: int) -> Changes:
        """Record that the adapter of a provider crashed too often to be restarted."""
        record = self._record(provider, None, "crashed")
        return self._signal(record, "crashed", "adapter_crashed", now_us) if record is not None else ()

    def reloaded(self, changed: Collection[str], removed: Collection[str], now_us: int) -> Changes:
        """Apply a new configuration.

        Changed providers start without failures, and all others may be probed immediately.
        """
        changes: list[ProviderAvailabilityChanged] = []
        for record in list(self._records.values()):
            if record.provider in removed:
                del self._records[record.provider, record.model]
            elif record.provider in changed:
                changes += self._signal(record, "reloaded", "its configuration changed", now_us)
            elif record.state == "unavailable":
                record.retry_at_us = now_us
        return tuple(changes)

    def found_elsewhere(
        self,
        provider: str,
        model: str | None,
        state: str,
        reason: str,
        retry_at_us: int | None,
        now_us: int,
        node: str,
    ) -> Changes:
        """Apply the state that another node has published. An unavailable model stays unavailable until the later
        one of the two nodes' times.

        If the model was unavailable only because of another node, and a node found it available, it may be tried
        immediately. While a call of this node probes the model, the result of that call decides.
        """
        key = provider, model
        record = self._records.get(key)
        if record is not None and record.state == "probing":
            return ()
        if state == "available":
            if record is not None and record.state == "unavailable" and record.elsewhere:
                record.retry_at_us = now_us
            return ()
        if retry_at_us is None or retry_at_us <= now_us:
            return ()
        if record is None:
            record = self._records[key] = Record(provider, model)
            self._bound()
        previous = record.state
        if state == "unavailable" and previous != "unavailable":
            record.state, record.retry_at_us = "unavailable", retry_at_us
        elif state == "degraded" and previous == "available":
            record.state, record.retry_at_us = "degraded", retry_at_us
        elif state == previous:
            record.retry_at_us = max(record.retry_at_us or 0, retry_at_us)
        if record.state == previous:
            return ()
        record.elsewhere, record.reason = True, reason
        return _changed(record, previous, reason, node)

    def restore(self, history: Iterable[Envelope], now_us: int) -> None:
        """Restore the states that an earlier run published. Its probes have ended, so a new probe may start."""
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

    # --- Helpers ---

    def _of(self, provider: str, model: str | None) -> list[Record]:
        keys = [(provider, None)] if model is None else [(provider, None), (provider, model)]
        return [self._records[key] for key in keys if key in self._records]

    def _record(self, provider: str, model: str | None, signal: Signal) -> Record | None:
        """The record that a signal changes. A new record is made only for signals of a failure."""
        record = self._records.get((provider, model))
        if record is None and signal in ("failure", "limited", "refused", "crashed"):
            record = self._records[provider, model] = Record(provider, model)
            self._bound()
        return record

    def _bound(self) -> None:
        while len(self._records) > MAX_RECORDS:
            del self._records[next(iter(self._records))]

    def _counted(self, record: Record, signal: Signal, now_us: int) -> Signal:
        """The signal after counting. Failures count by their number in a row, and a success doesn't end a
        requested pause.
        """
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
        record.elsewhere = record.elsewhere and record.state == "probing"
        if record.state != "probing":
            record.reason = reason
        return _changed(record, previous, reason)

    def _relieve(self, record: Record, previous: State, signal: Signal) -> None:
        """Reset the failures. A record that is available and has no failures is dropped."""
        record.retry_at_us, record.cool_down_us = None, FIRST_COOL_DOWN_US
        if signal in ("success", "reloaded") or previous == "probing":
            record.failures = 0
        if record.failures == 0:
            self._records.pop((record.provider, record.model), None)

    def _cool_down(self, record: Record, previous: State, signal: Signal, now_us: int) -> None:
        """Set the time until which an unavailable record is skipped."""
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


def _changed(record: Record, previous: State, reason: str, node: str | None = None) -> Changes:
    change = ProviderAvailabilityChanged(
        provider=record.provider,
        model=record.model,
        previous=previous,
        current=record.state,
        reason=reason,
        retry_at_us=record.retry_at_us,
        node=node,
    )
    return (change,)


_REASONS = {
    "AuthError": "key refused",
    "QuotaExceededError": "quota exhausted",
    "AccessDeniedError": "access denied",
    "NotFoundError": "model not found",
}


def _reason(event: LlmCallFailed) -> str:
    return _REASONS.get(event.error_type) or f"{event.error_class}: {event.error_type}"


def readiness_of_key(
    readiness: Readiness, adapter: ProviderAdapter, key: str | None, wire_model: str, now_us: int
) -> Readiness:
    """The availability of a model for a call with a key."""
    keys = getattr(adapter, "keys", None)
    if not isinstance(keys, Keyring):  # an adapter without a key
        if key is not None:
            raise ConfigurationError(f"{adapter.name!r} has no key {key!r}: it has no named keys")
        return readiness
    if key is None and keys.unnamed is not None:
        return readiness
    keys.check(key)
    cooldown = keys.cooldown(key, wire_model, now_us)
    if cooldown is None or readiness.kind == "closed":
        return readiness
    wait = max(cooldown.until_us - now_us, 0) / 1e6
    return Readiness("closed" if cooldown.weight == "refused" else "later", cooldown.in_words(), wait)


# --- Adapters that crash ---


async def report_crashes(
    table: AvailabilityTable,
    stopped: Subscription,
    bus: Bus,
    clock: Clock,
    provider_of: Callable[[str], str | None],
) -> None:
    """Report adapters that crashed too often to the table. Calls report their starts and ends directly.

    `stopped` has the events ``actor.stopped``. `provider_of` returns the provider that an actor serves.
    """
    async for envelope in stopped:
        match envelope.data:
            case ActorStopped(actor=actor, reason="restart limit"):
                if (provider := provider_of(actor)) is not None:
                    for change in table.crashed(provider, clock.now_us()):
                        bus.publish(change)
