"""A bridge of its own, for an engine that is in no cluster.

    async with Engine() as engine, Bridge(engine, "nats://bus.example"):
        ...

In a cluster with a broker every engine has one already.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

import anyio

from callboard.bus import Bus, ConfigurationError, StoreError
from callboard.tracestore import Store

from ..runtime.runtime import Runtime
from .bridge import BridgeStatistics, EventBridge
from .broker import Broker
from .broker_streams import KeptEvents

LAST_SECONDS = 2.0
"""The time in which the rest goes out at the end."""


class BridgedEngine(Protocol):
    """The parts of an `Engine` that a bridge uses."""

    _runtime: Runtime

    @property
    def bus(self) -> Bus:
        """The bus with the events to send."""
        ...

    @property
    def store(self) -> Store | None:
        """The trace that they are committed to."""
        ...

    async def flush(self) -> None:
        """Wait until all of them are committed. Raises StoreError."""
        ...


class Bridge:
    """A bridge from one engine to a broker, as long as the context lasts.

    Events are sent after they were committed to the engine's trace, with those before the bridge. An unreachable
    broker costs time but no events: it gets them when it is back. Readers find events that were not sent at the
    end in the shared store.

    Args:
        engine: The engine, which starts with the bridge if it hasn't yet.
        nats_url: The address of the broker, or several with commas between them.
        cluster: The name under which readers find the events.
        content: Whether message content is sent with them.

    Raises:
        ConfigurationError: The engine keeps no trace, or is in a cluster that has a bridge.
    """

    def __init__(
        self, engine: BridgedEngine, nats_url: str, *, cluster: str = "callboard", content: bool = False
    ) -> None:
        if engine.store is None:
            raise ConfigurationError("events go out after they were committed, and this engine keeps no trace")
        if engine._runtime.node is not None and engine._runtime.node.bridge is not None:
            raise ConfigurationError("an engine of a cluster with nats= sends its events by itself")
        self._engine = engine
        self._broker = Broker(nats_url, f"{socket.gethostname()}:{os.getpid()}")
        events = KeptEvents(self._broker, cluster)
        self._bridge = EventBridge(engine.bus.run_id, engine.store, events, content=content, behind=True)
        self._broker.on_reconnect(self._bridge.connected)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._broker.connected

    def statistics(self) -> BridgeStatistics:
        """A snapshot."""
        return self._bridge.statistics()

    async def __aenter__(self) -> Self:
        await self._engine._runtime.host.watch_commits(self._bridge.committed)
        self._tasks = [asyncio.create_task(part.run(), name=part.name) for part in (self._broker, self._bridge)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            with suppress(StoreError):
                await self._engine.flush()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with anyio.move_on_after(LAST_SECONDS):
                await self._bridge.drain()
            await self._broker.close()
