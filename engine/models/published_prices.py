"""Whose published prices a call has: an adapter may be called anything, its provider's price list isn't."""

from __future__ import annotations

from adapters.provider import provider_named

from .entries import AdapterEntry, ModelEntry


def published_name(adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """The ``provider:name`` of a model in published price tables; None if it is its id, or not known.

    The provider is that of `published_provider`. The name is what the provider calls the model.
    """
    provider = published_provider(adapter)
    if provider is None:
        return None
    name = f"{provider}:{model.wire_name}"
    return None if name == f"{adapter.name}:{model.wire_name}" else name


def published_provider(adapter: AdapterEntry) -> str | None:
    """The provider whose models an adapter serves, by its name in published tables; None if that isn't known.

    It is the adapter's `prices_as`; else the server that its address belongs to; else its type, if that is a
    provider's own.
    """
    if adapter.prices_as:
        return adapter.prices_as
    provider = provider_named(adapter.type)
    return None if provider is None else provider.vendor_name(adapter.config.options, adapter.config.base_url)
