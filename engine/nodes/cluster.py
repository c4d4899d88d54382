"""The cluster of an engine, as the host configures it, and the interface of its parts.

All nodes have the same configuration.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol

import msgspec

from callboard.bus import ChildSpec, ConfigurationError
from callboard.bus.actors.actor import WorkActor

from ..stores import StoreAddress, is_address

_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""The form of a cluster's name, which is a part of subjects."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of an engine: `Engine(cluster=Cluster(nats="nats://…", store="postgresql://…"))`.

    Sessions then have one owner at a time and can be resumed on any node. Without `store` only events and streams
    are shared, and without `nats` only the contents of the store.

    Raises:
        ConfigurationError: A value is impossible.
    """

    nats: str | None = None
    """The address of the broker, as ``nats://HOST:PORT``, or several with commas between them."""
    store: str | None = None
    """The address of the shared trace, as ``postgresql://USER@HOST/DATABASE``.

    A trace in a file is shipped there. None is the database of the engine's own PostgreSQL store.
    """
    name: str = "callboard"
    """The cluster's name: letters, digits, ``-`` and ``_``. Clusters with different names may share a broker."""
    node: str | None = None
    """The node's name, for people; None is the name of the host and the number of the process."""
    content: bool = False
    """Whether events go out over the bus with their content."""
    lease_seconds: float = 15.0
    """Seconds for which a node counts as living after its last renewal.

    Until then its sessions are not taken over.
    """
    frame_seconds: float = 0.025
    """Seconds after which new content of a stream is sent to other nodes, at the latest."""
    frame_bytes: int = 4096
    """Bytes after which it goes out immediately."""
    without_store: Literal["refuse", "admit"] = "refuse"
    """Whether calls under a budget or a limit are admitted while the shared store can't be asked."""

    def __post_init__(self) -> None:
        """Refuse what can't be."""
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

    def ships_to(self, ship_to: str | None, *, from_file: bool) -> str | None:
        """The address to which the engine's trace is shipped.

        Args:
            ship_to: The address that the host gave itself.
            from_file: Whether the engine's trace is in a file.

        Raises:
            ConfigurationError: The trace would be shipped elsewhere than where the cluster has its own.
        """
        if ship_to is not None and self.store is not None and ship_to != self.store:
            raise ConfigurationError("a cluster ships the trace to its store. Leave out ship_to")
        return self.store if ship_to is None and from_file else ship_to


class Part(Protocol):
    """One subject of a node: it is created with the engine, works while the engine lives, and ends in two steps.

    Unreachable servers are no errors of a part. It reports them on the bus, and continues when they are back.
    """

    @property
    def name(self) -> str:
        """The part's name in the tree of supervision."""

    async def run(self) -> None:
        """Work until cancelled. It may be called again, after an exception."""

    async def drain(self) -> None:
        """Send the rest: all turns are over, and the trace is committed, with its store still open.

        It may take at most a second or two, and is then cut off.
        """

    async def close(self) -> None:
        """Let go of everything that the node holds, and of connections: the trace has been shipped. Called once,
        also when `run` never was. At most a second or two; it is cut off after that.
        """


def child_of(part: Part) -> ChildSpec:
    """The part as a child of a supervisor. A part that can't be kept running stays down, and calls go on."""
    return ChildSpec(part.name, lambda: WorkActor(part.run, part.name), on_limit="stop")
