"""Adapters that a host makes itself, as entries of a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from callboard.adapters import AdapterConfig, ProviderAdapter
from callboard.adapters.registry import registered_type
from callboard.bus import ConfigurationError

from .entries import AdapterEntry

Provider: TypeAlias = ProviderAdapter | Callable[[], ProviderAdapter]
"""An adapter, or what makes one."""


def entry_of(name: str, adapter: Provider, prices_as: str | None = None) -> AdapterEntry:
    """The entry of an adapter that a host gives.

    Args:
        name: The name of the adapter.
        adapter: The adapter, or a function that makes one.
        prices_as: The provider whose published prices its models have.

    Raises:
        ConfigurationError: It is no adapter, or the name can't be one.
    """
    if not name or ":" in name:
        raise ConfigurationError(f"an adapter can't be called {name!r}: its models are called name:model")
    made = not isinstance(adapter, type) and isinstance(adapter, ProviderAdapter)
    if not made and not callable(adapter):
        raise ConfigurationError(
            f"{type(adapter).__name__} {name!r} is no adapter: give an object with all that `ProviderAdapter` "
            "has, or a function without arguments that makes one"
        )
    config = getattr(adapter, "config", None)
    return AdapterEntry(
        name=name,
        type=_type_of(adapter) if made else "",
        config=config if isinstance(config, AdapterConfig) else AdapterConfig(),
        prices_as=prices_as,
        make=(lambda: adapter) if made else adapter,  # type: ignore[arg-type, return-value]
        shared=made,
    )


def _type_of(adapter: object) -> str:
    """The registered name of an adapter's class, or else the place of the class."""
    kind = type(adapter)
    return registered_type(kind) or f"{kind.__module__}:{kind.__qualname__}"
