"""Who lives, and whose a session is: the shared rows of the nodes of a cluster, and the interface to them.

A node lives while its lease lasts, by the database's clock. A session has one owner at a time. Whoever takes it
over raises its epoch, and everything that is said in it carries the epoch, so that the store can refuse what a
former owner still says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from callboard.bus.events.sessions import TurnStatus


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as it says of itself."""

    node: str
    """The run of its engine, which is its identity."""
    cluster: str = "callboard"
    """The name of the cluster."""
    name: str = ""
    """The node's name, for people."""
    lease_seconds: float = 15.0
    """The length of its lease."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node, as the store knows it."""

    node: str
    """The run of its engine."""
    cluster: str
    """The name of the cluster."""
    name: str
    """The node's name, for people."""
    lives: bool
    """Whether its lease lasts."""
    seconds_left: float
    """Seconds until the end of its lease; negative if it is over."""
    sessions: int
    """The number of sessions that it owns."""


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that lasts from now on."""

    lease: int
    """The number of the lease. As long as it stays the same, nobody can have taken anything from the node."""
    owned: Mapping[str, int] | None = None
    """If the number is not the one that the node knew: the sessions that are still its own, with their epochs."""
    wanted: Sequence[str] = ()
    """The node's sessions that another node waits for."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a session."""

    node: str
    """The run of the owner's engine."""
    name: str = ""
    """The owner's name, for people; empty if the node is not known any more."""
    epoch: int
    """A number that only rises: each claim gets a higher one than any claim before it."""
    lives: bool
    """Whether the owner's lease lasts."""
    seconds_left: float = 0.0
    """Seconds until the end of that lease."""
    released: bool = False
    """Whether it has let go of the session."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is the claimant's now."""

    epoch: int
    """The epoch from now on."""
    previous: Owner | None = None
    """The owner before; None of a session that nobody had."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is not to be had, because its owner lives."""

    by: Owner
    """The owner."""


class TurnEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn, decided by others than the node that ran it."""

    stream_id: str
    """The turn's id, and its stream's."""
    session_id: str
    """The session; empty for a turn without one."""
    epoch: int
    """The epoch in which the turn ran."""
    status: TurnStatus
    """The way it ended."""
    decided_by: str
    """The node that has decided."""


class OwnershipTables(Protocol):
    """The shared rows. Each method happens as a whole; whatever fails is a StoreError."""

    async def renew(self, node: NodeInfo, known: int) -> Renewed:
        """Have a node's lease last from the database's now on.

        Args:
            node: The node.
            known: The number of the lease that the node knows of; 0 if it knows none. An earlier renewal may have
                been carried out without the node having had the answer.
        """
        ...

    async def leave(self, node: str) -> None:
        """Have a node not live any more, so that others need not wait for its lease to end."""
        ...

    async def claim(self, session_id: str, node: str, *, wants: bool = False) -> Claimed | Held:
        """Make a session a node's own, unless another owner lives and hasn't let go of it.

        Args:
            session_id: The session.
            node: The claimant.
            wants: Whether a living owner is to be told that the session is waited for.
        """
        ...

    async def wanted(self, node: str) -> Sequence[str]:
        """The sessions of a node that another node waits for."""
        ...

    async def release(self, node: str, sessions: Mapping[str, int]) -> None:
        """Let go of sessions, by their epochs. What is another's by now stays as it is."""
        ...

    async def forget(self, node: str, session_id: str, epoch: int) -> None:
        """Let go of a session that was deleted: nothing is known of it afterwards."""
        ...

    async def owner(self, session_id: str) -> Owner | None:
        """The owner of a session; None if nobody ever claimed it, or it was deleted since."""
        ...

    async def ending(self, stream_id: str) -> TurnEnding | None:
        """The decided end of a turn; None if nobody has decided it."""
        ...

    async def end_turn(self, ending: TurnEnding, owner: str) -> TurnEnding | None:
        """Decide the end of a turn, once: only when its owner can't end it any more.

        Args:
            ending: The end.
            owner: The node that ran the turn.

        Returns:
            The end that stands, whoever has decided it. None if the owner lives and the session is still its own.
        """
        ...

    async def nodes(self) -> list[NodeRow]:
        """All nodes that the store knows, the living ones first."""
        ...
