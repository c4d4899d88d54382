"""The snapshot of `Engine.statistics()`, collected from the counters of each part."""

from __future__ import annotations

from typing import Literal

import msgspec

from callboard.adapters.actor import AdapterActor
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.health import AdapterStatistics, ReportsStatistics
from callboard.bus import (
    ActorRef,
    BusStatistics,
    StreamChannelStatistics,
    SupervisorStatistics,
)
from callboard.tracestore import WriterStatistics

from ..routing.availability import Availability
from ..routing.rate_limits import RateLimits
from ..routing.rate_slots import RateLimit, RateLimitQueue
from ..runtime.adapters import RunningAdapter
from ..runtime.alone import OwnershipStatistics
from ..runtime.lifecycle import Life
from ..runtime.runtime import Runtime


class ProviderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one provider: its adapter, its calls and its rate limits."""

    provider: str
    """The provider."""
    running: bool
    """Whether the provider's adapter runs."""
    in_flight: int
    """The number of calls in progress. Each uses a slot."""
    waiting: int
    """The number of calls that wait for a slot."""
    slots: int
    """The maximum number of concurrent calls."""
    adapter: AdapterStatistics | None
    """The adapter's own counts; None while it does not run, or if it has no counts."""
    rate_limits: tuple[RateLimit, ...] = ()
    """The rate limits that are known, declared or learned."""
    rate_limit_queues: tuple[RateLimitQueue, ...] = ()
    """The calls that wait for rate limits, and the reasons."""


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an engine.

    Before the start, `supervisor` and `writer` are None. After the end, they have their last numbers.
    """

    state: Literal["new", "starting", "running", "closed"]
    """The state of the engine."""
    uptime_seconds: float
    """Seconds since the start. For a closed engine, seconds from start to end."""
    sessions: int
    """The number of sessions to which the host has a reference."""
    turns_running: int
    """The number of turns in progress."""
    turns_waiting: int
    """The number of turns that wait for an earlier turn of their session."""
    providers: tuple[ProviderStatistics, ...]
    """The providers that calls have used."""
    availability: tuple[Availability, ...]
    """The availability of providers and models in any other state than ``available``."""
    bus: BusStatistics
    """The statistics of the bus."""
    streams: StreamChannelStatistics
    """The statistics of the streams of turns."""
    supervisor: SupervisorStatistics | None
    """The statistics of the supervisor."""
    writer: WriterStatistics | None
    """The statistics of the trace's writer; None without a trace."""
    prices_version: str
    """The version of the current price table."""
    budget_waiting: int = 0
    """The number of calls that wait for room in a budget."""
    node: OwnershipStatistics | None = None
    """In a cluster with a shared store, the node's lease and its sessions."""


def collect(runtime: Runtime, life: Life | None) -> EngineStatistics:
    sessions = list(runtime.sessions.states.values())
    supervisor = life.supervisor if life is not None else None
    writer = life.writer if life is not None else None
    return EngineStatistics(
        state=life.state if life is not None else "new",
        uptime_seconds=life.uptime_seconds if life is not None else 0.0,
        sessions=len(sessions),
        turns_running=sum(state.running is not None for state in sessions),
        turns_waiting=sum(state.waiting for state in sessions),
        providers=tuple(
            _provider(name, running, runtime.rate_limits) for name, running in runtime.adapters.running.items()
        ),
        availability=runtime.availability.snapshot(),
        bus=runtime.bus.statistics(),
        streams=runtime.streams.statistics(),
        supervisor=supervisor.statistics() if supervisor is not None else None,
        writer=writer.statistics() if writer is not None else None,
        prices_version=runtime.prices.version,
        budget_waiting=runtime.budgets.waiting,
        node=runtime.cluster.statistics(),
    )


def live_adapter(ref: ActorRef) -> ProviderAdapter | None:
    """The adapter of a running actor; None while the actor is down."""
    actor = ref.actor
    return actor.made if ref.running and isinstance(actor, AdapterActor) else None


def _provider(name: str, running: RunningAdapter, limits: RateLimits) -> ProviderStatistics:
    slots = running.slots
    adapter = live_adapter(running.ref)
    return ProviderStatistics(
        provider=name,
        running=running.ref.running,
        in_flight=slots.used,
        waiting=slots.waiting,
        slots=slots.total,
        adapter=_counted(adapter),
        rate_limits=tuple(limits.of(name)),
        rate_limit_queues=tuple(limits.queues(name)),
    )


def _counted(adapter: object) -> AdapterStatistics | None:
    return adapter.statistics() if isinstance(adapter, ReportsStatistics) else None
