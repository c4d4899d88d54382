"""The models that an engine can use: the models of models.yaml, and others for which it has a key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callboard.adapters import AdapterCapabilities, AdapterConfig, ProviderAdapter
from callboard.adapters.keys import address_variable
from callboard.adapters.provider import Provider, providers, registered_type
from callboard.bus import Clock, ConfigurationError
from callboard.bus.log import Log
from callboard.bus.values.base import Json
from callboard.tracestore import PriceTable
from callboard.tracestore.home import home_folder

from ..keys import Variables, keys_file, read_keys, source_of
from ..routing.availability import AvailabilityTable, State
from ..routing.model_choice import overridden
from .catalogue import Catalogue, ModelInfo, default_catalogue
from .entries import AdapterEntry, ModelEntry, ModelKind
from .models_yaml import Reader, read_yaml
from .registry import ModelRegistry, published_name, published_provider

Consult: TypeAlias = Callable[[AdapterEntry], ProviderAdapter]
"""Returns an adapter, for facts that need no network. Raises ConfigurationError if none can be made."""


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be requested by its id, or by any of its aliases."""

    id: str
    """``provider:name``."""
    provider: str
    """The name of the model's adapter."""
    wire_name: str
    """The provider's own name of the model."""
    kind: ModelKind
    """The kind of request that the model answers."""
    aliases: tuple[str, ...]
    """The other names of the model."""
    listed: bool
    """Whether models.yaml lists the model. Otherwise the catalogue lists it, and its provider's key is set."""
    state: State | Literal["not_configured"]
    """The current availability of the model in this engine; ``not_configured`` if a key is missing or no adapter
    can be made.
    """
    reason: str = ""
    """The reason why the model is not available; empty if it is available."""
    capabilities: AdapterCapabilities | None = None
    """The model's abilities through its adapter, corrected by models.yaml; None without an adapter."""
    input_cost_per_million: Decimal | None = None
    """USD for a million input tokens at the engine's current prices; None if it is unpriced."""
    output_cost_per_million: Decimal | None = None
    """USD for a million output tokens at the engine's current prices; None if it is unpriced."""
    info: ModelInfo | None = None
    """The catalogue's information about the model; None if the catalogue does not have the model."""


def configured_models(
    registry: ModelRegistry, consult: Consult, availability: AvailabilityTable, prices: PriceTable, clock: Clock
) -> list[ConfiguredModel]:
    """All usable models: first the models of models.yaml, in their order, then the other models of each adapter,
    the best first.
    """
    return list(_ModelList(registry, consult, availability, prices, clock).models())


class _ModelList:
    def __init__(
        self,
        registry: ModelRegistry,
        consult: Consult,
        availability: AvailabilityTable,
        prices: PriceTable,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._consult = consult
        self._availability = availability
        self._prices = prices
        self._clock = clock
        self._catalogue: Catalogue = default_catalogue()

    def models(self) -> Iterator[ConfiguredModel]:
        for entry in self._registry.models.values():
            yield self._model(entry, entry.aliases, listed=True)
        for adapter in self._registry.adapters.values():
            yield from self._others(adapter)

    def _others(self, adapter: AdapterEntry) -> Iterator[ConfiguredModel]:
        """The models of the catalogue that an adapter can serve and models.yaml doesn't list."""
        provider = published_provider(adapter)
        if provider is None or adapter.missing_key is not None or not self._is_the_providers_own(adapter):
            return
        listed = {entry.wire_name for entry in self._registry.models.values() if entry.adapter == adapter.name}
        for info in self._catalogue.models(provider):
            if info.supports_tools is None or not info.general or info.id in listed:
                continue
            entry = ModelEntry(id=f"{adapter.name}:{info.id}", adapter=adapter.name, wire_name=info.id)
            aliases = tuple(alias for alias in info.aliases if alias not in self._registry.names)
            yield self._model(entry.on(adapter), aliases, listed=False)

    def _is_the_providers_own(self, adapter: AdapterEntry) -> bool:
        """Whether an adapter's address is the address of its provider, not of a compatible server."""
        from callboard.adapters.http.adapter import HttpAdapter

        try:
            found = self._consult(adapter)
        except ConfigurationError:
            return False
        if not isinstance(found, HttpAdapter):
            return False
        return urlsplit(found.base_url).hostname == urlsplit(found.wire.default_base_url).hostname

    def _model(self, entry: ModelEntry, aliases: tuple[str, ...], *, listed: bool) -> ConfiguredModel:
        adapter = self._registry.adapters[entry.adapter]
        routed, published = f"{adapter.name}:{entry.wire_name}", published_name(adapter, entry)
        state, reason = self._state(adapter, routed)
        capabilities = None
        try:
            found = self._consult(adapter).get_capabilities(entry.wire_name)
            capabilities = overridden(found, entry.capabilities)
        except ConfigurationError as error:
            state, reason = "not_configured", str(error)
        row = self._prices.find(routed, self._clock.now_us(), priced_as=published)
        return ConfiguredModel(
            id=entry.id,
            provider=adapter.name,
            wire_name=entry.wire_name,
            kind=entry.kind,
            aliases=aliases,
            listed=listed,
            state=state,
            reason=reason,
            capabilities=capabilities,
            input_cost_per_million=None if row is None else row.per_million("input"),
            output_cost_per_million=None if row is None else row.per_million("output"),
            info=self._catalogue.info(published or routed),
        )

    def _state(self, adapter: AdapterEntry, model: str) -> tuple[State | Literal["not_configured"], str]:
        if adapter.missing_key is not None:
            return "not_configured", f"{adapter.missing_key} is not set"
        state = self._availability.state(adapter.name, model)
        troubled = [
            found.reason
            for found in self._availability.snapshot()
            if found.provider == adapter.name and found.model in (None, model) and found.state == state
        ]
        return state, troubled[0] if troubled else ""


# --- Loading a registry ---

_log = Log("engine.config")

FROM_ENVIRONMENT = "the environment (no models.yaml)"
"""`ModelRegistry.source` if no file lists the adapters."""


def key_variables() -> Mapping[str, str]:
    """The variables that may contain keys: the variables of the environment, then those of `callboard keys`.

    A file of keys that other users may read is ignored with a warning.
    """
    stored = read_keys(keys_file())
    if stored.fault is not None:
        _log.warning("keys_ignored", file=str(stored.path), reason=stored.fault, fix=stored.fix)
    return Variables(os.environ, stored)


def load_registry(path: Path | str | None, environ: Mapping[str, str] | None = None) -> ModelRegistry:
    """Load the registry from a file. Without a file, make it from the keys that are set.

    The default file is $CALLBOARD_HOME/models.yaml. Without the variable, it is ~/.callboard/models.yaml.

    Args:
        path: The file; None uses the default file.
        environ: The variables in which keys are found. None uses the environment first, and then the keys of
            `callboard keys`.

    Raises:
        ConfigurationError: The file is wrong. The text names the file, the key and the expected value.
    """
    environ = key_variables() if environ is None else environ
    if path is not None:
        return read_models_yaml(Path(path), environ)
    default = home_folder() / "models.yaml"
    return read_models_yaml(default, environ) if default.exists() else registry_from_env(environ)


def registry_from_env(environ: Mapping[str, str]) -> ModelRegistry:
    """The registry from the environment: the providers with keys, the usual providers, and the local model, which
    needs no key.

    A provider's descriptor names the variables of its key and its address. The default provider is the first one
    with a key that supports conversations.
    """
    adapters: dict[str, AdapterEntry] = {}
    models: dict[str, ModelEntry] = {}
    default: str | None = None
    for provider in providers():
        entry = _with_key(provider, environ)
        if entry is not None:
            adapters[entry.name] = entry
            if default is None and entry.missing_key is None and "chat" in provider.kinds:
                default = entry.name
    for provider in providers():
        for preset in provider.presets:
            config = AdapterConfig(options=preset.options)
            adapters[preset.name] = AdapterEntry(name=preset.name, type=provider.name, config=config, offered=True)
            model = f"{preset.name}:{preset.model}"
            models[model] = ModelEntry(
                id=model, adapter=preset.name, wire_name=preset.model, aliases=(preset.name,), kind=preset.kind
            )
    return ModelRegistry(adapters, models, default_provider=default, source=FROM_ENVIRONMENT)


def _with_key(provider: Provider, environ: Mapping[str, str]) -> AdapterEntry | None:
    """A provider's adapter with the key in the environment.

    Without a key, only a usual provider has an adapter; for others, the result is None.
    """
    variable = next((name for name in provider.key_variables if environ.get(name)), None)
    if variable is None and not provider.expected:
        return None
    address_from = address_variable(provider.name, variable, environ)
    url = None if address_from is None else environ[address_from]
    options: dict[str, Json] = {"find_protocol": True} if provider.name == "openai" and url is not None else {}
    return AdapterEntry(
        name=provider.name,
        type=provider.name,
        config=AdapterConfig(api_key=environ[variable] if variable else None, base_url=url, options=options),
        missing_key=None if variable else provider.key_variables[0],
        key_from=source_of(environ, variable) if variable else None,
        address_from=address_from,
        offered=True,
    )


def read_models_yaml(path: Path, environ: Mapping[str, str] | None = None) -> ModelRegistry:
    """Read the registry from a models.yaml. Unless the file has `only: true`, the environment's models are added.

    See `load_registry`. An adapter, a model or an alias in the file replaces the one from the environment. If the
    file has no `default_provider`, the environment's default provider is used.
    """
    environ = key_variables() if environ is None else environ
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return Reader(path, environ, registry_from_env(environ)).registry(read_yaml(text, str(path)))


HostAdapter: TypeAlias = ProviderAdapter | Callable[[], ProviderAdapter]
"""An adapter, or a function that makes one."""


def entry_of(name: str, adapter: HostAdapter, prices_as: str | None = None) -> AdapterEntry:
    """The entry of an adapter that a host passes."""
    if not name or ":" in name:
        raise ConfigurationError(
            f"an adapter can't be named {name!r}: a name has no ':', because models are named name:model"
        )
    made = not isinstance(adapter, type) and isinstance(adapter, ProviderAdapter)
    if not made and not callable(adapter):
        raise ConfigurationError(
            f"{type(adapter).__name__} {name!r} is not an adapter: expected an object with all members "
            f"of `ProviderAdapter`, or a function without arguments that returns one"
        )
    config, kind = getattr(adapter, "config", None), type(adapter)
    return AdapterEntry(
        name=name,
        type=registered_type(kind) or f"{kind.__module__}:{kind.__qualname__}" if made else "",
        config=config if isinstance(config, AdapterConfig) else AdapterConfig(),
        prices_as=prices_as,
        make=(lambda: adapter) if made else adapter,  # type: ignore[arg-type, return-value]
        shared=made,
    )
