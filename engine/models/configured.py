"""The models that an engine can be asked for: the models of models.yaml, and further models that its keys open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from callboard.adapters import AdapterCapabilities, ProviderAdapter
from callboard.bus import Clock, ConfigurationError
from callboard.tracestore import PriceTable

from ..routing.availability import AvailabilityTable, State
from ..routing.model_choice import overridden
from .catalogue import Catalogue, ModelInfo, default_catalogue
from .entries import AdapterEntry, ModelEntry, ModelKind
from .published_prices import published_name, published_provider
from .registry import ModelRegistry

Consult: TypeAlias = Callable[[AdapterEntry], ProviderAdapter]
"""An adapter to ask what needs no network. Raises ConfigurationError if there can be none."""


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for under its id, or any of its aliases."""

    id: str
    """``provider:name``."""
    provider: str
    """The name of its adapter."""
    wire_name: str
    """The provider's own name of the model."""
    kind: ModelKind
    """The kind of question that it answers."""
    aliases: tuple[str, ...]
    """Its further names."""
    listed: bool
    """Whether models.yaml lists it. Else the catalogue does, and its provider's key is there."""
    state: State | Literal["not_configured"]
    """Its availability as the engine has found it so far, or ``not_configured`` if a key is missing or no adapter
    can be made."""
    reason: str = ""
    """The reason why it is not available; empty if it is."""
    capabilities: AdapterCapabilities | None = None
    """Its abilities through its adapter, corrected by models.yaml; None if there is no adapter to ask."""
    input_cost_per_million: Decimal | None = None
    """USD for a million input tokens under the engine's prices of now; None if it is unpriced."""
    output_cost_per_million: Decimal | None = None
    """USD for a million output tokens under the engine's prices of now; None if it is unpriced."""
    info: ModelInfo | None = None
    """The catalogue's knowledge of it; None if there is none."""


def configured_models(
    registry: ModelRegistry, consult: Consult, availability: AvailabilityTable, prices: PriceTable, clock: Clock
) -> list[ConfiguredModel]:
    """All models that can be asked for: first the models of models.yaml, in their order. The others of each
    adapter follow, the best first."""
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
        """The models of the catalogue that an adapter's key opens, and that models.yaml doesn't list."""
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
        """Whether an adapter's address is its provider's, and not of a server that only speaks like it."""
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
