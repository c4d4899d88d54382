"""The operation of an engine: actors, budgets, nodes, its store and its providers."""

from __future__ import annotations

from typing import Literal

from .envelope import Event

# -- `provider.*`, `config.*`, `pricing.*` and `store.*`: what is to be known about an engine in operation


class ProviderAvailabilityChanged(Event, frozen=True, kw_only=True, tag="provider.availability_changed"):
    """The availability of a provider, or of one of its models, has changed; see `engine.availability`."""

    provider: str
    """The adapter's name."""
    model: str | None
    """The model, ``provider:name``; None for the provider as a whole."""
    previous: str
    """The state before: ``available``, ``degraded``, ``unavailable`` or ``probing``."""
    current: str
    """The state from now on, one of the same words."""
    reason: str
    """The reason for the change, in words."""
    retry_at_us: int | None = None
    """The time at which the next try is allowed, in microseconds since the epoch."""
    node: str | None = None
    """The node of a cluster that has found it, where it is another one: the run of its engine."""


class ConfigReloaded(Event, frozen=True, kw_only=True, tag="config.reloaded"):
    """The configuration was read again; the fields list the differences."""

    source: str
    """The file that was read, or the other source of the configuration."""
    adapters_added: tuple[str, ...] = ()
    """The names of adapters that are new."""
    adapters_removed: tuple[str, ...] = ()
    """The names of adapters that are gone."""
    adapters_changed: tuple[str, ...] = ()
    """The names of adapters with other settings."""
    models_added: tuple[str, ...] = ()
    """The ids of models that are new."""
    models_removed: tuple[str, ...] = ()
    """The ids of models that are gone."""
    models_changed: tuple[str, ...] = ()
    """The ids of models with other settings."""


class PricingTableLoaded(Event, frozen=True, kw_only=True, tag="pricing.table_loaded"):
    """A price table is in use."""

    pricing_version: str
    """The table's version: 12 hex digits of its hash."""
    label: str
    """The table's name, for people."""
    rows: int
    """The number of rows in the table."""


class PricingRepriced(Event, frozen=True, kw_only=True, tag="pricing.repriced"):
    """Stored calls have other costs from now on.

    Both sums are over the calls that have a cost before and after.
    """

    pricing_version: str
    """The version of the price table that gave the new costs."""
    calls: int
    """The number of calls that the repricing was about."""
    unpriced: int
    """The number of these calls without a price in this version."""
    sum_before_nano_usd: int
    """The sum of the old costs, in nano-USD."""
    sum_after_nano_usd: int
    """The sum of the new costs, in nano-USD."""
    estimated: int = 0
    """The number of these calls with usage that was estimated."""
    unknown: int = 0
    """The number of further calls of which not even the usage is known."""


class PricingProgress(Event, frozen=True, kw_only=True, tag="pricing.progress"):
    """A repricing is under way. It is told a few times a second, and no trace keeps it."""

    pricing_version: str
    """The version of the price table."""
    done: int
    """The number of the last call in the trace that is done."""
    last: int
    """The number of the last call in the trace."""
    dry_run: bool = False
    """Whether the repricing is only tried."""


class StoreStateChanged(Event, frozen=True, kw_only=True, tag="store.state_changed"):
    """The state of the trace's writer has changed.

    ``ok``: the writer writes. ``retrying``: the store fails, and events wait in memory. ``spilling``: events go to
    a file beside the store. ``dropping``: there is no room for them in that file either.
    """

    previous: Literal["ok", "retrying", "spilling", "dropping"]
    """The state before."""
    current: Literal["ok", "retrying", "spilling", "dropping"]
    """The state from now on."""
    reason: str
    """The text of the last failure."""
    lost: int = 0
    """The number of events so far that nobody has any more."""


class StoreShippingChanged(Event, frozen=True, kw_only=True, tag="store.shipping_changed"):
    """The trace file can't be shipped to the shared store any more, or can be again.

    ``shipping``: the shared store takes events. ``retrying``: it can't be reached, and events wait in the trace
    file. It is said again each time when twice as many wait.
    """

    previous: Literal["shipping", "retrying"]
    """The state before."""
    current: Literal["shipping", "retrying"]
    """The state from now on."""
    target: str
    """The name of the shared store, without user and password."""
    reason: str
    """The text of the last failure."""
    behind: int
    """The number of events in the trace file that the shared store lacks."""


# -- `actor.*`: the life of actors under their supervisors


class _ActorEvent(Event, frozen=True, kw_only=True):
    """An event of one actor."""

    actor: str
    """The actor's name in the tree of supervision."""


class ActorStarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.started"):
    """An actor is up."""


class ActorCrashed(_ActorEvent, frozen=True, kw_only=True, tag="actor.crashed"):
    """An actor has crashed, or has failed to start."""

    error: str
    """The type and the text of the exception that it raised."""
    failures: int
    """The number of failures in a row, without healthy uptime between them."""


class ActorRestarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.restarted"):
    """An actor is up again after a failure."""

    restarts: int
    """The number of restarts, this one included."""


class ActorStopped(_ActorEvent, frozen=True, kw_only=True, tag="actor.stopped"):
    """An actor has ended, and will not be restarted."""

    reason: str
    """The reason why it ended, in words."""


ActorStoppedEvent = ActorStopped
"""The name by which `bus` offers the event, beside the exception `ActorStopped`."""


class ActorEscalated(_ActorEvent, frozen=True, kw_only=True, tag="actor.escalated"):
    """The supervisor gave up on an actor and handed the failure to its own parent."""

    reason: str
    """The reason why the supervisor gave up, in words."""


# -- What budgets tell: room that is reserved, what a call did cost, refusals, and accounts that are nearly empty


class BudgetReserved(Event, frozen=True, kw_only=True, tag="budget.reserved"):
    """The most that an attempt can cost is reserved in every account that looks at it."""

    nano_usd: int | None
    """The money in nano-USD; None if nobody knows it, and the budgets allow that."""
    tokens: int
    """The input and output tokens."""


class BudgetSettled(Event, frozen=True, kw_only=True, tag="budget.settled"):
    """An attempt has ended. Its cost counts in place of its reservation."""

    nano_usd: int | None
    """The cost in nano-USD; None if it has no price."""
    tokens: int
    """The input and output tokens."""
    unknown: bool = False
    """Whether nobody knows what the attempt used, so that it counts at what it had reserved."""


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget.refused"):
    """A call did not fit into a budget, and was not made."""

    scope: str
    """The kind of account that had no room: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or value of the tag whose account it is; empty for the engine's."""
    why: Literal["money", "tokens", "unpriced"]
    """The limit that was in the way; ``unpriced`` if nobody knows the most that the call can cost."""
    asked_nano_usd: int | None
    """The most that the call can cost, in nano-USD; None if nobody knows."""
    asked_tokens: int
    """The most tokens that the call can use."""
    left_nano_usd: int | None
    """The money that was left in the account, in nano-USD."""
    left_tokens: int
    """The tokens that were left in the account."""
    fits_at_us: int | None = None
    """The time at which the window alone makes room, in microseconds since the Unix epoch; None for never."""


class BudgetLow(Event, frozen=True, kw_only=True, tag="budget.low"):
    """What is spent of an account has passed the mark of its budget, for the first time in the window."""

    scope: str
    """The kind of account: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or value of the tag whose account it is; empty for the engine's."""
    left_nano_usd: int | None
    """The money that is left, in nano-USD; None without a limit on money."""
    left_tokens: int | None
    """The tokens that are left; None without a limit on tokens."""


# -- `nodes.*`: the nodes of a cluster, and `session.*` of sessions that go from one to another


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
