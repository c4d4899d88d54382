"""The availability of providers in a cluster: shared observations, and one probe at a time."""

from __future__ import annotations

import anyio
import msgspec

from callboard.bus import Bus, Clock, Log, Lossless, ProviderAvailabilityChanged, StoreError
from callboard.tracestore.nodes import ProbeTables

from ..routing.availability import AvailabilityTable, RecordKey
from .broker import Broker

_log = Log("engine.node")

# --- Observed availability ---

REPEAT_SECONDS = 5.0
"""Seconds after which the availability of a provider that is not available is published again."""

_KNOWN_HERE_ONLY = ("network", "adapter_crashed", "key refused")


class Found(msgspec.Struct, frozen=True):
    """A change of availability that one node observed, as sent to other nodes."""

    node: str
    """The node's id, which is the run id of its engine."""
    provider: str
    """The adapter's name."""
    model: str | None
    """The model, ``provider:name``; None for the provider as a whole."""
    state: str
    """``available``, ``degraded`` or ``unavailable``."""
    reason: str
    seconds: float | None
    """Seconds until the next try is allowed; None if no time is set."""


class SharedAvailability:
    """Shares the availability of providers with other nodes."""

    def __init__(
        self, node: str, cluster: str, broker: Broker, table: AvailabilityTable, bus: Bus, clock: Clock
    ) -> None:
        self._node = node
        self._subject = f"callboard.{cluster}.availability"
        self._broker = broker
        self._table = table
        self._bus = bus
        self._clock = clock
        self._open: dict[RecordKey, ProviderAvailabilityChanged] = {}
        broker.listen(self._subject, self.receive)

    async def run(self) -> None:
        topic = ProviderAvailabilityChanged.topic_of()
        with self._bus.subscribe(topic, policy=Lossless(), name="shared availability") as changes:
            while True:
                with anyio.move_on_after(REPEAT_SECONDS):
                    await changes.wait()
                for envelope in changes.take():
                    assert isinstance(envelope.data, ProviderAvailabilityChanged)
                    self._changed(envelope.data)
                for change in self._open.values():
                    self._publish(change)

    def receive(self, _subject: str, payload: bytes, _reply: str) -> None:
        found = msgspec.json.decode(payload, type=Found)
        if found.node == self._node:
            return
        now_us = self._clock.now_us()
        retry_at_us = None if found.seconds is None else now_us + round(found.seconds * 1e6)
        for change in self._table.found_elsewhere(
            found.provider, found.model, found.state, found.reason, retry_at_us, now_us, found.node
        ):
            self._bus.publish(change)

    def _changed(self, change: ProviderAvailabilityChanged) -> None:
        key = change.provider, change.model
        if change.node is not None or change.current == "probing":
            return
        if change.current == "available":
            if self._open.pop(key, None) is not None:
                self._publish(change)
        elif not change.reason.startswith(_KNOWN_HERE_ONLY):
            self._open[key] = change

    def _publish(self, change: ProviderAvailabilityChanged) -> None:
        seconds = None
        if change.retry_at_us is not None:
            seconds = (change.retry_at_us - self._clock.now_us()) / 1e6
            if seconds <= 0:
                return
        found = Found(self._node, change.provider, change.model, change.current, change.reason, seconds)
        self._broker.publish(self._subject, msgspec.json.encode(found))


# --- One probe per cluster ---


LEASE_SECONDS = 10.0
"""The length of a lease in seconds. It is renewed while the probe is in progress."""

_RENEW_SECONDS = 3.0
_BEGINS_SECONDS = 1.0  # seconds within which a call must start after it was allowed to probe
_LOOK_SECONDS = 0.005


class ProbeLeases:
    """Lets only one node at a time probe a provider."""

    def __init__(self, node: str, tables: ProbeTables, table: AvailabilityTable, bus: Bus, clock: Clock) -> None:
        self._node = node
        self._tables = tables
        self._table = table
        self._bus = bus
        self._clock = clock
        self._asking = anyio.Lock()
        self._probe_started: dict[RecordKey, float] = {}  # the event loop's time when a call was allowed to probe

    async def may_go(self, provider: str, model: str) -> bool:
        """Whether this node may probe an unavailable model. False while another node probes the model."""
        if not self._half_open(provider, model):
            return True
        async with self._asking:
            for _ in range(round(_BEGINS_SECONDS / _LOOK_SECONDS)):
                if not any(self._is_to_begin(key) for key in self._half_open(provider, model)):
                    break
                await anyio.sleep(_LOOK_SECONDS)  # until a call of this node has started its allowed probe
            keys = self._half_open(provider, model)
            return bool(keys) and await self._take(keys)

    async def run(self) -> None:
        """Release the leases of ended probes, and renew the others, until cancelled."""
        topic = ProviderAvailabilityChanged.topic_of()
        with self._bus.subscribe(topic, policy=Lossless(), name="probes") as changes:
            while True:
                with anyio.move_on_after(_RENEW_SECONDS):
                    await changes.wait()
                changes.take()
                try:
                    await self._tend()
                except StoreError as error:
                    _log.debug("probes_not_tended", error=str(error))
                await anyio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        for provider, model in tuple(self._probe_started):
            await self._release((provider, model))

    # --- Helpers ---

    def _half_open(self, provider: str, model: str) -> list[RecordKey]:
        return self._table.half_open(provider, model, self._clock.now_us())

    def _is_to_begin(self, key: RecordKey) -> bool:
        held_since = self._probe_started.get(key)
        return held_since is not None and anyio.current_time() - held_since < _BEGINS_SECONDS

    async def _take(self, keys: list[RecordKey]) -> bool:
        records: list[RecordKey] = []
        for provider, model in keys:
            try:
                seconds = await self._tables.take(self._node, provider, model or "", LEASE_SECONDS)
            except StoreError as error:
                _log.warning("probe_without_lease", provider=provider, error=str(error))
                seconds = 0.0
            if seconds > 0:
                self._table.leave_to_other(provider, model, self._clock.now_us() + round(seconds * 1e6))
                for key in records:
                    await self._release(key)
                return False
            records.append((provider, model))
            self._probe_started[provider, model] = anyio.current_time()
        return True

    async def _tend(self) -> None:
        for key in tuple(self._probe_started):
            provider, model = key
            if self._table.is_probing(key):
                await self._tables.take(self._node, provider, model or "", LEASE_SECONDS)
            elif not self._is_to_begin(key) or not self._table.is_half_open(key, self._clock.now_us()):
                await self._release(key)

    async def _release(self, key: RecordKey) -> None:
        provider, model = key
        self._probe_started.pop(key, None)
        try:
            await self._tables.release(self._node, provider, model or "")
        except StoreError as error:
            _log.debug("probe_not_released", provider=provider, error=str(error))
