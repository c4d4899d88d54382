"""The interface of an engine to its cluster, and its implementation without a cluster.

`nodes.node.Node` overrides `Alone`, and `nodes.frame_sender.Frames` overrides `LocalStreams`. So no other module
needs to check whether there is a cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import msgspec

from callboard.bus import Bus, Clock, Message, StreamLog, StreamReader, Supervisor
from callboard.bus.streams.events import TurnEvent
from callboard.tracestore import Store

from ..budgets.budget import Budget
from ..budgets.budgets import SharedBudgets
from ..conversation.options import StoredTurnOptions
from ..routing.rate_limits import RateLimits
from ..sessions.open import OpenSessions, SessionState
from ..tree import Caller
from .adapters import Host

if TYPE_CHECKING:
    from callboard.tracestore import WriterCore
    from callboard.tracestore.gateway import GatewayTables
    from callboard.tracestore.reports import Check


class OwnershipStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a node's ownership of sessions."""

    node: str
    """The id of the node, which is the run id of its engine."""
    name: str
    """The node's name, for people."""
    lives: bool
    """Whether the node's lease is valid, by the node's own clock."""
    seconds_left: float
    """Seconds until the end of the lease, unless it is renewed."""
    sessions: int
    """The number of sessions that the node owns."""
    breaks: int
    """The number of times that the node's lease expired before its renewal. The first lease is counted as one."""
    reason: str
    """The reason why the last renewal failed; empty if it succeeded."""


class ReaderArguments(TypedDict):
    """The arguments of `Engine.attach` for a reader, which are the same on each node."""

    from_seq: int | Literal["tail"]
    coalesce: bool
    min_interval: float
    owner: str | None
    any_owner: bool


class LocalStreams:
    """The streams of an engine's turns without a cluster: no other node reads them."""

    def follow(self, log: StreamLog[TurnEvent], session_id: str, cancel: Callable[[], bool]) -> None:
        """Send a stream to other nodes, from its start."""

    def begin(
        self, turn_id: str, state: SessionState, options: StoredTurnOptions, messages: Sequence[Message]
    ) -> None:
        """Record the start of a session's turn, with the messages that wait for a reply."""

    def appended(self, turn_id: str, position: int, message: Message) -> None:
        """Record a message that a turn has added to its session's history."""

    async def hand_over(self, turn_id: str) -> None:
        """Send the end of a turn's stream."""

    async def forget(self, session_id: str) -> None:
        """Delete the content of a deleted session that was sent to other nodes."""

    def attach(
        self,
        stream_id: str,
        begin: Callable[[], Awaitable[None]],
        **arguments: Unpack[ReaderArguments],
    ) -> StreamReader[TurnEvent] | None:
        """A reader of a stream that may be on another node; None if the stream is on this node.

        `begin` is awaited before the first read.
        """
        return None

    async def cancel(self, turn_id: str, owner: str | None) -> bool:
        """Cancel a turn on another node. Returns whether there was one."""
        return False


class Alone:
    """The interface of an engine to its cluster, for an engine without a cluster. Nothing is shared."""

    in_cluster = False
    """Whether other nodes share this engine's work."""
    sends_events = False
    """Whether committed events are sent to other processes."""
    streams: LocalStreams = LocalStreams()
    """Sends the streams of turns to other nodes."""

    @property
    def may_go(self) -> Callable[[str, str], Awaitable[bool]] | None:
        """A function that returns whether this node may probe an unavailable model; None without other nodes."""
        return None

    def open_sessions(self, bus: Bus, store: Store | None, host: Host, *, captures: bool) -> OpenSessions:
        """The open sessions of the engine."""
        return OpenSessions(bus, store, host, captures=captures)

    def rate_limits(self, bus: Bus, clock: Clock) -> RateLimits:
        """The rate limits of the engine's adapters."""
        return RateLimits()

    def share_budgets(self, budgets: Sequence[Budget], clock: Clock) -> SharedBudgets | None:
        """The budgets that all nodes share; None if the engine has its own budgets."""
        return None

    def gateway_tables(self) -> GatewayTables | None:
        """The clients of a gateway that all nodes share; None if they are in the engine's own trace."""
        return None

    def carry(self, caller: Caller) -> dict[str, str]:
        """The data that another node needs to join a tree of turns of this engine."""
        return {}

    def reach(self, caller: Caller) -> None:
        """Connect a tool run on another node with the calls that it starts here."""

    async def delivered(self, turn_id: str, message_id: str) -> int:
        """The number of output tokens of a dead process's message that readers on other nodes have received; 0 if
        unknown.
        """
        return 0

    def follow(self, writer: WriterCore) -> None:
        """Send the events that the trace writer commits to other processes."""

    async def start(self, root: Supervisor) -> None:
        """Start, after the trace writer and the shipper, before the turns."""

    async def drain(self) -> None:
        """Send all pending data to other nodes. Called when all turns have ended and the trace is committed."""

    async def close(self, *, shared: bool) -> None:
        """Close the connection to the cluster, after the trace was shipped. `shared` is True if all of it has
        arrived.
        """

    async def checks(self) -> list[Check]:
        """The checks of the cluster's servers and of this engine's place in the cluster."""
        return []

    def statistics(self) -> OwnershipStatistics | None:
        """The state of this node's ownership of sessions; None without a cluster."""
        return None
