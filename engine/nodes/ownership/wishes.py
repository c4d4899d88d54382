"""Word between nodes that a session is waited for, so that its owner need not look for it."""

from __future__ import annotations

import anyio

from ..frames.exchange import Subjects
from ..nats.broker import Broker
from .ownership import Ownership


class Wishes:
    """The part of a node that sends and hears such words. One that gets lost costs a second: owners look, too.

    Args:
        broker: The broker.
        subjects: The cluster's subjects.
        ownership: The node's ownership.
    """

    name = "wishes"

    def __init__(self, broker: Broker, subjects: Subjects, ownership: Ownership) -> None:
        self._broker = broker
        self._subjects = subjects
        self._ownership = ownership
        ownership.tell = self._tell

    def _tell(self, node: str) -> None:
        self._broker.publish(self._subjects.wanted(node), b"")

    def _heard(self, _subject: str, _payload: bytes, _reply: str) -> None:
        self._ownership.hurry()

    async def run(self) -> None:
        """Hear until cancelled."""
        own = self._subjects.wanted(self._ownership.info.node)
        subscription = await self._broker.subscribe(own, self._heard)
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await subscription.unsubscribe()

    async def drain(self) -> None:
        """Nothing is left over."""

    async def close(self) -> None:
        """Nothing is held."""
