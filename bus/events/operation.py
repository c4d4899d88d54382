"""Events of operation: providers, prices, store, actors, budgets and nodes."""

from __future__ import annotations

from typing import Literal

from . import Event

# --- Providers, configuration, prices and store ---


class ProviderAvailabilityChanged(Event, frozen=True, kw_only=True, tag="provider.availability_changed"):
    """The availability of a provider, or of one of its models, has changed; see `engine.availability`."""

    provider: str
    """The adapter's name."""
    model: str | None
    """The model, ``provider:name``; None for the provider as a whole."""
    previous: str
    """The state before: ``available``, ``degraded``, ``unavailable`` or ``probing``."""
    current: str
    """The state from now on, one of the same values."""
    reason: str
    """The text of the reason for the change."""
    retry_at_us: int | None = None
    """The time at which the next try is allowed, in microseconds since the epoch."""
    node: str | None = None
    """The run id of the other node that detected the change; None if this engine did."""


class ConfigReloaded(Event, frozen=True, kw_only=True, tag="config.reloaded"):
    """The configuration was read again; the fields list the differences."""

    source: str
    """The file or other source of the configuration."""
    adapters_added: tuple[str, ...] = ()
    """The names of new adapters."""
    adapters_removed: tuple[str, ...] = ()
    """The names of removed adapters."""
    adapters_changed: tuple[str, ...] = ()
    """The names of adapters with other settings."""
    models_added: tuple[str, ...] = ()
    """The ids of new models."""
    models_removed: tuple[str, ...] = ()
    """The ids of removed models."""
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
    """A repricing has changed the costs of stored calls.

    Both sums are over the calls that have a cost before and after.
    """

    pricing_version: str
    """The version of the price table that gave the new costs."""
    calls: int
    """The number of calls in the repricing."""
    unpriced: int
    """The number of repriced calls without a price in this version."""
    sum_before_nano_usd: int
    """The sum of the old costs, in nano-USD."""
    sum_after_nano_usd: int
    """The sum of the new costs, in nano-USD."""
    estimated: int = 0
    """The number of repriced calls with estimated usage."""
    unknown: int = 0
    """The number of further calls with unknown usage."""


class PricingProgress(Event, frozen=True, kw_only=True, tag="pricing.progress"):
    """A repricing is in progress. Published a few times a second and never stored."""

    pricing_version: str
    """The version of the price table."""
    done: int
    """The number of the latest repriced call in the trace."""
    last: int
    """The number of the last call in the trace."""
    dry_run: bool = False
    """Whether the repricing is a dry run."""


class StoreStateChanged(Event, frozen=True, kw_only=True, tag="store.state_changed"):
    """The state of the trace's writer has changed.

    ``ok``: the writer writes. ``retrying``: the store fails, and events wait in memory. ``spilling``: events go to
    a file next to the store. ``dropping``: that file is full as well.
    """

    previous: Literal["ok", "retrying", "spilling", "dropping"]
    """The state before the change."""
    current: Literal["ok", "retrying", "spilling", "dropping"]
    """The state from now on."""
    reason: str
    """The text of the last failure."""
    lost: int = 0
    """The number of events lost so far."""


class StoreShippingChanged(Event, frozen=True, kw_only=True, tag="store.shipping_changed"):
    """Shipping to the shared store has failed or works again.

    ``shipping``: the shared store accepts events. ``retrying``: the store can't be reached, and events wait in the
    trace file. While the store can't be reached, the event is published again whenever the number of waiting
    events has doubled.
    """

    previous: Literal["shipping", "retrying"]
    """The state before the change."""
    current: Literal["shipping", "retrying"]
    """The state from now on."""
    target: str
    """The name of the shared store, without user and password."""
    reason: str
    """The text of the last failure."""
    behind: int
    """The number of events in the trace file that the shared store lacks."""


# --- Actors: `actor.*` ---


class _ActorEvent(Event, frozen=True, kw_only=True):
    actor: str
    """The actor's name in the supervision tree."""


class ActorStarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.started"):
    """An actor has started."""


class ActorCrashed(_ActorEvent, frozen=True, kw_only=True, tag="actor.crashed"):
    """An actor has crashed, or has failed to start."""

    error: str
    """The type and the text of the exception that the actor raised."""
    failures: int
    """The number of failures in a row."""


class ActorRestarted(_ActorEvent, frozen=True, kw_only=True, tag="actor.restarted"):
    """An actor was restarted after a failure."""

    restarts: int
    """The number of restarts, this one included."""


class ActorStopped(_ActorEvent, frozen=True, kw_only=True, tag="actor.stopped"):
    """An actor has ended, and will not be restarted."""

    reason: str
    """The reason for the actor's end."""


ActorStoppedEvent = ActorStopped
"""The export name of this event in `bus`, because `ActorStopped` is also an exception."""


class ActorEscalated(_ActorEvent, frozen=True, kw_only=True, tag="actor.escalated"):
    """The supervisor gave up on an actor and failed itself."""

    reason: str


# --- Budgets: `budget.*` ---


class BudgetReserved(Event, frozen=True, kw_only=True, tag="budget.reserved"):
    """The highest possible cost of an attempt is reserved in every budget account that applies."""

    nano_usd: int | None
    """The money in nano-USD; None if unknown, which only some budgets allow."""
    tokens: int
    """The input and output tokens."""


class BudgetSettled(Event, frozen=True, kw_only=True, tag="budget.settled"):
    """An attempt has ended. Its actual cost replaces the reserved amount."""

    nano_usd: int | None
    """The cost in nano-USD; None if it has no price."""
    tokens: int
    """The input and output tokens."""
    unknown: bool = False
    """Whether the usage of the attempt is unknown, so that the reserved amount counts."""


class BudgetRefused(Event, frozen=True, kw_only=True, tag="budget.refused"):
    """A call did not fit into a budget, and was not made."""

    scope: str
    """The kind of account that had no room: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or tag value of the account; empty for the engine's."""
    why: Literal["money", "tokens", "unpriced"]
    """The limit that was exceeded; ``unpriced`` if the highest possible cost is unknown."""
    asked_nano_usd: int | None
    """The highest possible cost of the call, in nano-USD; None if unknown."""
    asked_tokens: int
    """The highest possible number of tokens of the call."""
    left_nano_usd: int | None
    """The money that was left in the account, in nano-USD."""
    left_tokens: int
    """The tokens that were left in the account."""
    fits_at_us: int | None = None
    """The earliest time at which the window has room for the call, in microseconds since the Unix epoch; None for
    never.
    """


class BudgetLow(Event, frozen=True, kw_only=True, tag="budget.low"):
    """The spending of an account has passed the budget's `low_at`, for the first time in the window."""

    scope: str
    """The kind of account: ``engine``, ``session``, ``provider``, ``model`` or ``tag:NAME``."""
    value: str
    """The session, provider, model or tag value of the account; empty for the engine's."""
    left_nano_usd: int | None
    """The money that is left, in nano-USD; None without a limit on money."""
    left_tokens: int | None
    """The tokens that are left; None without a limit on tokens."""


# --- Nodes: `nodes.*`, `session.*` ---


class NodeLeaseChanged(Event, frozen=True, kw_only=True, tag="nodes.lease_changed"):
    """A node has gained or lost the right to act for its sessions."""

    node: str
    """The node's id, which is the run id of its engine."""
    name: str
    """The node's name, for people."""
    current: Literal["held", "over"]
    """``held``: its lease is valid. ``over``: the lease could not be renewed in time."""
    reason: str = ""
    """The text of the reason for the loss."""


class NodeBrokerChanged(Event, frozen=True, kw_only=True, tag="nodes.broker_changed"):
    """A node has connected to its cluster's broker, or has lost the connection. Calls and traces continue without
    the broker.
    """

    broker: str
    """The broker's address, without a password."""
    current: Literal["connected", "away"]
    """``connected``: waiting messages are sent. ``away``: messages for other nodes wait, or are read from the
    store.
    """


class NodeLimitsChanged(Event, frozen=True, kw_only=True, tag="nodes.limits_changed"):
    """Nodes now divide the declared rate limits by another rule: by demand, or evenly."""

    current: Literal["shared", "divided"]
    """``shared``: by demand. ``divided``: evenly, because the shared store can't be reached."""
    nodes: int
    """The last known number of nodes."""
    reason: str = ""
    """The reason, in words."""


class SessionClaimed(Event, frozen=True, kw_only=True, tag="session.claimed"):
    """This node took a session over from another node. The new owner publishes the event."""

    node: str
    """The id of the new owner, which is the run id of its engine."""
    name: str
    """The new owner's name, for people."""
    epoch: int
    """The new epoch of the session."""
    previous: str
    """The id of the former owner."""
    how: Literal["released", "lease_over"]
    """``released``: the former owner released it. ``lease_over``: the former owner's lease had expired."""


class SessionLost(Event, frozen=True, kw_only=True, tag="session.lost"):
    """This node is no longer the owner of the session. The former owner publishes the event."""

    epoch: int
    """The epoch in which this node was the owner."""
    how: Literal["handed_over", "taken_over"]
    """``handed_over``: another node requested the session while no turn ran. ``taken_over``: this node's lease had
    expired.
    """
