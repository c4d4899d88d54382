"""One probe for the whole cluster.

A node asks for a lease before a call of its own finds out whether a provider is back. While another node has it,
calls that have a choice go elsewhere.

Only a call that is about to probe asks. If the store can't be asked, each node probes by itself.
"""

from __future__ import annotations

import anyio

from callboard.bus import Bus, Clock, Log, Lossless, ProviderAvailabilityChanged, StoreError
from callboard.tracestore.nodes import ProbeTables

from ...routing.availability import AvailabilityTable, RecordKey

_log = Log("engine.node")

LEASE_SECONDS = 10.0
"""The length of a lease. It is taken for longer as long as the probe is under way."""

_RENEW_SECONDS = 3.0
_BEGINS_SECONDS = 1.0  # within which a call that may probe has begun
_LOOK_SECONDS = 0.005


class ProbeLeases:
    """The part of a node. See `engine.nodes.part`.

    Args:
        node: This node.
        tables: The shared rows.
        table: The availability of providers here.
        bus: The engine's bus.
        clock: The engine's clock.
    """

    name = "probes"

    def __init__(self, node: str, tables: ProbeTables, table: AvailabilityTable, bus: Bus, clock: Clock) -> None:
        self._node = node
        self._tables = tables
        self._table = table
        self._bus = bus
        self._clock = clock
        self._asking = anyio.Lock()
        self._held: dict[RecordKey, float] = {}  # when a call was told that it may probe, by the loop's time

    async def may_go(self, provider: str, model: str) -> bool:
        """Whether a call may go to a model, as far as other nodes are concerned.

        Returns:
            False if the availability of the model is another one by now, so that it is to be chosen anew.
        """
        if not self._half_open(provider, model):
            return True
        async with self._asking:
            await self._begun(provider, model)
            keys = self._half_open(provider, model)
            return bool(keys) and await self._take(keys)

    async def run(self) -> None:
        """Let go of leases whose probes have ended, and keep the others, until cancelled."""
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

    async def drain(self) -> None:
        """Nothing waits."""

    async def close(self) -> None:
        """Let go of all leases."""
        for provider, model in tuple(self._held):
            await self._release((provider, model))

    # -- How

    def _half_open(self, provider: str, model: str) -> list[RecordKey]:
        return self._table.half_open(provider, model, self._clock.now_us())

    async def _begun(self, provider: str, model: str) -> None:
        """Wait until a call of this node that may probe has begun to."""
        for _ in range(round(_BEGINS_SECONDS / _LOOK_SECONDS)):
            if not any(self._is_to_begin(key) for key in self._half_open(provider, model)):
                return
            await anyio.sleep(_LOOK_SECONDS)

    def _is_to_begin(self, key: RecordKey) -> bool:
        told = self._held.get(key)
        return told is not None and anyio.current_time() - told < _BEGINS_SECONDS

    async def _take(self, keys: list[RecordKey]) -> bool:
        taken: list[RecordKey] = []
        for provider, model in keys:
            try:
                seconds = await self._tables.take(self._node, provider, model or "", LEASE_SECONDS)
            except StoreError as error:
                _log.warning("probe_without_lease", provider=provider, error=str(error))
                seconds = 0.0
            if seconds > 0:
                self._table.leave_to_other(provider, model, self._clock.now_us() + round(seconds * 1e6))
                for key in taken:
                    await self._release(key)
                return False
            taken.append((provider, model))
            self._held[provider, model] = anyio.current_time()
        return True

    async def _tend(self) -> None:
        for key in tuple(self._held):
            provider, model = key
            if self._table.is_probing(key):
                await self._tables.take(self._node, provider, model or "", LEASE_SECONDS)
            elif not self._is_to_begin(key) or not self._table.is_half_open(key, self._clock.now_us()):
                await self._release(key)

    async def _release(self, key: RecordKey) -> None:
        provider, model = key
        self._held.pop(key, None)
        try:
            await self._tables.release(self._node, provider, model or "")
        except StoreError as error:
            _log.debug("probe_not_released", provider=provider, error=str(error))
