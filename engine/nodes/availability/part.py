"""What one node has found of a provider's availability, told to the others over the broker.

A provider that one node leaves alone is left alone by all, until the latest time that any of them has said. What
only one host can know isn't told: that its network fails, its adapter crashes, or its key is refused. Times go out
as seconds from now, since the clocks of hosts differ. What is open is told again every few seconds, for nodes that
come later and for messages that are lost. A node that has found a provider available again lets the others try it
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec

from callboard.bus import Bus, Clock, Log, Lossless, ProviderAvailabilityChanged

from ...routing.availability import AvailabilityTable

_log = Log("engine.node")

REPEAT_SECONDS = 5.0
"""Seconds after which what is open is told again."""

_KNOWN_HERE_ONLY = ("network", "adapter_crashed", "key refused")


class Found(msgspec.Struct, frozen=True):
    """What a node has found, as it goes to the others."""

    node: str
    """The node: the run of its engine."""
    provider: str
    """The adapter's name."""
    model: str | None
    """The model, ``provider:name``; None for the provider as a whole."""
    state: str
    """``available``, ``degraded`` or ``unavailable``."""
    reason: str
    """The reason, in words."""
    seconds: float | None
    """Seconds until it may be tried again; None where there is no such time."""


class MessageBroker(Protocol):
    """What is needed of the broker."""

    def publish(self, subject: str, payload: bytes, /) -> bool:
        """Send a message without waiting."""
        ...

    async def subscribe(self, subject: str, receive: Callable[[str, bytes, str], None], /) -> object:
        """Take in messages of a subject."""
        ...


class SharedAvailability:
    """The part of a node. See `engine.nodes.part`.

    Args:
        node: This node.
        cluster: The cluster's name.
        broker: The broker.
        table: The availability of providers here.
        bus: The engine's bus.
        clock: The engine's clock.
    """

    name = "availability"

    def __init__(
        self, node: str, cluster: str, broker: MessageBroker, table: AvailabilityTable, bus: Bus, clock: Clock
    ) -> None:
        self._node = node
        self._subject = f"callboard.{cluster}.availability"
        self._broker = broker
        self._table = table
        self._bus = bus
        self._clock = clock
        self._open: dict[tuple[str, str | None], ProviderAvailabilityChanged] = {}
        self._listens = False

    async def run(self) -> None:
        """Tell and be told, until cancelled."""
        if not self._listens:
            await self._broker.subscribe(self._subject, self.receive)
            self._listens = True
        topic = ProviderAvailabilityChanged.topic_of()
        with self._bus.subscribe(topic, policy=Lossless(), name="shared availability") as changes:
            while True:
                with anyio.move_on_after(REPEAT_SECONDS):
                    await changes.wait()
                for envelope in changes.take():
                    assert isinstance(envelope.data, ProviderAvailabilityChanged)
                    self._changed(envelope.data)
                for change in self._open.values():
                    self._tell(change)

    async def drain(self) -> None:
        """Nothing waits."""

    async def close(self) -> None:
        """Nothing is held."""

    def receive(self, _subject: str, payload: bytes, _reply: str) -> None:
        """Take in what another node has found."""
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
                self._tell(change)
        elif not change.reason.startswith(_KNOWN_HERE_ONLY):
            self._open[key] = change

    def _tell(self, change: ProviderAvailabilityChanged) -> None:
        seconds = None
        if change.retry_at_us is not None:
            seconds = (change.retry_at_us - self._clock.now_us()) / 1e6
            if seconds <= 0:
                return
        found = Found(self._node, change.provider, change.model, change.current, change.reason, seconds)
        self._broker.publish(self._subject, msgspec.json.encode(found))
