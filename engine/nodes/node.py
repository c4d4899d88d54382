"""What an engine in a cluster has: its parts, in the order in which they start.

`Runtime` makes the node, and `Life` starts and ends it:

    start    behind the trace writer and the shipper, before the turns: a supervisor "node" with one actor a part
    drain    when all turns are over and the trace is committed, its store still open
    close    last of all, when the trace is shipped: whatever the node held, others may have
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import anyio

from bus import Bus, Clock, Log, StreamChannel, Supervisor
from tracestore import Store

from ..opening import server_store
from .cluster import Cluster
from .frames.exchange import Subjects
from .frames.part import Frames
from .frames.stored import NothingStored
from .frames.unowned import Unowned
from .nats.broker import Broker
from .nats.kept_frames import KeptFrames
from .part import Part, child_of

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
    """

    def __init__(
        self, cluster: Cluster, *, bus: Bus, clock: Clock, store: Store | None, streams: StreamChannel
    ) -> None:
        self.cluster = cluster
        self.id = bus.run_id
        """The node's identity: a node is one run of an engine."""
        self.name = cluster.node or f"{socket.gethostname()}:{os.getpid()}"
        """The node's name, for people."""
        self.database = _shared_database(cluster, store)
        """The address and the schema of the shared database; None without one."""
        self.parts: Sequence[Part] = ()
        """In the order in which they start."""
        self.broker: Broker | None = None
        """The connection to the broker; None without one."""
        self.frames: Frames | None = None
        """The streams that are read on other nodes; None without a broker."""
        if cluster.nats is not None:
            self.broker = Broker(cluster.nats, self.name)
            self.frames = self._frames(self.broker, streams)
            self.parts = [*self.parts, self.broker, self.frames]

    def _frames(self, broker: Broker, streams: StreamChannel) -> Frames:
        kept = KeptFrames(broker, self.cluster.name, Subjects(self.cluster.name).kept)
        return Frames(self.cluster, self.id, kept, streams, Unowned(), NothingStored())

    async def start(self, root: Supervisor) -> None:
        """Have all parts at work, below a supervisor of their own."""
        supervisor = await root.start_supervisor("node")
        for part in self.parts:
            await supervisor.start_child(child_of(part))

    async def drain(self) -> None:
        """Let everything out that other nodes are to have. It never raises."""
        for part in self.parts:
            await _in_time(part.name, part.drain)

    async def close(self) -> None:
        """Let go of everything, the last part first. It never raises."""
        for part in reversed(self.parts):
            await _in_time(part.name, part.close)


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
