"""A bus with the events of engines in other processes.

    async with RemoteBus("nats://bus.example", store="postgresql://…") as bus:
        async with bus.subscribe("llm.*") as events:
            async for envelope in events:
                ...

Subscriptions have the same patterns and policies as on an engine's own bus, and receive the same envelopes. Each
run's events are in order. There is no order across runs. Events that the broker has lost or dropped are read from
the shared store.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

import anyio

from callboard.bus import SYSTEM_CLOCK, Bus, Clock, ConfigurationError, ReplayBus, StoreError
from callboard.bus.clock import to_us
from callboard.tracestore import Store

from ..runtime.runtime import Runtime
from ..stores import StoreAddress, store_to_read
from .bridge import BridgeStatistics, EventBridge
from .broker import Broker
from .broker_streams import BrokerEvents
from .remote_source import RemoteEvents, RemoteStatistics

CONNECT_SECONDS = 3.0
"""Seconds to wait for the broker at the start."""


class RemoteBus(ReplayBus):
    """The events of all engines of a cluster, from now on or from an earlier time. Use it once, on asyncio.

    A slow lossless reader delays other readers, as in a replay (see `bus.replay`). The number of waiting
    events is limited. While the broker is unreachable, events are read from the store, some seconds late. Messages
    have content only if the cluster sends it, and never if they are read from the store.

    Args:
        nats_url: The address of the broker, or several with commas between them.
        store: The address of the shared store, or a store. Without a store, a gap can't be filled: it is skipped
            and counted in `remote_statistics`.
        cluster: The name of the cluster.
        since: The time of the first event, in microseconds since the epoch or as an aware datetime; None means
            now. With a time and a store, no event is delivered before the store can be reached.
        patience: Seconds to wait for an announced event that is not in the store. Later events of its run wait,
            too. After that time, the gap is skipped and counted. None waits without limit; `remote_statistics` and
            the log report the wait.
        sweep_seconds: Seconds between queries of the store for events that the broker didn't send, such as the
            last events of a process that died.
        clock: The clock.

    Raises:
        ConfigurationError: The address of the store can't be read.
    """

    def __init__(
        self,
        nats_url: str,
        *,
        store: Store | str | None = None,
        cluster: str = "callboard",
        since: int | datetime | None = None,
        patience: float | None = None,
        sweep_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._broker = Broker(nats_url, f"{socket.gethostname()}:{os.getpid()} reader")
        self._own_store = store_to_read(StoreAddress(store)) if isinstance(store, str) else None
        shared = self._own_store if isinstance(store, str) else store
        self._events = RemoteEvents(
            BrokerEvents(self._broker, cluster),
            shared,
            clock,
            since=None if since is None else to_us(since),
            patience=math.inf if patience is None else patience,
            sweep_seconds=sweep_seconds,
        )
        super().__init__(self._events, speed=None, longest_pause=None, clock=clock)
        self.run_id = "remote"
        self._now_ns = clock.monotonic_ns

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._broker.connected

    def remote_statistics(self) -> RemoteStatistics:
        """A snapshot of the runs that are followed."""
        return self._events.statistics()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self._begin()
        except BaseException as error:  # otherwise the parts that have started would never be stopped
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _begin(self) -> None:
        assert self._group is not None
        connected = anyio.Event()
        self._broker.on_reconnect(connected.set)
        self._group.start_soon(self._broker.run)
        with anyio.move_on_after(CONNECT_SECONDS):
            await connected.wait()
        await self._events.begin()
        self._group.start_soon(self._events.pump)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            with anyio.CancelScope(shield=True):
                await self._broker.close()
                if self._own_store is not None:
                    await self._own_store.close()


LAST_SECONDS = 2.0
"""Seconds for sending the remaining events at the end."""


class BridgedEngine(Protocol):
    """The parts of an `Engine` that a bridge uses."""

    _runtime: Runtime

    @property
    def bus(self) -> Bus:
        """The bus with the events to send."""
        ...

    @property
    def store(self) -> Store | None:
        """The trace to which the events are committed."""
        ...

    async def flush(self) -> None:
        """Wait until all events are committed. Raises StoreError."""
        ...


class Bridge:
    """A context manager that sends the events of one engine to a broker.

    Events are sent after they were committed to the engine's trace, including events from before the context. If
    the broker is unreachable, no event is lost: they are sent after the reconnection. Events that were not sent
    before the end are in the shared store.

    Args:
        engine: The engine. The bridge starts it if needed.
        nats_url: The address of the broker, or several with commas between them.
        cluster: The name under which readers find the events.
        content: Whether message content is sent with them.

    Raises:
        ConfigurationError: The engine has no trace, or is in a cluster that already has a bridge.
    """

    def __init__(
        self, engine: BridgedEngine, nats_url: str, *, cluster: str = "callboard", content: bool = False
    ) -> None:
        if engine.store is None:
            raise ConfigurationError("events are sent after they are committed, and this engine keeps no trace")
        if engine._runtime.cluster.sends_events:
            raise ConfigurationError("an engine in a cluster with nats= sends its events automatically")
        self._engine = engine
        self._broker = Broker(nats_url, f"{socket.gethostname()}:{os.getpid()}")
        events = BrokerEvents(self._broker, cluster)
        self._bridge = EventBridge(engine.bus.run_id, engine.store, events, content=content, behind=True)
        self._broker.on_reconnect(self._bridge.connected)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._broker.connected

    def statistics(self) -> BridgeStatistics:
        """A snapshot of the bridge."""
        return self._bridge.statistics()

    async def __aenter__(self) -> Self:
        await self._engine._runtime.host.watch_commits(self._bridge.committed)
        self._tasks = [asyncio.create_task(part.run()) for part in (self._broker, self._bridge)]
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
