"""What calls that are no conversation share: which model may serve, and the scene of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adapters import CapabilityError
from adapters.contract import ProviderAdapter
from bus import CallboardError, ConfigurationError

from ..models.published_prices import published_name
from ..routing.candidates import Named, Option, Route
from ..runtime.running_adapter import RunningAdapter
from ..runtime.runtime import Runtime
from .events import EventScene
from .settings import server_of


def examiner(runtime: Runtime, check: Callable[[ProviderAdapter, Named], object]) -> Callable[[Named], Option]:
    """What tells of a model whether it can serve. check: raises CapabilityError if its adapter can't."""
    registry = runtime.registry

    def examine(named: Named) -> Option:
        entry = named.entry
        obstacle: CallboardError | None = None
        try:
            check(runtime.adapters.consult(registry.adapter_of(entry)), named)
        except (ConfigurationError, CapabilityError) as error:
            obstacle = error
        standing = runtime.availability.standing(entry.adapter, named.model, runtime.clock.now_us())
        return Option(named=named, obstacle=obstacle, standing=standing)

    return examine


def scene_of(
    runtime: Runtime,
    route: Route,
    running: RunningAdapter,
    caused_by: str | None,
    tags: Mapping[str, str],
    *,
    estimated_input_tokens: int | None = None,
) -> EventScene:
    """What the events of such a call say besides what happens in it."""
    return EventScene(
        bus=runtime.bus,
        clock=runtime.clock,
        prices=lambda: runtime.prices,
        routing=route.decision,
        caused_by=caused_by,
        tags=dict(tags) or None,
        estimated_input_tokens=estimated_input_tokens,
        priced_as=published_name(running.entry, route.option.named.entry),
        server=server_of(running),
        settle=runtime.middleware.settling,
        secure=runtime.host.secure,
    )
