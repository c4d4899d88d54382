"""The catalogue: all known models, with their abilities and published prices.

It has three sources, which are read at their first use, and never at import:

* The tables in the folders of the providers (`adapters.provider`) have the abilities of models. The adapters use
  the same tables.
* The published prices (`tracestore.prices.files`) list the models of about forty more providers, most of them with
  their window. The abilities of these models are unknown (None), never guessed. `callboard prices update` fetches
  prices and names of newer models.
* `callboard models update` fetches limits and abilities, also for models that no table has (`known_models`). An
  adapter's own table takes precedence.

A name that isn't in the catalogue also works: it is sent to the provider unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from callboard.adapters.provider import model_table, published_vendor, tabled_vendors, vendors
from callboard.bus import SYSTEM_CLOCK, CallboardError, Clock, ConfigurationError
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore import PriceTable
from callboard.tracestore.home import home_folder

if TYPE_CHECKING:
    from callboard.adapters.provider import ModelRow
    from callboard.tracestore.prices.files import Snapshot, SnapshotModel


FILE_NAME = "known-models.json"
FORMAT = 1
MOST_BYTES = 64_000_000

_CHATS = ("chat", "responses")
_CAPABILITIES: Mapping[str, str] = {
    "tools": "supports_function_calling",
    "vision": "supports_vision",
    "reasoning": "supports_reasoning",
    "structured": "supports_response_schema",
}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class KnownModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model in the file of `callboard models update`. None means unknown."""

    id: str
    """``provider:name``, with the provider's name in price tables."""
    context_window: int | None = None
    """The maximum number of input tokens."""
    max_output: int | None = None
    """The maximum number of output tokens."""
    tools: bool | None = None
    vision: bool | None = None
    reasoning: bool | None = None
    structured: bool | None = None
    retires: str | None = None
    """The date of the model's retirement, as YYYY-MM-DD."""


class KnownModels(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["known-models"]
    """A mark that identifies the file format."""
    format: int
    date: str
    """The day of the list, as YYYY-MM-DD."""
    source: str
    models: tuple[KnownModel, ...]


NOTHING = KnownModels(kind="known-models", format=FORMAT, date="", source="", models=())


def known_models(home: Path) -> KnownModels:
    """Read the known models of a folder; empty if the folder has no such file."""
    path = home / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return decode(data, str(path))


def decode(data: bytes, source: str) -> KnownModels:
    try:
        found = msgspec.json.decode(data, type=KnownModels)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigurationError(f"{source}: not a list of known models: {error}") from error
    if found.format != FORMAT:
        raise ConfigurationError(f"{source}: format {found.format}; this version reads {FORMAT}")
    return found


def encode(models: KnownModels) -> bytes:
    return msgspec.json.format(msgspec.json.encode(models), indent=1) + b"\n"


def convert(data: Json, *, source: str, day: str) -> KnownModels:
    """Convert LiteLLM's list to Callboard's format."""
    if not isinstance(data, dict):
        raise ConfigurationError(f"{source}: expected LiteLLM's object of models")
    names = {theirs: vendor.name for vendor in vendors() for theirs in vendor.litellm}
    models: dict[str, KnownModel] = {}
    for name, facts in data.items():
        if not isinstance(facts, dict) or facts.get("mode") not in _CHATS:
            continue
        provider = facts.get("litellm_provider")
        if isinstance(provider, str) and provider:
            model = _model(name.removeprefix(f"{provider}/"), names.get(provider, provider), facts)
            models[model.id] = model
    if not models:
        raise ConfigurationError(f"{source}: it has no model in a known format")
    ordered = tuple(models[name] for name in sorted(models))
    return KnownModels(kind="known-models", format=FORMAT, date=day, source=source, models=ordered)


def _model(name: str, provider: str, facts: JsonObject) -> KnownModel:
    can: dict[str, Any] = {
        ours: facts[theirs] for ours, theirs in _CAPABILITIES.items() if isinstance(facts.get(theirs), bool)
    }
    retires = facts.get("deprecation_date")
    return KnownModel(
        id=f"{provider}:{name}",
        context_window=_tokens(facts.get("max_input_tokens")),
        max_output=_tokens(facts.get("max_output_tokens")),
        retires=retires if isinstance(retires, str) and _DAY.fullmatch(retires) else None,
        **can,
    )


def _tokens(value: Json) -> int | None:
    """A limit as an integer; None if the value is not a valid limit."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None


def nearest(name: str, names: Iterable[str], *, most: int = 1) -> list[str]:
    """The known names that are similar to a name, the nearest first. Empty if none is similar."""
    from difflib import get_close_matches  # needed for error messages only

    return get_close_matches(name, names, n=most)


M = TypeVar("M", "SnapshotModel", "KnownModel")

CAPABILITIES = {
    "tools": "supports_tools",
    "vision": "supports_vision",
    "reasoning": "supports_reasoning",
    "structured_output": "supports_structured_output",
}
"""The abilities by which models can be chosen, and the field of `ModelInfo` for each."""

_SAME = {"images": "vision", "thinking": "reasoning"}
"""Other names of two abilities. Adapters use these names."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Information about a model. None means unknown.

    The information comes from shipped tables, or from `callboard models update`, never from a request to the
    provider.
    """

    id: str
    """The provider's own name of the model."""
    provider: str
    """The provider's name in price tables."""
    display_name: str
    """A name for people."""
    context_window: int | None = None
    """The maximum number of tokens of input and output together."""
    max_output: int | None = None
    """The maximum number of output tokens."""
    supports_tools: bool | None = None
    """Whether the model calls tools."""
    supports_vision: bool | None = None
    """Whether the model reads images."""
    supports_reasoning: bool | None = None
    """Whether the model can reason."""
    supports_structured_output: bool | None = None
    """Whether the model supports output that follows a schema."""
    input_cost_per_million: Decimal | None = None
    """The exact price in USD of a million input tokens today, for a small prompt at the standard tier."""
    output_cost_per_million: Decimal | None = None
    """The exact price in USD of a million output tokens; None if unknown."""
    aliases: tuple[str, ...] = ()
    """Short names for the model in Callboard."""
    general: bool = True
    """Whether the model is for general use. Other models have a special purpose, or are only for selected
    users.
    """
    released: str | None = None
    """The model's release date, as YYYY-MM-DD."""
    deprecated: bool = False
    """Whether the provider has deprecated the model."""
    retires: str | None = None
    """The date of the model's retirement."""
    source: str = ""
    """The source of these values."""
    date: str = ""
    """The date of these values."""

    def can(self, capability: str) -> bool | None:
        """Whether the model has a capability; None if unknown.

        Args:
            capability: One of `CAPABILITIES`.

        Raises:
            CallboardError: The capability does not exist.
        """
        value: bool | None = getattr(self, CAPABILITIES[capability_name(capability)])
        return value


def capability_name(word: str) -> str:
    """Map a word to one of `CAPABILITIES`. The adapters' own words are accepted, too."""
    plain = word.removeprefix("supports_")
    name = _SAME.get(plain, plain)
    if name not in CAPABILITIES:
        near = nearest(name, CAPABILITIES)
        hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(CAPABILITIES)}."
        raise CallboardError(f"unknown capability {word!r}: {hint}")
    return name


def get_model_info(model_id: str) -> ModelInfo | None:
    """Information about a model. A provider with its own table of models takes precedence.

    Args:
        model_id: The model's id, with or without a date; a short name; or ``provider:id``.

    Returns:
        The information; None if the model is unknown, or if several providers have it and the id has no provider.

    Raises:
        ConfigurationError: The price snapshot in $CALLBOARD_HOME can't be read.
    """
    return default_catalogue().info(model_id)


def list_models(
    provider: str | None = None, capability: str | None = None, *, include_retired: bool = False
) -> list[ModelInfo]:
    """All known models that are still available. If a provider has its own table, its models are in the table's
    order, the best first.

    Args:
        provider: Only models of this provider.
        capability: Only models that are known to have this capability.
        include_retired: Whether to list retired models, too.

    Raises:
        CallboardError: The capability does not exist.
        ConfigurationError: The price snapshot in $CALLBOARD_HOME can't be read.
    """
    return default_catalogue().models(provider, capability, include_retired=include_retired)


def get_latest_model(provider: str, capability: str | None = None) -> ModelInfo | None:
    """The default model of a provider: the best model for general use that isn't deprecated.

    Of two similar models, the newer one is preferred.

    Args:
        provider: The provider. Only providers with their own table have a default model.
        capability: An ability that the model must have.

    Returns:
        The model; None if no model fits, or if the provider has no table.

    Raises:
        CallboardError: The capability does not exist.
    """
    return default_catalogue().latest(provider, capability)


def default_catalogue() -> Catalogue:
    """The catalogue with the published prices of `callboard prices update`, or else the shipped prices."""
    from callboard.tracestore.home import SNAPSHOT_NAME

    home = home_folder()
    return _read(home, _written(home / SNAPSHOT_NAME), _written(home / FILE_NAME))


def _written(path: Path) -> int:
    """The time at which a file was written, to detect a newer file; 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _read(home: Path, *written: int) -> Catalogue:
    from callboard.tracestore.home import published_snapshot

    return Catalogue(published_snapshot(home), known_models=known_models(home))


class Catalogue:
    """The models of the adapters, of a price snapshot and of `callboard models update`, each with its prices.

    Without `prices`, the prices are those of the snapshot. The clock's day decides which models are retired.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        prices: PriceTable | None = None,
        *,
        known_models: KnownModels = NOTHING,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._known_file = known_models
        self._snapshot = snapshot
        self._own_prices = prices
        self._clock = clock

    def info(self, name: str) -> ModelInfo | None:
        """See `get_model_info`."""
        found = self.locate(name)
        if found is None:
            return None
        row = _row(*found)
        return self._of_lists(*found) if row is None else self._from_row(found[0], row)

    def locate(self, name: str) -> tuple[str, str] | None:
        """The provider of a model, and the model's name there; None if the model is unknown or ambiguous."""
        provider, colon, rest = name.partition(":")
        provider = published_vendor(provider)
        if colon and self._knows(provider):
            return (provider, rest) if self._has(provider, rest) else None
        owners = self.owners(name)
        return (owners[0], name) if len(owners) == 1 or (owners and owners[0] in tabled_vendors()) else None

    def owners(self, name: str) -> tuple[str, ...]:
        """The provider in a name; without one, all providers with a model of that name."""
        provider, colon, _ = name.partition(":")
        provider = published_vendor(provider)
        if colon and self._knows(provider):
            return (provider,)
        providers = {**dict.fromkeys(tabled_vendors()), **self._priced, **self._by_provider}
        return tuple(provider for provider in providers if self._has(provider, name))

    def models(
        self, provider: str | None = None, capability: str | None = None, *, include_retired: bool = False
    ) -> list[ModelInfo]:
        """See `list_models`."""
        capability_field = None if capability is None else capability_name(capability)
        today = datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC).date().isoformat()
        return [
            info
            for info in self._all(None if provider is None else published_vendor(provider))
            if (include_retired or info.retires is None or today < info.retires)
            and (capability_field is None or info.can(capability_field))
        ]

    def latest(self, provider: str, capability: str | None = None) -> ModelInfo | None:
        """See `get_latest_model`."""
        if published_vendor(provider) not in tabled_vendors():
            return None
        models = self.models(provider, capability)
        return next((info for info in models if info.general and not info.deprecated), None)

    @cached_property
    def date(self) -> str:
        """The day of the oldest source of the catalogue, as YYYY-MM-DD."""
        tables = [table.file.date for table in map(model_table, tabled_vendors()) if table is not None]
        return min(self._snapshot.date, *tables)

    # --- Helpers ---

    @cached_property
    def _prices(self) -> PriceTable:
        """The price table. It is created when a price is first needed."""
        from callboard.tracestore.prices.files import shipped_snapshot

        if self._own_prices is not None:
            return self._own_prices
        shipped = self._snapshot is shipped_snapshot()
        return PriceTable.default() if shipped else PriceTable.of(self._snapshot.prices())

    @cached_property
    def _priced(self) -> dict[str, dict[str, SnapshotModel]]:
        return _by_provider(self._snapshot.models)

    @cached_property
    def _by_provider(self) -> dict[str, dict[str, KnownModel]]:
        """The models of `callboard models update`, by provider and id."""
        return _by_provider(self._known_file.models)

    def _all(self, provider: str | None) -> Iterator[ModelInfo]:
        for name in tabled_vendors() if provider is None else (provider,):
            table = model_table(name)
            for row in table.rows if table is not None else ():
                yield self._from_row(name, row)
        for name in {**self._priced, **self._by_provider} if provider is None else (provider,):
            # The price list of such a provider also has retired models, and models that are not for chat.
            priced = self._priced.get(name, {}) if name not in tabled_vendors() else {}
            for model in {**priced, **self._by_provider.get(name, {})}:
                if _row(name, model) is None:
                    yield self._of_lists(name, model)

    def _knows(self, provider: str) -> bool:
        return provider in tabled_vendors() or provider in self._priced or provider in self._by_provider

    def _has(self, provider: str, name: str) -> bool:
        lists = (self._priced, self._by_provider)
        return _row(provider, name) is not None or any(name in listed.get(provider, {}) for listed in lists)

    def _from_row(self, provider: str, row: ModelRow) -> ModelInfo:
        into, out = self._costs(f"{provider}:{row.id}")
        table = model_table(provider)
        return ModelInfo(
            id=row.id,
            provider=provider,
            display_name=row.display_name,
            context_window=row.context_window,
            max_output=row.max_output,
            supports_tools=row.tools,
            supports_vision=row.images,
            supports_reasoning=row.reasons,
            supports_structured_output=row.structured,
            input_cost_per_million=into,
            output_cost_per_million=out,
            aliases=row.aliases,
            general=row.general,
            released=row.released,
            deprecated=row.deprecated,
            retires=row.retires,
            source="" if table is None else table.file.source,
            date="" if table is None else table.file.date,
        )

    def _of_lists(self, provider: str, name: str) -> ModelInfo:
        """Combine the price list and the update to describe a model that is in no table."""
        priced = self._priced.get(provider, {}).get(name)
        model = self._by_provider.get(provider, {}).get(name)
        origin = self._snapshot if model is None else self._known_file
        model = model or KnownModel(id=name)
        into, out = self._costs(f"{provider}:{name}")
        return ModelInfo(
            id=name,
            provider=provider,
            display_name=(priced.name if priced is not None else None) or name,
            context_window=model.context_window or (None if priced is None else priced.context_window),
            max_output=model.max_output,
            supports_tools=model.tools,
            supports_vision=model.vision,
            supports_reasoning=model.reasoning,
            supports_structured_output=model.structured,
            input_cost_per_million=into,
            output_cost_per_million=out,
            general=priced is not None or provider not in tabled_vendors(),
            deprecated=priced is not None and priced.deprecated,
            retires=model.retires,
            source=origin.source,
            date=origin.date,
        )

    def _costs(self, model: str) -> tuple[Decimal | None, Decimal | None]:
        row = self._prices.find(model, self._clock.now_us())
        return (None, None) if row is None else (row.per_million("input"), row.per_million("output"))


def _row(provider: str, name: str) -> ModelRow | None:
    table = model_table(provider)
    return None if table is None else table.listed(name) or table.by_alias(name)


def _by_provider(models: Iterable[M]) -> dict[str, dict[str, M]]:
    found: dict[str, dict[str, M]] = {}
    for model in models:
        provider, _, name = model.id.partition(":")
        found.setdefault(provider, {})[name] = model
    return found
