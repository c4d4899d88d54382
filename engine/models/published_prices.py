"""Whose published prices a call has: an adapter may be called anything, its provider's price list isn't."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from .entries import AdapterEntry, ModelEntry

_BY_TYPE = {
    **{name: name for name in ("anthropic", "cohere", "gemini", "local", "ollama", "openai")},
    "bedrock": "aws",
    "voyage": "voyageai",
}
"""Adapter types that are a provider's own, and the provider's name in price tables."""

_LOCAL_SERVERS = frozenset({"lmstudio"})


def published_name(adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """The ``provider:name`` of a model in published price tables; None if it is its id, or not known.

    The provider is the adapter's `prices_as`; else the server that its address belongs to; else its type, if that
    is a provider's own. The name is what the provider calls the model.
    """
    provider = published_provider(adapter)
    if provider is None:
        return None
    name = f"{provider}:{model.wire_name}"
    return None if name == f"{adapter.name}:{model.wire_name}" else name


def published_provider(adapter: AdapterEntry) -> str | None:
    """The provider whose models an adapter serves, by its name in published tables; None if that isn't known."""
    return adapter.prices_as or _known_server(adapter) or _BY_TYPE.get(adapter.type)


def _known_server(adapter: AdapterEntry) -> str | None:
    quirks = adapter.config.options.get("quirks") if adapter.type == "openai_compatible" else None
    base = quirks.get("base") if isinstance(quirks, dict) else quirks
    return _server(base if isinstance(base, str) else None, adapter.config.base_url)


@lru_cache(maxsize=256)
def _server(base: str | None, url: str | None) -> str | None:
    """By the name of its quirks, or else by its address."""
    from adapters.providers.openai_compatible.quirks.servers import QUIRKS, quirks_name

    if base in QUIRKS:
        name = base
    elif url is not None:
        name = quirks_name(url if urlsplit(url).scheme else f"https://{url}")
    else:
        return None
    if name in _LOCAL_SERVERS:
        return "local"
    return None if name == "default" else name
