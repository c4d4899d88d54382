"""What images and videos share: which model may serve, and the scene of its call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from adapters import CapabilityError, ImageBlock
from adapters.contract import ProviderAdapter
from bus import CallboardError, ConfigurationError

from ..call_events import EventScene
from ..published_prices import published_name
from ..registry import ModelEntry
from ..routing import Named, Option, Route, expand
from ..running_adapter import RunningAdapter

if TYPE_CHECKING:
    from ..engine import Engine

ImageInput: TypeAlias = ImageBlock | bytes | str | Path
"""An image to begin with: a block, the bytes of a file, or where the file is."""


def image_block(given: ImageInput) -> ImageBlock:
    """Raises OSError; ValueError for what is no image."""
    match given:
        case ImageBlock():
            return given
        case bytes():
            return ImageBlock(data=given)
        case str() | Path():
            return ImageBlock.from_path(given)


def examiner(engine: Engine, check: Callable[[ProviderAdapter, Named], object]) -> Callable[[Named], Option]:
    """What tells of a model whether it can serve. check: raises CapabilityError if its adapter can't."""
    registry = engine.registry

    def examine(named: Named) -> Option:
        entry = named.entry
        obstacle: CallboardError | None = None
        try:
            check(engine.adapters.consult(registry.adapter_of(entry)), named)
        except (ConfigurationError, CapabilityError) as error:
            obstacle = error
        standing = engine.availability.standing(entry.adapter, named.model, engine.clock.now_us())
        return Option(named=named, obstacle=obstacle, standing=standing)

    return examine


def scene_of(
    engine: Engine, route: Route, running: RunningAdapter, caused_by: str | None, tags: Mapping[str, str]
) -> EventScene:
    return EventScene(
        bus=engine.bus,
        clock=engine.clock,
        prices=lambda: engine.prices,
        routing=route.decision,
        caused_by=caused_by,
        tags=dict(tags) or None,
        priced_as=published_name(running.entry, route.option.named.entry),
        settle=engine.middleware.settling,
    )


def named_model(engine: Engine, model: str) -> tuple[Named, ModelEntry]:
    """The one model of a name. Raises ConfigurationError."""
    named = expand(engine.registry, model, ()).named[0]
    return named, named.entry


Models: TypeAlias = str | Sequence[str] | None
"""A model by any of its names, or several in the order in which they may serve; None is the configured default."""
