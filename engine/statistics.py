"""What `Engine.statistics()` tells: put together from what every part counts by itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from adapters.actor import AdapterActor
from adapters.contract import ProviderAdapter
from adapters.health import AdapterStatistics, ReportsStatistics
from bus import ActorRef, BusStatistics, StreamChannelStatistics, SupervisorStatistics
from tracestore import WriterStatistics

from .routing.availability import Availability
from .runtime.life import Life
from .runtime.running_adapter import RunningAdapter
from .runtime.runtime import Runtime


class ProviderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One provider that was needed so far.

    in_flight: calls that have one of `slots`; waiting: calls that have none yet. adapter: what it counts itself;
    None while it is down, or if it doesn't count.
    """

    provider: str
    running: bool
    in_flight: int
    waiting: int
    slots: int
    adapter: AdapterStatistics | None


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Before the start there is no supervisor and no writer; after the end, what they last counted.

    uptime_seconds: since the start; once closed, how long it was up. sessions: those somebody still holds.
    turns_running: under way now. turns_waiting: for an earlier turn of their session. providers: whose adapters
    were needed so far, with their calls. availability: of all that aren't simply available. prices_version: of the
    table in force.
    """

    state: Literal["new", "starting", "running", "closed"]
    uptime_seconds: float
    sessions: int
    turns_running: int
    turns_waiting: int
    providers: tuple[ProviderStatistics, ...]
    availability: tuple[Availability, ...]
    bus: BusStatistics
    streams: StreamChannelStatistics
    supervisor: SupervisorStatistics | None
    writer: WriterStatistics | None
    prices_version: str
    budget_waiting: int = 0
    """The calls that wait for room in a budget."""


def collect(runtime: Runtime, life: Life | None) -> EngineStatistics:
    """Ask every part."""
    sessions = list(runtime.sessions.states.values())
    supervisor = life.supervisor if life is not None else None
    writer = life.writer if life is not None else None
    return EngineStatistics(
        state=life.state if life is not None else "new",
        uptime_seconds=life.uptime_seconds if life is not None else 0.0,
        sessions=len(sessions),
        turns_running=sum(state.running is not None for state in sessions),
        turns_waiting=sum(state.waiting for state in sessions),
        providers=tuple(_provider(name, running) for name, running in runtime.adapters.running.items()),
        availability=runtime.availability.snapshot(),
        bus=runtime.bus.statistics(),
        streams=runtime.streams.statistics(),
        supervisor=supervisor.statistics() if supervisor is not None else None,
        writer=writer.statistics() if writer is not None else None,
        prices_version=runtime.prices.version,
        budget_waiting=runtime.budgets.waiting,
    )


def live_adapter(ref: ActorRef) -> ProviderAdapter | None:
    """The adapter of a running actor; None while it is down."""
    actor = ref.actor
    return actor.made if ref.running and isinstance(actor, AdapterActor) else None


def _provider(name: str, running: RunningAdapter) -> ProviderStatistics:
    slots = running.slots
    adapter = live_adapter(running.ref)
    return ProviderStatistics(
        provider=name,
        running=running.ref.running,
        in_flight=slots.used,
        waiting=slots.waiting,
        slots=slots.total,
        adapter=_counted(adapter),
    )


def _counted(adapter: object) -> AdapterStatistics | None:
    return adapter.statistics() if isinstance(adapter, ReportsStatistics) else None
