"""`nodes.*`: the nodes of a cluster, and `session.*` of sessions that go from one to another."""

from __future__ import annotations

from typing import Literal

from .envelope import Event


class NodeLeaseChanged(Event, frozen=True, kw_only=True, tag="nodes.lease_changed"):
    """A node may act for its sessions, or has to ask first."""

    node: str
    """The node: the run of its engine."""
    name: str
    """The node's name, for people."""
    current: Literal["held", "over"]
    """``held``: its lease lasts. ``over``: it could not be renewed in time."""
    reason: str = ""
    """The reason why it is over, in words."""


class NodeBrokerChanged(Event, frozen=True, kw_only=True, tag="nodes.broker_changed"):
    """The broker of a node's cluster can be reached, or can't. Calls and traces go on without it."""

    broker: str
    """The broker's address, without a password."""
    current: Literal["connected", "away"]
    """``connected``: what waited goes out. ``away``: what is for other nodes waits, or is read from the store."""


class NodeLimitsChanged(Event, frozen=True, kw_only=True, tag="nodes.limits_changed"):
    """A node shares declared rate limits with the others again, or can't, and uses an even part of them."""

    current: Literal["shared", "divided"]
    """``shared``: by shares as they are needed. ``divided``: evenly, because the shared store can't be asked."""
    nodes: int
    """The number of nodes that were last known."""
    reason: str = ""
    """The reason, in words."""


class SessionClaimed(Event, frozen=True, kw_only=True, tag="session.claimed"):
    """A session that was another node's is this node's. The event is that of its new owner."""

    node: str
    """The new owner: the run of its engine."""
    name: str
    """The new owner's name, for people."""
    epoch: int
    """The session's epoch from now on."""
    previous: str
    """The former owner."""
    how: Literal["released", "lease_over"]
    """``released``: the former owner has let go of it. ``lease_over``: it was taken over."""


class SessionLost(Event, frozen=True, kw_only=True, tag="session.lost"):
    """A session isn't this node's any more. The event is that of its former owner."""

    epoch: int
    """The epoch in which the session was this node's."""
    how: Literal["handed_over", "taken_over"]
    """``handed_over``: another node asked for it while no turn ran. ``taken_over``: this node's lease was over."""
