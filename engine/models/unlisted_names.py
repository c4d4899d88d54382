"""The meaning of names that no models.yaml lists: a model of the catalogue, or of the default provider.

The provider is never guessed. A model of the catalogue goes to the adapter that serves its provider. Any other
name goes to the default provider, unless it is plainly a model of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from callboard.adapters.registry import is_named_like, model_table, tabled_vendors
from callboard.bus import ConfigurationError

from .catalogue import default_catalogue
from .published_prices import published_provider

if TYPE_CHECKING:
    from .entries import AdapterEntry


def place_in_catalogue(
    adapters: Mapping[str, AdapterEntry], name: str, default_provider: str | None
) -> tuple[str, str] | None:
    """The adapter for a model that the catalogue knows, and the model's name or short name there.

    Returns:
        None if the model is not in the catalogue, or if no adapter serves its provider.

    Raises:
        ConfigurationError: Several adapters could serve it.
    """
    found = default_catalogue().locate(name)
    if found is None:
        return None
    provider, local = found
    serving = [entry for entry in adapters.values() if published_provider(entry) == provider]
    with_key = [entry for entry in serving if entry.missing_key is None] or serving
    able = [entry.name for entry in with_key if not entry.offered] or [entry.name for entry in with_key]
    if len(able) > 1 and default_provider in able:
        able = [default_provider]
    if len(able) > 1:
        ways = ", ".join(sorted(f"{adapter}:{local}" for adapter in able))
        raise ConfigurationError(f"model {name!r} is ambiguous: say one of {ways}")
    return (able[0], local) if able else None


def name_at(adapter: AdapterEntry, name: str) -> tuple[str, bool]:
    """The name by which an adapter's provider knows a model, and whether its table lists it. A name outside the
    table stays as it is.
    """
    table = model_table(published_provider(adapter) or "")
    if table is None:
        return name, False
    short = table.by_alias(name)
    return (short.id, True) if short is not None else (name, table.listed(name) is not None)


def names_at(adapters: Iterable[AdapterEntry]) -> list[str]:
    """All ids and short names in the tables of the models that some adapters serve."""
    tables = [model_table(provider) for provider in {published_provider(entry) or "" for entry in adapters}]
    rows = [row for table in tables if table is not None for row in table.rows]
    return sorted({name for row in rows for name in (row.id, *row.aliases)})


def refuse_foreign(adapter: AdapterEntry, name: str) -> None:
    """Raise ConfigurationError for the name of another vendor's model, if an adapter serves one vendor's own."""
    own = published_provider(adapter)
    if own not in tabled_vendors():
        return  # a server may have anybody's
    owners = default_catalogue().owners(name)
    if owners and own not in owners:
        whose = " or ".join(owners[:3])
        raise ConfigurationError(
            f"model {name!r} is one of {whose}'s, which no adapter is known to serve; add one to models.yaml, or "
            f"say {adapter.name}:{name} if it is meant for {adapter.name}"
        )
    for vendor in tabled_vendors():
        if vendor != own and is_named_like(vendor, name):
            raise ConfigurationError(
                f"model {name!r} is not known, and looks like one of {vendor}'s, where the default provider is "
                f"{adapter.name}; say {vendor}:{name}, or provider={vendor!r}"
            )
