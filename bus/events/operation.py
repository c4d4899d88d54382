"""`provider.*`, `config.*`, `pricing.*` and `store.*`: what is to be known about an engine in operation."""

from __future__ import annotations

from typing import Literal

from .envelope import Event


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
