"""The shared parts of one engine: clock, bus, streams, store, prices, adapters, sessions and limits.

The engine creates the runtime and passes it to each part. The runtime has no tasks. Its `host` runs on the event
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import msgspec

from callboard.bus import AdmissionError, Bus, Clock, ConfigReloaded, StreamChannel
from callboard.bus.errors import StoreError
from callboard.tracestore import Capture, PriceTable, Store, WriterStatistics

from ..budgets.budget import Budget
from ..budgets.budgets import Budgets, loader
from ..current_prices import Pricing
from ..middleware.chain import Chain
from ..models.registry import ModelRegistry
from ..routing.availability import AvailabilityTable
from ..stores import server_store, shipper_for
from .adapters import AdapterPool, Host, make_spare
from .alone import Alone
from .in_flight import InFlight

if TYPE_CHECKING:
    from ..nodes.node import Cluster


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an engine.

    If `retain_streams_bytes` is 0, a stream is dropped when its turn ends. Readers that have not read everything
    by then get the remaining events as a `StreamReset`.
    """

    calls_per_provider: int = 256
    """The maximum number of concurrent calls for each provider. More calls wait in order."""
    admit_events: int = 8192
    """The maximum number of events that may wait for the trace writer. If more wait, new turns are delayed."""
    admit_bytes: int = 16 * 1024 * 1024
    """The maximum number of bytes that may wait for the trace writer. If more wait, new turns are delayed."""
    admit_seconds: float = 5.0
    """Seconds without a commit after which a delayed turn raises AdmissionError."""
    retain_streams_seconds: float = 60.0
    """Seconds for which readers can attach to the stream of an ended turn, see `bus.streams.channel`."""
    retain_streams_bytes: int = 64 * 1024 * 1024
    """The maximum memory for all streams of ended turns together, in bytes."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of an engine, in seconds. The limits of a call are its adapter's, see `AdapterConfig`."""

    shutdown: float = 15.0
    """Seconds for all actors to stop. An actor that has not stopped by then is cancelled and reported."""
    turn: float | None = None
    """Seconds from the request of a turn to its end, including waits. With None, only the limits of the turn's
    calls and tools apply.
    """
    tool: float = 60.0
    """Seconds for one call of a tool without its own `timeout_seconds`."""


class Runtime:
    """The shared parts of one engine."""

    registry: ModelRegistry
    """The current configuration. A reload replaces it."""

    def __init__(
        self,
        make_host: Callable[[Runtime], Host],
        *,
        clock: Clock,
        registry: ModelRegistry,
        store: Store | None,
        prices: PriceTable,
        ship_to: str | None,
        cluster: Cluster | None,
        ships_before_reply: bool,
        capture: Capture | None,
        middleware: Chain,
        budgets: Sequence[Budget],
        limits: Limits,
        timeouts: Timeouts,
    ) -> None:
        self.clock = clock
        self.registry = registry
        self.store = store
        self.capture = capture
        self.keeps_all_content = capture is not None and not capture.redacts
        """Whether all content may be stored unchanged."""
        self.middleware = middleware
        self.limits = limits
        self.timeouts = timeouts
        self.bus = Bus(clock=clock)
        if cluster is not None:
            from_file = store is not None and server_store(store) is None
            ship_to = cluster.ships_to(ship_to, from_file=from_file)
        self.shipper = None if ship_to is None else shipper_for(store, ship_to, self.bus, clock, prices)
        self.ships_before_reply = ships_before_reply and self.shipper is not None
        self.streams = StreamChannel(
            clock=clock, retain_seconds=limits.retain_streams_seconds, max_bytes=limits.retain_streams_bytes
        )
        self.availability = AvailabilityTable()
        self.cluster = Alone()
        if cluster is not None:
            self.cluster = cluster.join(
                bus=self.bus,
                clock=clock,
                store=store,
                streams=self.streams,
                availability=self.availability,
            )
        self.in_flight = InFlight()
        self.rate_limits = self.cluster.rate_limits(self.bus, clock)
        self.host = make_host(self)
        self.adapters = AdapterPool(self.host, lambda: self.registry, clock)
        self.sessions = self.cluster.open_sessions(self.bus, store, self.host, captures=capture is not None)
        shared = self.cluster.share_budgets(budgets, clock)
        self.budgets = Budgets(
            budgets,
            self.bus,
            clock,
            loader(store, self.bus.run_id, self.host.settle, own_run=shared is not None),
            shared,
        )
        self.pricing = Pricing(
            self.bus, store, clock, self.host, self.sessions.states, prices, self.budgets.recount
        )

    @property
    def prices(self) -> PriceTable:
        """The price table for new calls."""
        return self.pricing.prices


# --- The admission of turns ---

_LOOK_EVERY_SECONDS = 0.01


class Writer(Protocol):
    """The interface of the trace writer for admission: a `WriterCore`."""

    def statistics(self) -> WriterStatistics: ...


class Admission:
    """The queue of new turns. Turns are admitted in order; only the first one checks how far behind the writer is.

    If the writer is far behind but still commits, turns wait. If it has committed nothing for
    `Limits.admit_seconds`, turns are refused. If the store fails, turns are not delayed: the writer keeps as many
    events as it can, and reports lost events.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue = anyio.Lock(fast_acquire=True)
        self._committed = -1
        self._progress_at = 0.0

    async def admit(self, writer: Writer) -> None:
        """Wait until the writer is not too far behind. Raises AdmissionError."""
        if not self._queue.locked() and self._open(writer.statistics()):
            return
        began = anyio.current_time()
        async with self._queue:
            while not self._open(behind := writer.statistics()):
                self._refuse_without_progress(behind, began)
                await anyio.sleep(_LOOK_EVERY_SECONDS)

    def _open(self, behind: WriterStatistics) -> bool:
        limits = self._limits
        near = behind.waiting <= limits.admit_events and behind.waiting_bytes <= limits.admit_bytes
        return near or behind.state != "ok"

    def _refuse_without_progress(self, behind: WriterStatistics, began: float) -> None:
        limits, now = self._limits, anyio.current_time()
        if behind.committed != self._committed:
            self._committed, self._progress_at = behind.committed, now
        if now - max(began, self._progress_at) < limits.admit_seconds:
            return
        raise AdmissionError(
            f"the trace writer is {behind.waiting} events of about {behind.waiting_bytes} bytes behind "
            f"(limits: {limits.admit_events} events and {limits.admit_bytes} bytes) and has committed none for "
            f"{limits.admit_seconds:g} s. Calls in progress are not affected."
        )


# --- The trace and the configuration while the engine runs ---


async def settled_store(runtime: Runtime) -> Store | None:
    """The trace, including leftover events of earlier processes; None without a trace, or while it can't be
    opened.

    Raises StoreError.
    """
    if runtime.store is None:
        return None
    if not await runtime.host.settle():
        raise StoreError(
            f"files that an earlier process left next to {runtime.store.path} can't be read now. See the log"
        )
    return runtime.store if runtime.store.is_open else None


T = TypeVar("T")


async def take_over(runtime: Runtime, fresh: ModelRegistry) -> ConfigReloaded:
    """Replace the current configuration.

    Changed and removed adapters are stopped when their last turn has ended.

    Returns the differences, which are published. Raises ConfigurationError.
    """
    change = difference(runtime.registry, fresh)
    for name in (*change.adapters_added, *change.adapters_changed):
        if fresh.adapters[name].missing_key is None:
            make_spare(fresh.adapters[name], runtime.clock)
    runtime.registry = fresh.succeeding(runtime.registry)
    await runtime.adapters.replace((*change.adapters_changed, *change.adapters_removed))
    now_us = runtime.clock.now_us()
    for moved in runtime.availability.reloaded(change.adapters_changed, change.adapters_removed, now_us):
        runtime.bus.publish(moved)
    runtime.bus.publish(change)
    return change


def difference(old: ModelRegistry, new: ModelRegistry) -> ConfigReloaded:
    """The event with the differences between two configurations. Unchanged entries are left out."""
    added, removed, changed = _compare(old.adapters, new.adapters)
    models_added, models_removed, models_changed = _compare(old.models, new.models)
    return ConfigReloaded(
        source=new.source,
        adapters_added=added,
        adapters_removed=removed,
        adapters_changed=changed,
        models_added=models_added,
        models_removed=models_removed,
        models_changed=models_changed,
    )


def _compare(
    old: Mapping[str, T], new: Mapping[str, T]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return (
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name in old and old[name] != new[name]),
    )
