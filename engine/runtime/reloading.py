"""A new configuration in place of the one in force: the difference between the two, and the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from callboard.bus import ConfigReloaded

from ..models.registry import ModelRegistry
from .adapter_pool import make_spare
from .runtime import Runtime

T = TypeVar("T")


async def take_over(runtime: Runtime, fresh: ModelRegistry) -> ConfigReloaded:
    """Put a configuration in the place of the one in force.

    Adapters that have changed or gone are stopped when their last turn is over.

    Returns:
        The differences, which are published.

    Raises:
        ConfigurationError: An adapter can't be made; then nothing has changed.
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
    """The event that says the differences. An entry that is the same in both is in none of its lists."""
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
