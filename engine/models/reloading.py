"""What a new configuration changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from bus import ConfigReloaded

from .registry import ModelRegistry

T = TypeVar("T")


def difference(old: ModelRegistry, new: ModelRegistry) -> ConfigReloaded:
    """The event that tells it; unchanged entries are in none of its lists."""
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
