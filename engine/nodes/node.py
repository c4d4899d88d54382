"""The configuration of a cluster, and the engine's node in the cluster.

All nodes have the same configuration. `Runtime` joins the cluster, and `Life` starts and ends the node:

    start    after the trace writer and the shipper, before the turns: a supervisor "node" with one actor for each
             part
    drain    when all turns have ended and the trace is committed, with its store still open
    close    last, when the trace is shipped: other nodes may then take over the node's sessions
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal

import anyio
import msgspec

from callboard.bus import (
    Bus,
    ChildSpec,
    Clock,
    ConfigurationError,
    Log,
    NodeBrokerChanged,
    StoreError,
    StreamChannel,
    Supervisor,
)
from callboard.bus.actor import WorkActor
from callboard.tracestore import PostgresStore, Store, WriterCore
from callboard.tracestore.gateway import GatewayTables
from callboard.tracestore.nodes import NodeInfo
from callboard.tracestore.postgres.ledger import PostgresLedger
from callboard.tracestore.postgres.nodes import PostgresOwnership, PostgresProbes, SharedDatabase
from callboard.tracestore.reports import Check

from ..budgets.budget import Budget
from ..routing.availability import AvailabilityTable
from ..routing.rate_limits import AsyncRateLimiter, RateLimits
from ..runtime.adapters import Host
from ..runtime.alone import Alone, OwnershipStatistics
from ..sessions.open import OpenSessions
from ..stores import StoreAddress, is_address, server_store
from ..tree import Caller
from .availability import ProbeLeases, SharedAvailability
from .bridge import EventBridge
from .broker import Broker, check_broker, megabytes
from .broker_streams import BrokerEvents, BrokerFrames
from .budgets import BudgetSlices
from .frame_sender import Frames
from .frames import Subjects
from .ownership import Ownership
from .rate_limits import LearnedLimits, RateLimitShares
from .retained_turns import answer_of_store
from .takeover import SharedSessions
from .trees import RemoteTrees

_log = Log("engine.node")

PART_SECONDS = 2.0
"""Seconds for each part and each step of the node's end."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The pattern for a cluster's name, which is a part of subjects."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of an engine: `Engine(cluster=Cluster(nats="nats://…", store="postgresql://…"))`.

    In a cluster, each session has one owner at a time and can be resumed on any node. If only `nats` is set, only
    events and streams are shared. If only `store` is set, only the store is shared.

    Raises:
        ConfigurationError: A value is invalid.
    """

    nats: str | None = None
    """The address of the broker, such as ``nats://HOST:PORT``, or several addresses with commas between them."""
    store: str | None = None
    """The address of the shared trace, such as ``postgresql://USER@HOST/DATABASE``.

    If the engine's trace is a file, it is shipped there. None uses the engine's own PostgreSQL store.
    """
    name: str = "callboard"
    """The cluster's name: letters, digits, ``-`` and ``_``. Clusters with different names may share a broker."""
    node: str | None = None
    """The node's name, for people; None uses the host's name and the process id."""
    content: bool = False
    """Whether events sent over the broker contain message content."""
    lease_seconds: float = 15.0
    """Seconds after the last renewal for which a node is treated as alive.

    During this time its sessions are not taken over.
    """
    frame_seconds: float = 0.025
    """The maximum number of seconds until new content of a stream is sent to other nodes."""
    frame_bytes: int = 4096
    """The number of bytes after which new content is sent immediately."""
    without_store: Literal["refuse", "admit"] = "refuse"
    """Whether calls under a budget or a limit are admitted while the shared store can't be reached."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for invalid settings."""
        if self.nats is None and self.store is None:
            raise ConfigurationError("a cluster needs nats=, store=, or both")
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"the name of a cluster may have only letters, digits, - and _, not {self.name!r}"
            )
        if self.store is not None and not is_address(self.store):
            raise ConfigurationError(
                "the store of a cluster must be the address of a database, as postgresql://USER@HOST/NAME"
            )
        if self.store is not None:
            StoreAddress(self.store)
        if min(self.lease_seconds, self.frame_seconds, self.frame_bytes) <= 0:
            raise ConfigurationError("lease_seconds, frame_seconds and frame_bytes of a cluster must be positive")

    def join(
        self,
        *,
        bus: Bus,
        clock: Clock,
        store: Store | None,
        streams: StreamChannel,
        availability: AvailabilityTable,
    ) -> Node:
        """Make an engine with these parts a node of the cluster."""
        return Node(self, bus=bus, clock=clock, store=store, streams=streams, availability=availability)

    def ships_to(self, ship_to: str | None, *, from_file: bool) -> str | None:
        """The address to which the engine's trace is shipped, by the host's setting and the kind of trace."""
        if ship_to is not None and self.store is not None and ship_to != self.store:
            raise ConfigurationError("a cluster ships the trace to its store. Leave out ship_to")
        return self.store if ship_to is None and from_file else ship_to


async def _nothing() -> None:
    pass


class Part(msgspec.Struct, frozen=True):
    """A task of a node. It runs as long as the engine, and ends in two steps.

    A part doesn't fail if a server is unreachable. It reports that on the bus, and continues when the server is
    reachable again.
    """

    name: str
    """The part's name in the supervision tree."""
    run: Callable[[], Awaitable[None]]
    """Works until cancelled. After an exception, it may be called again."""
    drain: Callable[[], Awaitable[None]] = _nothing
    """Sends the remaining data. All turns have ended, the trace is committed, and its store is still open."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Releases all resources. The trace has been shipped. It is called once, even if `run` was never called."""


# --- Checks ---


def _streams(frames: Frames) -> Check:
    """Report the streams that are sent and read on this node. Frames that could not be sent are sent again."""
    found = frames.sender.statistics()
    detail = f"{found.open} open, {found.frames} frames sent ({megabytes(found.bytes)})"
    if found.lost:
        detail += f", {found.lost} messages not sent while the broker was unreachable"
    return Check("node:streams", True, f"{detail}; {len(frames.mirrors)} of other nodes read here")


def _outgoing(node: Node) -> Check:
    assert node.bridge is not None
    found = node.bridge.statistics()
    if found.failures:
        fix = "They are in the trace. The engine sends them when the broker accepts events again."
        detail = f"the broker rejected events after number {found.sent}, {found.failures} times in a row"
        return Check("node:events", False, detail, fix)
    waits = found.committed - found.sent
    behind = ", read from the trace because memory is full" if found.is_behind else ""
    waiting = f", up to {waits} wait{behind}" if waits > 0 else ""
    return Check("node:events", True, f"{found.sent} sent{waiting}")


async def _others(ownership: Ownership) -> Check:
    try:
        found = await ownership.tables.nodes()
    except StoreError as error:
        return Check("node:others", False, str(error), "Restore the connection to the shared store.")
    others = [row for row in found if row.lives and row.node != ownership.info.node]
    names = (f"{row.name} ({row.sessions} sessions, {row.seconds_left:.0f} s)" for row in others)
    return Check("node:others", True, ", ".join(names) or "no other node is alive")


def _lease(node: Node) -> Check:
    assert node.ownership is not None
    found = node.ownership.statistics()
    owns = f"{found.name} owns {found.sessions} sessions"
    if found.lives:
        return Check("node:lease", True, f"{owns}, for {found.seconds_left:.1f} s at least")
    if not found.sessions:
        return Check("node:lease", True, owns)
    return Check(
        "node:lease",
        False,
        f"{owns}, but its lease has expired",
        "Restore the connection to the shared store. Until then, turns of sessions are refused and other "
        "nodes may take over the sessions. Calls without a session continue.",
    )


# --- The node ---


class Node(Alone):
    """The node of an engine in a cluster. Creating it starts nothing."""

    in_cluster = True

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
        """The node's id: the run id of its engine."""
        self.name = cluster.node or f"{socket.gethostname()}:{os.getpid()}"
        self.database = _shared_database(cluster, store)
        """The address and the schema of the shared database; None without one."""
        self.budgets: BudgetSlices | None = None
        self.bridge: EventBridge | None = None
        """The bridge that sends this node's events; None without a broker, or without a trace."""
        self.parts: list[Part] = []
        """The parts, in the order in which they start."""
        self.shared = None if self.database is None else SharedDatabase(*self.database, clock)
        self.ownership: Ownership | None = None
        self.probes: ProbeLeases | None = None
        if self.shared is not None:
            seconds = cluster.lease_seconds
            info = NodeInfo(node=self.id, cluster=cluster.name, name=self.name, lease_seconds=seconds)
            self.ownership = Ownership(PostgresOwnership(self.shared), info, bus, clock)
            probes = PostgresProbes(self.shared, cluster.name)
            self.probes = ProbeLeases(self.id, probes, availability, bus, clock)
            self.parts.append(Part("ownership", self.ownership.run, close=self.ownership.close))
            self.parts.append(Part("probes", self.probes.run, close=self.probes.close))
        self._trace: Store | None = None
        if store is not None and server_store(store) is not None:
            self._trace = store
        elif self.database is not None:
            self._trace = PostgresStore.open_readonly(self.database[0], schema=self.database[1])
        self._waited = False
        self.broker: Broker | None = None
        self.frames: Frames | None = None
        """The streams that are read on other nodes; None without a broker."""
        self.learned: LearnedLimits | None = None
        self.trees: RemoteTrees | None = None
        if cluster.nats is not None:
            broker = self.broker = self._connection(cluster.nats, bus)
            self.frames = self.streams = self._frames(broker, streams)
            shared = SharedAvailability(self.id, cluster.name, broker, availability, bus, clock)
            self.learned = LearnedLimits(self.id, cluster.name, broker)
            self.trees = RemoteTrees(self.id, cluster.name, broker)
            self.parts += [
                Part("broker", broker.run, broker.drain, broker.close),
                Part("frames", self.frames.run, self.frames.drain, self.frames.close),
                Part("availability", shared.run),
                Part("learned limits", self.learned.run),
            ]
            if self.ownership is not None:
                self.ownership.notify_over(broker, Subjects(cluster.name))
            if store is not None:
                events = BrokerEvents(broker, cluster.name)
                self.bridge = EventBridge(self.id, store, events, content=cluster.content)
                broker.on_reconnect(self.bridge.connected)
                self.sends_events = True
                self.parts.append(Part("bridge", self.bridge.run, self.bridge.drain))

    async def delivered(self, turn_id: str, message_id: str) -> int:
        if self.frames is None or self.broker is None:
            return 0
        if not (self.broker.connected or self._waited):
            with anyio.move_on_after(PART_SECONDS):  # lost runs are handled while the node is still starting
                await self.broker.reached()
            self._waited = True
        try:
            with anyio.move_on_after(PART_SECONDS):
                return await self.frames.delivered(turn_id, message_id)
        except OSError as error:
            _log.warning("delivered_output_unknown", message_id=message_id, error=str(error))
        return 0

    def follow(self, writer: WriterCore) -> None:
        if self.bridge is not None:
            writer.watch_commits(self.bridge.committed)

    def share_budgets(self, budgets: Sequence[Budget], clock: Clock) -> BudgetSlices | None:
        """The node's slices of the engine's budgets, which apply to the whole cluster; None without a shared
        database.
        """
        if self.shared is None:
            return None
        tables = PostgresLedger(self.shared)
        self.budgets = BudgetSlices(tables, self.id, budgets, clock, self.cluster.without_store)
        self.parts.append(Part("shared budgets", self.budgets.run, close=self.budgets.close))
        return self.budgets

    def rate_limits(self, bus: Bus, clock: Clock) -> RateLimits:
        """The rate limits of the engine's adapters. Declared and learned limits are shared with all nodes."""
        share: Callable[[AsyncRateLimiter], None] | None = None
        if self.shared is not None:
            shares = RateLimitShares(PostgresLedger(self.shared), self.id, bus, clock, self._live_nodes)
            self.parts.append(Part("shared rate limits", shares.run))
            share = shares.join
        limits = RateLimits(share)
        if self.learned is not None:
            self.learned.share(limits)
        return limits

    @property
    def may_go(self) -> Callable[[str, str], Awaitable[bool]] | None:
        return None if self.probes is None else self.probes.may_go

    def open_sessions(self, bus: Bus, store: Store | None, host: Host, *, captures: bool) -> OpenSessions:
        """The open sessions of the engine. With a shared database, each session has one owner in the cluster."""
        if self.ownership is None:
            return super().open_sessions(bus, store, host, captures=captures)
        return SharedSessions(
            *(bus, store, host),
            captures=captures,
            ownership=self.ownership,
            shared_trace=self.shared_trace,
            delete_shared=self.delete_shared,
            frames=self.frames,
        )

    def gateway_tables(self) -> GatewayTables | None:
        return None if self.shared is None else self.shared.gateway

    def statistics(self) -> OwnershipStatistics | None:
        return None if self.ownership is None else self.ownership.statistics()

    async def _live_nodes(self) -> int:
        assert self.ownership is not None
        nodes = await self.ownership.tables.nodes()
        return sum(node.lives and node.cluster == self.cluster.name for node in nodes)

    def carry(self, caller: Caller) -> dict[str, str]:
        return {} if self.trees is None else self.trees.carry(caller)

    def reach(self, caller: Caller) -> None:
        if self.trees is not None:
            self.trees.reach(caller)

    async def shared_trace(self) -> Store:
        """The trace that the nodes share, for reading. It is the engine's own trace if that is on the server."""
        if self._trace is None:
            raise StoreError("this cluster has no shared store. Pass it as Cluster(store=...)")
        await self._trace.open()
        return self._trace

    async def delete_shared(self, session_id: str) -> bool:
        """Delete a session from the trace that the nodes share. Returns whether it existed."""
        if self.database is None:
            return False
        dsn, schema = self.database
        async with PostgresStore(dsn, schema=schema, clock=self._clock) as store:
            return await store.delete_session(session_id)

    def epoch_of(self, session_id: str) -> int:
        """The epoch in which this node owns a session; 0 if it does not own the session."""
        return 0 if self.ownership is None else self.ownership.holding.epoch_of(session_id)

    def _connection(self, url: str, bus: Bus) -> Broker:
        broker = Broker(url, self.name)

        def tell(connected: bool) -> None:
            current: Literal["connected", "away"] = "connected" if connected else "away"
            bus.publish(NodeBrokerChanged(broker=broker.addresses, current=current))

        broker.on_change(tell)
        return broker

    def _frames(self, broker: Broker, streams: StreamChannel) -> Frames:
        broker_frames = BrokerFrames(broker, self.cluster.name, Subjects(self.cluster.name).stored_pattern)
        source = None
        if self.ownership is not None:
            source = partial(answer_of_store, self.shared_trace, self.ownership.ending_of)
        return Frames(
            *(self.cluster.name, self.id, broker_frames, streams, self.epoch_of, source, self._clock.now_us),
            patience=self.cluster.lease_seconds + 5.0,
            frame_seconds=self.cluster.frame_seconds,
            frame_bytes=self.cluster.frame_bytes,
        )

    async def start(self, root: Supervisor) -> None:
        """Start all parts. If one crashes too often, it stays down, and calls continue."""
        supervisor = await root.start_supervisor("node")
        for part in self.parts:
            actor = partial(WorkActor, part.run, part.name)
            await supervisor.start_child(ChildSpec(part.name, actor, on_limit="stop"))

    async def checks(self) -> list[Check]:
        """The checks of an engine of a cluster: its broker, its events on the broker, and its lease."""
        checks = []
        if self.cluster.nats is not None:
            checks += await check_broker(self.cluster.nats, self.cluster.name)
        if self.bridge is not None:
            checks.append(_outgoing(self))
        if self.frames is not None:
            checks.append(_streams(self.frames))
        if self.ownership is not None:
            checks += [_lease(self), await _others(self.ownership)]
        return checks

    async def drain(self) -> None:
        """Send all pending data to other nodes. It never raises."""
        for part in self.parts:
            await _in_time(part.name, part.drain)

    async def close(self, *, shared: bool) -> None:
        """Close all parts, the last one first. It never raises."""
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
    server = server_store(store) if store is not None else None
    if server is not None:
        return server.dsn, server.schema
    return None if cluster.store is None else (cluster.store, "callboard")
