"""The parts of an engine in a cluster, in the order in which they start.

`Runtime` creates the node, and `Life` starts and ends it:

    start    behind the trace writer and the shipper, before the turns: a supervisor "node" with one actor a part
    drain    when all turns are over and the trace is committed, its store still open
    close    last of all, when the trace is shipped: other nodes may take over all that the node held
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import anyio

from callboard.bus import Bus, Clock, Log, NodeBrokerChanged, StoreError, StreamChannel, Supervisor
from callboard.tracestore import PostgresStore, Store, WriterCore
from callboard.tracestore.nodes import NodeInfo
from callboard.tracestore.postgres.ledger import PostgresLedger
from callboard.tracestore.postgres.nodes import PostgresOwnership, PostgresProbes, SharedDatabase

from ..budgets.budget import Budget
from ..rate_limits.permit import LiveGate
from ..routing.availability import AvailabilityTable
from ..stores import server_store
from .availability import LearnedLimits, ProbeLeases, SharedAvailability
from .bridge import EventBridge
from .broker import Broker
from .broker_streams import KeptEvents, KeptFrames
from .budgets import BudgetSlices
from .cluster import Cluster, Part, child_of
from .frames.exchange import Subjects
from .frames.retained import NothingStored, StoredTurns
from .frames.sender import Frames
from .ownership import Ownership, TakeoverRequests
from .rate_limits import RateLimitShares

_log = Log("engine.node")

PART_SECONDS = 2.0
"""The time that each part has for each step of its end."""


class Node:
    """One engine of a cluster. It starts nothing and waits for nothing by itself.

    Args:
        cluster: The cluster.
        bus: The engine's bus.
        clock: The engine's clock.
        store: The engine's own trace; None without one.
        streams: The streams of the engine's turns.
        availability: The availability of providers here.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        bus: Bus,
        clock: Clock,
        store: Store | None,
        streams: StreamChannel,
        availability: AvailabilityTable,
    ) -> None:
        self.cluster = cluster
        self._clock = clock
        self.id = bus.run_id
        """The node's identity: a node is one run of an engine."""
        self.name = cluster.node or f"{socket.gethostname()}:{os.getpid()}"
        """The node's name, for people."""
        self.database = _shared_database(cluster, store)
        """The address and the schema of the shared database; None without one."""
        self.budgets: BudgetSlices | None = None
        """The node's slices of budgets; None without budgets, or without a shared database."""
        self.bridge: EventBridge | None = None
        """The way out of this node's events; None without a broker, or without a trace."""
        self.parts: Sequence[Part] = ()
        """In the order in which they start."""
        self.shared = None if self.database is None else SharedDatabase(*self.database, clock)
        """The shared database, for short transactions; None without one."""
        self.ownership = None if self.shared is None else self._ownership(self.shared, bus, clock)
        """The owners of sessions; None without a shared database."""
        self.probes: ProbeLeases | None = None
        """The leases of probes; None without a shared database."""
        if self.shared is not None and self.ownership is not None:
            probes = PostgresProbes(self.shared, cluster.name)
            self.probes = ProbeLeases(self.id, probes, availability, bus, clock)
            self.parts = [*self.parts, self.ownership, self.probes]
        self._trace = store if store is not None and server_store(store) is not None else self._other_trace()
        self._waited = False
        self.broker: Broker | None = None
        """The connection to the broker; None without one."""
        self.frames: Frames | None = None
        """The streams that are read on other nodes; None without a broker."""
        self.learned: LearnedLimits | None = None
        """The shared lessons about rate limits; None without a broker."""
        if cluster.nats is not None:
            self.broker = self._connection(cluster.nats, bus)
            self.frames = self._frames(self.broker, streams)
            shared = SharedAvailability(self.id, cluster.name, self.broker, availability, bus, clock)
            self.learned = LearnedLimits(self.id, cluster.name, self.broker)
            self.parts = [*self.parts, self.broker, self.frames, shared, self.learned]
            if self.ownership is not None:
                self.parts = [*self.parts, TakeoverRequests(self.broker, Subjects(cluster.name), self.ownership)]
            if store is not None:
                self.bridge = self._bridge(self.broker, store)
                self.parts = [*self.parts, self.bridge]

    async def delivered(self, turn_id: str, message_id: str) -> int:
        """The output tokens of a dead node's message that readers on other nodes have; 0 if unknown."""
        if self.frames is None or self.broker is None:
            return 0
        if not (self.broker.connected or self._waited):
            with anyio.move_on_after(PART_SECONDS):  # runs are ended while the node still starts
                await self.broker.reached()
            self._waited = True
        try:
            with anyio.move_on_after(PART_SECONDS):
                return await self.frames.delivered(turn_id, message_id)
        except OSError as error:
            _log.warning("delivered_output_unknown", message_id=message_id, error=str(error))
        return 0

    def follow(self, writer: WriterCore) -> None:
        """Have what the trace writer commits go out to other processes."""
        if self.bridge is not None:
            writer.watch_commits(self.bridge.committed)

    def share_budgets(self, budgets: Sequence[Budget], clock: Clock) -> BudgetSlices | None:
        """Replace the engine's budgets with those of the whole cluster.

        Returns:
            The node's slices of them; None without budgets, or without a shared database.
        """
        if self.shared is None or not budgets:
            return None
        tables = PostgresLedger(self.shared)
        self.budgets = BudgetSlices(tables, self.id, budgets, clock, self.cluster.without_store)
        self.parts = [*self.parts, self.budgets]
        return self.budgets

    def share_limits(self, bus: Bus, clock: Clock) -> Callable[[LiveGate], None] | None:
        """A function that shares a gate's declared limits with the cluster; None without a shared database."""
        if self.shared is None or self.ownership is None:
            return None
        shares = RateLimitShares(PostgresLedger(self.shared), self.id, bus, clock, self._living)
        self.parts = [*self.parts, shares]
        return shares.join

    async def _living(self) -> int:
        assert self.ownership is not None
        nodes = await self.ownership.tables.nodes()
        return sum(node.lives and node.cluster == self.cluster.name for node in nodes)

    async def shared_trace(self) -> Store:
        """The trace that the nodes share, to be read. It is the engine's own where that is on the server.

        Raises:
            StoreError: There is none, or it can't be used.
        """
        if self._trace is None:
            raise StoreError("this cluster has no shared store. Pass it as Cluster(store=...)")
        await self._trace.open()
        return self._trace

    async def delete_shared(self, session_id: str) -> bool:
        """Delete a session from the trace that the nodes share. Returns whether it was there.

        Raises:
            StoreError: It can't be written.
        """
        if self.database is None:
            return False
        dsn, schema = self.database
        async with PostgresStore(dsn, schema=schema, clock=self._clock) as store:
            return await store.delete_session(session_id)

    def epoch_of(self, session_id: str) -> int:
        """The epoch in which this node has a session; 0 if it doesn't, or without a shared database."""
        return 0 if self.ownership is None else self.ownership.holding.epoch_of(session_id)

    def _connection(self, url: str, bus: Bus) -> Broker:
        broker = Broker(url, self.name)

        def tell(connected: bool) -> None:
            current: Literal["connected", "away"] = "connected" if connected else "away"
            bus.publish(NodeBrokerChanged(broker=broker.addresses, current=current))

        broker.on_change(tell)
        return broker

    def _bridge(self, broker: Broker, store: Store) -> EventBridge:
        events = KeptEvents(broker, self.cluster.name)
        bridge = EventBridge(self.id, store, events, content=self.cluster.content)
        broker.on_reconnect(bridge.connected)
        return bridge

    def _other_trace(self) -> Store | None:
        if self.database is None:
            return None
        dsn, schema = self.database
        return PostgresStore.open_readonly(dsn, schema=schema)

    def _ownership(self, shared: SharedDatabase, bus: Bus, clock: Clock) -> Ownership:
        info = NodeInfo(
            node=self.id, cluster=self.cluster.name, name=self.name, lease_seconds=self.cluster.lease_seconds
        )
        return Ownership(PostgresOwnership(shared), info, bus, clock)

    def _frames(self, broker: Broker, streams: StreamChannel) -> Frames:
        kept = KeptFrames(broker, self.cluster.name, Subjects(self.cluster.name).kept)
        source = NothingStored() if self.ownership is None else StoredTurns(self.shared_trace, self.ownership)
        return Frames(self.cluster, self.id, kept, streams, self.epoch_of, source, self._clock.now_us)

    async def start(self, root: Supervisor) -> None:
        """Have all parts at work, below a supervisor of their own."""
        supervisor = await root.start_supervisor("node")
        for part in self.parts:
            await supervisor.start_child(child_of(part))

    async def drain(self) -> None:
        """Let everything out that other nodes are to have. It never raises."""
        for part in self.parts:
            await _in_time(part.name, part.drain)

    async def close(self, *, shared: bool) -> None:
        """Let go of everything, the last part first. It never raises.

        Args:
            shared: Whether all that this engine has in its trace is in the shared store, too.
        """
        if self.ownership is not None:
            self.ownership.shared = shared
        if self.budgets is not None:
            self.budgets.shared = shared
        for part in reversed(self.parts):
            await _in_time(part.name, part.close)
        if self.shared is not None:
            await _in_time("shared database", self.shared.close)
        if self._trace is not None:
            await _in_time("shared trace", self._trace.close)


async def _in_time(name: str, step: Callable[[], Awaitable[None]]) -> None:
    try:
        with anyio.fail_after(PART_SECONDS):
            await step()
    except Exception as error:
        _log.warning("part_not_ended", part=name, error=f"{type(error).__name__}: {error}")


def _shared_database(cluster: Cluster, store: Store | None) -> tuple[str, str] | None:
    own = server_store(store) if store is not None else None
    if own is not None:
        return own.dsn, own.schema
    return None if cluster.store is None else (cluster.store, "callboard")
