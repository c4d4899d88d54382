"""The name of a call's model in published price tables. An adapter may be called anything; its provider's price
list isn't.
"""

from __future__ import annotations

from callboard.adapters.provider import provider_named

from .entries import AdapterEntry, ModelEntry


def published_name(adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """The ``provider:name`` of a model in published price tables.

    The provider is the one of `published_provider`. The name is the provider's own name of the model.

    Returns:
        None if it is the model's id, or not known.
    """
    return name_at(published_provider(adapter), adapter, model)


def name_at(provider: str | None, adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """What `published_name` gives, for those who know the adapter's `published_provider`."""
    if provider is None:
        return None
    name = f"{provider}:{model.wire_name}"
    return None if name == f"{adapter.name}:{model.wire_name}" else name


def published_provider(adapter: AdapterEntry) -> str | None:
    """The provider whose models an adapter serves, by its name in published tables.

    It is the adapter's `prices_as`, or else the server that its address belongs to, or else its type, if that is a
    provider's own.

    Returns:
        None if it isn't known.
    """
    if adapter.prices_as:
        return adapter.prices_as
    provider = provider_named(adapter.type)
    return None if provider is None else provider.vendor_name(adapter.config.options, adapter.config.base_url)
