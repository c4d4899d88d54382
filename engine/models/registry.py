"""The models of a configuration, their names, and the adapter that serves each.

A name is looked up in this order:

1. ``provider:name`` as listed;
2. an alias;
3. a provider's own name for a model, listed here or in the catalogue, or a short name in the catalogue, such as
``sonnet``;
4. any name, with an explicit provider that is configured, or with the default provider.

If the catalogue does not have the name either, it is sent to the provider unchanged. The model's abilities are
then unknown.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.adapters.provider import adapter_types, is_named_like, model_table, provider_named, tabled_vendors
from callboard.bus import ConfigurationError

from .catalogue import default_catalogue, nearest
from .entries import AdapterEntry, ModelEntry

if TYPE_CHECKING:
    import httpx


_MOST_FOUND = 1024
"""The maximum number of unlisted names that a registry caches with their models."""


class Resolved(msgspec.Struct, frozen=True):
    model: ModelEntry
    resolved_by: str
    """How the model was found: ``id``, ``alias``, ``native_name``, ``catalogue`` or ``passthrough``."""


class ModelRegistry:
    """The adapters and models of a configuration. It never changes.

    Args:
        adapters: The adapters by name.
        models: The models by id. Unset settings are filled from their adapters.
        default_model: The model for calls without a model.
        default_provider: The adapter for all unknown names. With None, such names are errors.
        source: The origin of the configuration, for messages.
        removed: Names that an earlier configuration of the same engine had. They are errors, and are never sent to
            a provider.
        client_names: The names for a gateway's clients, each with the models that serve it, in order of
            preference. A ``*`` in a name stands for any text.

    Raises:
        ConfigurationError: Two entries have the same name, or a name refers to a missing entry.
    """

    def __init__(
        self,
        adapters: Mapping[str, AdapterEntry],
        models: Mapping[str, ModelEntry],
        *,
        default_model: str | None = None,
        default_provider: str | None = None,
        source: str = "code",
        removed: Collection[str] = (),
        client_names: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.adapters = dict(adapters)
        self.models = {
            name: model.on(adapters[model.adapter]) if model.adapter in adapters else model
            for name, model in models.items()
        }
        self.default_model = default_model
        self.default_provider = default_provider
        self.source = source
        if default_provider is not None and default_provider not in self.adapters:
            hint = self._near(default_provider)
            raise ConfigurationError(f"{source}: default_provider: {default_provider!r} is not an adapter: {hint}")
        self._aliases = self._index_aliases()
        self._found: dict[str, Resolved] = {}
        self.plans: dict[str, Any] = {}
        """The plan of each name that was used, see `engine.routing.candidates`."""
        self.removed = frozenset(removed) - self.names
        self.client_names = {name: tuple(models) for name, models in (client_names or {}).items()}
        self._patterns = [
            (re.compile(".*".join(map(re.escape, name.split("*")))), models)
            for name, models in self.client_names.items()
            if "*" in name
        ]
        self._check_fallbacks()

    def serving(self, name: str) -> tuple[str, ...]:
        """The models that serve a name that a gateway's client uses, in order of preference.

        A name that is not in `client_names` is the name of a model. A listed name takes precedence over a model's
        own id or alias, which takes precedence over a pattern. An earlier pattern takes precedence over a later
        one.
        """
        listed = self.client_names.get(name)
        if listed is not None:
            return listed
        if name in self.models or name in self._aliases:
            return (name,)
        return next((models for pattern, models in self._patterns if pattern.fullmatch(name)), (name,))

    @property
    def names(self) -> frozenset[str]:
        """All ids and aliases."""
        return frozenset((*self.models, *self._aliases))

    def succeeding(self, previous: ModelRegistry) -> ModelRegistry:
        """This registry as the successor of an earlier one. Names that were removed become errors."""
        return self._with(previous.removed | previous.names, self.client_names)

    def _with(self, removed: Collection[str], client_names: Mapping[str, Sequence[str]]) -> ModelRegistry:
        return ModelRegistry(
            self.adapters,
            self.models,
            default_model=self.default_model,
            default_provider=self.default_provider,
            source=self.source,
            removed=removed,
            client_names=client_names,
        )

    def _check_fallbacks(self) -> None:
        named = [(f"models.{model.id}.fallback", model.fallback) for model in self.models.values()]
        named += [(f"gateway.names.{name}", models) for name, models in self.client_names.items()]
        for place, names in named:
            for name in names:
                try:
                    self.resolve(name)
                except ConfigurationError as error:
                    raise ConfigurationError(f"{self.source}: {place}: {error}") from error

    def _index_aliases(self) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for model in self.models.values():
            if model.adapter not in self.adapters:
                raise ConfigurationError(
                    f"{self.source}: models.{model.id}.adapter: {model.adapter!r} is not one of adapters: "
                    f"{', '.join(sorted(self.adapters)) or 'none'}"
                )
            for alias in model.aliases:
                if alias in aliases:
                    raise ConfigurationError(
                        f"{self.source}: models.{model.id}.aliases: {alias!r} already belongs to {aliases[alias]}"
                    )
                aliases[alias] = model.id
        return aliases

    def resolve(self, name: str, provider: str | None = None) -> Resolved:
        """Find the model for a name.

        Args:
            name: The name.
            provider: The name of the adapter that must serve the model; None allows any.

        Raises:
            ConfigurationError: The name is unknown or ambiguous, or belongs to another provider. For an unknown
                name, the text lists the nearest names.
        """
        if provider is not None:
            return self._at(name, provider)
        if name in self.models:
            return Resolved(self.models[name], "id")
        if name in self._aliases:
            return Resolved(self.models[self._aliases[name]], "alias")
        if name in self.removed:
            raise ConfigurationError(
                f"model {name!r} is no longer in {self.source}: a reload removed it. Known models: "
                f"{', '.join(sorted(self.names)) or 'none'}."
            )
        found = self._found.get(name)
        if found is None:
            found = self._look_for(name)
            if len(self._found) < _MOST_FOUND:
                self._found[name] = found
        return found

    def _look_for(self, name: str) -> Resolved:
        """Find the model for a name that is neither an id nor an alias here."""
        prefix, colon, rest = name.partition(":")
        if colon and prefix in self.adapters:
            return self._listed_at(prefix, rest) or self._unlisted_at(prefix, rest)
        native = [model for model in self.models.values() if model.wire_name == name]
        if len(native) == 1:
            return Resolved(native[0], "native_name")
        if native:
            raise ConfigurationError(
                f"model {name!r} is ambiguous. Use one of {', '.join(sorted(model.id for model in native))}"
            )
        return self._not_listed(name)

    def _at(self, name: str, provider: str) -> Resolved:
        """Find the model for a name at one adapter."""
        if provider not in self.adapters:
            raise ConfigurationError(self._no_adapter(provider))
        prefix, colon, rest = name.partition(":")
        entry = self.models.get(name) or self.models.get(self._aliases.get(name, ""))
        owner = entry.adapter if entry is not None else prefix if colon and prefix in self.adapters else provider
        if owner != provider:
            raise ConfigurationError(f"model {name!r} belongs to {owner}, not to provider={provider!r}")
        if entry is not None:
            return Resolved(entry, "id" if name in self.models else "alias")
        local = rest if colon and prefix == provider else name
        return self._listed_at(provider, local) or self._unlisted_at(provider, local)

    def _listed_at(self, adapter: str, name: str) -> Resolved | None:
        """An adapter's listed model, by its provider's name for the model or by its tier."""
        listed = [m for m in self.models.values() if m.adapter == adapter and name in (m.wire_name, m.tier)]
        return Resolved(listed[0], "native_name") if len(listed) == 1 else None

    def _unlisted_at(self, adapter: str, name: str) -> Resolved:
        """An adapter's unlisted model, by a name in the catalogue or by any name."""
        wire_name, is_listed = name_at(self.adapters[adapter], name)
        listed = self._listed_at(adapter, wire_name)
        if listed is not None:
            return listed
        entry = ModelEntry(id=f"{adapter}:{wire_name}", adapter=adapter, wire_name=wire_name)
        return Resolved(entry.on(self.adapters[adapter]), "catalogue" if is_listed else "passthrough")

    def _not_listed(self, name: str) -> Resolved:
        """The model for a name without a provider: from the catalogue, or of the default provider."""
        placed = place_in_catalogue(self.adapters, name, self.default_provider)
        if placed is not None:
            adapter, local = placed
            return self._listed_at(adapter, local) or self._unlisted_at(adapter, local)
        if self.default_provider is None:
            raise ConfigurationError(self._unknown(name))
        refuse_foreign(self.adapters[self.default_provider], name)
        return self._unlisted_at(self.default_provider, name)

    def _no_adapter(self, name: str) -> str:
        return f"{name!r} is not an adapter in {self.source}: {self._near(name)}"

    def _near(self, name: str) -> str:
        if near := nearest(name, self.adapters):
            return f"did you mean {near[0]!r}?"
        return f"adapters there: {', '.join(sorted(self.adapters)) or 'none'}."

    def _unknown(self, name: str) -> str:
        prefix, colon, _ = name.partition(":")
        if colon and prefix in adapter_types():
            return f"unknown model {name!r}: {self._no_adapter(prefix)} Add it to the adapters there."
        model_names = sorted(self.names)
        near = nearest(name, {*model_names, *names_at(self.adapters.values())}, most=3)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"known models: {', '.join(model_names) or 'none'}."
        )
        return (
            f"unknown model {name!r}: {hint} Add the model to {self.source}, write it as "
            f"'provider:name', or set default_provider there."
        )

    def adapter_of(self, model: ModelEntry) -> AdapterEntry:
        """The adapter that serves a model.

        Raises:
            ConfigurationError: Its key is missing.
        """
        entry = self.adapters[model.adapter]
        if entry.missing_key is not None:
            raise ConfigurationError(
                f"model {model.id!r} is not configured: adapter {entry.name!r} needs a key in the "
                f"environment variable {entry.missing_key}, which is not set. Or store one with `callboard keys "
                f"set {entry.missing_key}`"
            )
        return entry

    def with_http_client(self, client: httpx.AsyncClient) -> ModelRegistry:
        """This registry, with a client for the adapters that have no client of their own."""
        fuller = copy.copy(self)
        fuller.adapters = {
            name: msgspec.structs.replace(entry, config=msgspec.structs.replace(entry.config, http_client=client))
            if entry.config.http_client is None
            else entry
            for name, entry in self.adapters.items()
        }
        fuller.plans = {}
        return fuller

    def with_client_names(self, names: Mapping[str, Sequence[str]]) -> ModelRegistry:
        """This registry with other names for a gateway's clients, see `client_names`.

        Raises:
            ConfigurationError: A name refers to a missing model.
        """
        return self._with(self.removed, names)

    def with_adapter(self, entry: AdapterEntry) -> ModelRegistry:
        """This registry with one more adapter. It replaces the environment's adapter of the same name.

        Raises:
            ConfigurationError: The configuration has an adapter of that name.
        """
        configured = self.adapters.get(entry.name)
        if configured is not None and not configured.offered:
            raise ConfigurationError(
                f"adapter {entry.name!r} already exists in {self.source}. Register yours with another name"
            )
        fuller = copy.copy(self)
        fuller.adapters = {**self.adapters, entry.name: entry}
        fuller._found, fuller.plans = {}, {}  # a cached name may now belong to the new adapter
        return fuller


# --- Names in published price tables ---


def published_name(adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """The ``provider:name`` of a model in published price tables.

    The provider is that of `published_provider`. The name is the provider's own name of the model.
    """
    return published_name_at(published_provider(adapter), adapter, model)


def published_name_at(provider: str | None, adapter: AdapterEntry, model: ModelEntry) -> str | None:
    """Like `published_name`, but with the result of `published_provider` as an argument.

    A vendor's own model has the vendor's prices at any address, for example at a gateway. The trace stores the
    name as `priced_as`.
    """
    if not provider:
        place = default_catalogue().locate(model.wire_name)
        if place is None or place[0] not in tabled_vendors():
            return None
        provider = place[0]
    name = f"{provider}:{model.wire_name}"
    return None if name == f"{adapter.name}:{model.wire_name}" else name


def published_provider(adapter: AdapterEntry) -> str | None:
    """The provider of an adapter's models, by its name in published tables.

    The first of these that is set: the adapter's `prices_as`, the server at its address, and its type, if the type
    belongs to one provider.
    """
    if adapter.prices_as:
        return adapter.prices_as
    provider = provider_named(adapter.type)
    return None if provider is None else provider.vendor_name(adapter.config.options, adapter.config.base_url)


# --- Unlisted names ---


def place_in_catalogue(
    adapters: Mapping[str, AdapterEntry], name: str, default_provider: str | None
) -> tuple[str, str] | None:
    """The adapter for a model of the catalogue, and the model's name at that adapter's provider."""
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
        raise ConfigurationError(f"model {name!r} is ambiguous. Use one of {ways}")
    return (able[0], local) if able else None


def name_at(adapter: AdapterEntry, name: str) -> tuple[str, bool]:
    """The name of a model at an adapter's provider, and whether the provider's table lists the name. An unlisted
    name is not changed.
    """
    table = model_table(published_provider(adapter) or "")
    if table is None:
        return name, False
    short = table.by_alias(name)
    return (short.id, True) if short is not None else (name, table.listed(name) is not None)


def names_at(adapters: Iterable[AdapterEntry]) -> list[str]:
    """All ids and short names of the models that some adapters serve, from their tables."""
    tables = [model_table(provider) for provider in {published_provider(entry) or "" for entry in adapters}]
    rows = [row for table in tables if table is not None for row in table.rows]
    return sorted({name for row in rows for name in (row.id, *row.aliases)})


def refuse_foreign(adapter: AdapterEntry, name: str) -> None:
    """If an adapter serves only one vendor's models, raise ConfigurationError for another vendor's model."""
    provider = published_provider(adapter)
    if provider not in tabled_vendors():
        return  # The server may have models of any vendor.
    owners = default_catalogue().owners(name)
    if owners and provider not in owners:
        owner_names = " or ".join(owners[:3])
        raise ConfigurationError(
            f"model {name!r} belongs to {owner_names}, and no adapter serves it. Add one to models.yaml, or "
            f"use {adapter.name}:{name} if it is a model of {adapter.name}"
        )
    for vendor in tabled_vendors():
        if vendor != provider and is_named_like(vendor, name):
            raise ConfigurationError(
                f"model {name!r} is unknown and looks like a model of {vendor}, but the default provider "
                f"is {adapter.name}. Use {vendor}:{name}, or pass provider={vendor!r}"
            )
