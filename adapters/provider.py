"""The descriptor of a provider, the search for descriptors, and the adapters from descriptors and other packages.

Each package in `adapters.providers` has a `PROVIDER`. All lists of providers are derived from these descriptors:
the types in models.yaml, exported names, environment variables, names in price files and telemetry. So adding a
folder adds a provider. A descriptor refers to code in its folder as ``module:name``, or as ``:name`` for code
next to the descriptor. The code is imported when needed, so a folder's `__init__` imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast, get_args

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import ConfigurationError
from callboard.bus.files import package_data
from callboard.bus.log import Log
from callboard.bus.values.base import Json

from .config import AdapterConfig
from .contract import AdapterCapabilities, ProviderAdapter
from .transport.transport import Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


Kind: TypeAlias = Literal["chat", "embedding", "image", "video"]
"""The purpose of a model."""

_VendorOf: TypeAlias = Callable[[Mapping[str, Json], str | None], str | None]
_FOLDERS = f"{__package__}.providers"


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a vendor of models."""

    name: str
    """The vendor's name in Callboard's price tables, before the colon of its models' names."""
    telemetry: str | None = None
    """The name in OpenTelemetry's conventions for generative AI; defaults to the provider's own name."""
    genai_prices: str | None = None
    """The name in the published prices of genai-prices; defaults to `name`."""
    litellm: tuple[str, ...] = ()
    """The names in LiteLLM's list of models. Leave it empty if LiteLLM uses `name`."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter with one model that needs no configuration, because it needs no key."""

    name: str
    """The adapter's name, which is also an alias of the model."""
    model: str
    """The provider's name of the model."""
    kind: Kind = "chat"
    """The purpose of the model."""
    options: Mapping[str, Json] = {}
    """The adapter's `AdapterConfig.options`."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One provider, or one protocol of many providers."""

    name: str
    """The name of the provider's folder, which is also the `type` of its adapters in models.yaml."""
    adapter: str
    """The adapter's class, or a function that makes an adapter, as ``module:name``."""
    kinds: tuple[Kind, ...] = ("chat",)
    """The kinds of models that the provider's adapter supports, see `adapters.contract`, `embeddings`, `images`
    and `videos`.
    """

    # --- Environment ---

    key_variables: tuple[str, ...] = ()
    """The environment variables of the provider's key, the usual variable first. Empty if there are none."""
    base_url_variable: str | None = None
    """The environment variable of an address that replaces the default. The vendor's own library reads it, too."""
    expected: bool = False
    """Whether `doctor` lists the provider as not configured if there is no key and no models.yaml."""
    precedence: int = 100
    """If several providers have a key and the caller chooses none, the provider with the lowest number is used."""
    presets: tuple[Preset, ...] = ()
    """Adapters that need no configuration."""
    runs_here: bool = False
    """Whether the provider's models run on this machine, so that a health check needs no network."""

    # --- Owner of keys ---

    home: str | None = None
    """The only host that the provider's key may be sent to; None for any host."""
    key_words: tuple[str, ...] = ()
    """Words in an environment variable's name for a key of `home`."""

    # --- Models ---

    models: str | None = None
    """The module with the table of the provider's models as `TABLE`, and with `find_model`. None if there is no
    table.
    """
    rates: str | None = None
    """The file of rates for estimates of tokens; defaults to the common rates."""
    vocabulary: str | None = None
    """The nearest vocabulary for models with unknown names; defaults to the common one."""

    # --- Names elsewhere ---

    vendor: Vendor | None = None
    """The vendor of the provider's models; None if it is unknown or depends on the address."""
    vendor_of: str | None = None
    """A function, as ``module:name``, that returns the vendor's name from the options and the address in
    `AdapterConfig`.
    """
    other_vendors: tuple[Vendor, ...] = ()
    """More vendors that use the provider's protocol."""

    @property
    def package(self) -> str:
        return f"{_FOLDERS}.{self.name}"

    @property
    def adapter_name(self) -> str:
        """The name of the adapter's class, or of the function that makes an adapter."""
        return self.adapter.partition(":")[2]

    def load(self, place: str) -> object:
        """Import an object of the provider's folder, given as ``module:name``."""
        return _load(self.package, place)

    def data(self, file: str) -> bytes:
        return package_data(self.package, file)

    def vendor_name(self, options: Mapping[str, Json], base_url: str | None) -> str | None:
        """The vendor of an adapter's models in price tables; None if unknown."""
        found: str | None = None
        if self.vendor_of is not None:
            found = cast("_VendorOf", self.load(self.vendor_of))(options, base_url)
        return found or (None if self.vendor is None else self.vendor.name)


@cache
def _load(package: str, place: str) -> object:
    module, _, attribute = place.partition(":")
    found: object = import_module(f"{package}.{module}" if module else package)
    return getattr(found, attribute) if attribute else found


@cache
def providers() -> tuple[Provider, ...]:
    """All providers, by precedence and name."""
    folders = import_module(_FOLDERS)
    found: list[Provider] = [
        import_module(f"{_FOLDERS}.{folder.name}").PROVIDER
        for folder in iter_modules(folders.__path__)
        if folder.ispkg
    ]
    return tuple(sorted(found, key=lambda provider: (provider.precedence, provider.name)))


@cache
def _by_name() -> Mapping[str, Provider]:
    return {provider.name: provider for provider in providers()}


def provider_named(name: str) -> Provider | None:
    """The provider of a name; None if there is none."""
    return _by_name().get(name)


@cache
def vendors() -> tuple[Vendor, ...]:
    """The vendors in all descriptors."""
    own_vendors = [provider.vendor for provider in providers() if provider.vendor is not None]
    return (*own_vendors, *(vendor for provider in providers() for vendor in provider.other_vendors))


def published_vendor(name: str) -> str:
    """Callboard's name of a vendor, by its name in genai-prices."""
    return next((vendor.name for vendor in vendors() if vendor.genai_prices == name), name)


# --- The table of a provider's models, a JSON file in its folder ---

FILE_NAME = "models.json"

_SNAPSHOT = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|\d{3}|latest|preview-\d{2}-\d{2,4})$")


class ModelRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model. Limits are in tokens, and dates are YYYY-MM-DD. None means unknown."""

    id: str
    """The provider's name of the model."""
    display_name: str
    context_window: int | None
    """The tokens of input and output together."""
    max_output: int | None
    aliases: tuple[str, ...] = ()
    """Callboard's short names of the model."""
    also: tuple[str, ...] = ()
    """More names that the provider has for the model."""
    general: bool = True
    released: str | None = None
    deprecated: bool = False
    """Whether the provider advises against the model."""
    retires: str | None = None
    images: bool = True
    tools: bool = True
    structured: bool = True
    """Whether the model enforces a schema on its reply."""

    @property
    def reasons(self) -> bool:
        """Whether the model supports reasoning."""
        raise NotImplementedError

    def within(self, capabilities: AdapterCapabilities) -> AdapterCapabilities:
        """Limit an adapter's capabilities to those of the model."""
        window = capabilities.max_context_tokens if self.context_window is None else self.context_window
        output = capabilities.max_output_tokens if self.max_output is None else self.max_output
        return msgspec.structs.replace(
            capabilities,
            supports_images=capabilities.supports_images and self.images,
            supports_thinking=capabilities.supports_thinking and self.reasons,
            supports_tools=capabilities.supports_tools and self.tools,
            supports_tool_choice=capabilities.supports_tool_choice and self.tools,
            supports_parallel_tool_calls=capabilities.supports_parallel_tool_calls and self.tools,
            supports_streaming_tool_calls=capabilities.supports_streaming_tool_calls and self.tools,
            supports_structured_output=capabilities.supports_structured_output and self.structured,
            max_context_tokens=window,
            max_output_tokens=output,
        )


Row = TypeVar("Row", bound=ModelRow)


class ModelFile(msgspec.Struct, Generic[Row], frozen=True, kw_only=True, forbid_unknown_fields=True):
    date: str
    source: str
    models: tuple[Row, ...]
    """The models, the best first."""
    like: tuple[tuple[str, str], ...] = ()
    """Patterns of unlisted names, each with a listed model whose row is used. The first matching pattern is
    used.
    """


class ModelTable(Generic[Row]):
    """The table in a provider's folder, read at its first use.

    If the file is invalid, any use raises msgspec.ValidationError or ValueError.
    """

    def __init__(self, module: str, kind: type[ModelFile[Row]]) -> None:
        """Store the file's name without reading it."""
        self._module = module
        self._kind = kind

    @cached_property
    def file(self) -> ModelFile[Row]:
        return msgspec.json.decode(package_data(self._module, FILE_NAME), type=self._kind)

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.file.models

    @cached_property
    def _names(self) -> Mapping[str, Row]:
        names: dict[str, Row] = {}
        for row in self.rows:
            for name in (row.id, *row.also):
                if names.setdefault(name, row) is not row:
                    raise ValueError(f"{self._module}: two models are called {name!r}")
        return names

    @cached_property
    def _aliases(self) -> Mapping[str, Row]:
        aliases: dict[str, Row] = {}
        for row in self.rows:
            for alias in row.aliases:
                if alias in self._names or aliases.setdefault(alias, row) is not row:
                    raise ValueError(f"{self._module}: two models are called {alias!r}")
        return aliases

    @cached_property
    def _like(self) -> tuple[tuple[re.Pattern[str], Row], ...]:
        return tuple((re.compile(pattern), self._names[model]) for pattern, model in self.file.like)

    def listed(self, name: str) -> Row | None:
        """The model of a name, which may end in a date; None if it is not listed."""
        return self._names.get(name) or self._names.get(_SNAPSHOT.sub("", name))

    def by_alias(self, alias: str) -> Row | None:
        """The model of one of Callboard's short names; None if there is none."""
        return self._aliases.get(alias)

    def resembling(self, name: str) -> Row | None:
        """The row for a name. For an unlisted name, it is the row of the listed model that its pattern names."""
        return self.listed(name) or next((row for pattern, row in self._like if pattern.match(name)), None)


# --- Plugins ---

Group: TypeAlias = Literal["callboard.adapters", "callboard.tools", "callboard.commands"]
"""The kind of a plugin: adapter types, tools, or commands of the command line."""

GROUPS: tuple[Group, ...] = get_args(Group)

_log = Log("plugins")


class Loaded(NamedTuple):
    value: object
    """The loaded object; None after a fault."""
    fault: str | None
    """The reason why the plugin can't be loaded; None if it was loaded."""


class Plugin(NamedTuple):
    """One entry point of an installed package."""

    group: Group
    name: str
    place: str
    """The place of the plugin's object, as ``module:name``."""
    package: str

    def load(self) -> Loaded:
        """The object, imported on first use. A failure is logged once."""
        return _load_adapter(self)


@cache
def plugins(group: Group) -> tuple[Plugin, ...]:
    """The plugins of a group by name. If two have the same name, the plugin of the first package is used."""
    from importlib.metadata import entry_points

    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=group), key=_package):
        plugin = Plugin(group, entry.name, entry.value, _package(entry))
        first = found.setdefault(entry.name, plugin)
        if first.place != plugin.place:
            _log.warning("plugin_hidden", group=group, name=entry.name, of=plugin.package, by=first.package)
    return tuple(found[name] for name in sorted(found))


def plugin_named(group: Group, name: str) -> Plugin | None:
    return next((plugin for plugin in plugins(group) if plugin.name == name), None)


def _package(entry: EntryPoint) -> str:
    return "(unknown)" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


@cache
def _load_adapter(plugin: Plugin) -> Loaded:
    module, _, names = plugin.place.partition(":")
    try:
        found: object = import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        fault = f"{type(error).__name__}: {error}"
        _log.warning("plugin_broken", group=plugin.group, name=plugin.name, package=plugin.package, reason=fault)
        return Loaded(None, fault)
    return Loaded(found, None)


def adapter_types() -> tuple[str, ...]:
    """The registered types by name. Any other type is ``package.module:Class``."""
    return tuple(sorted(provider.name for provider in providers()))


def is_adapter_type(name: str) -> bool:
    """Whether a type exists: a registered type, a plugin's type, or ``package.module:Class``."""
    return ":" in name or provider_named(name) is not None or plugin_named("callboard.adapters", name) is not None


def registered_type(kind: type) -> str | None:
    """The type of an adapter's class; None if no registered type has this class."""
    for provider in providers():
        if kind.__name__ == provider.adapter_name and kind.__module__.startswith(f"{provider.package}."):
            return provider.name
    return None


def adapter_class(name: str) -> object:
    """Return an adapter class by name. Raises KeyError if there is none."""
    found = {provider.adapter_name: provider for provider in providers()}[name]
    return found.load(found.adapter)


# --- Model tables ---


class _Models(Protocol):
    @property
    def TABLE(self) -> ModelTable[ModelRow]: ...

    def find_model(self, name: str, /) -> ModelRow | None: ...


@cache
def _tabled() -> Mapping[str, Provider]:
    return {
        provider.vendor.name: provider
        for provider in providers()
        if provider.models is not None and provider.vendor is not None
    }


def _models(vendor: str) -> _Models | None:
    provider = _tabled().get(vendor)
    return None if provider is None else cast("_Models", provider.load(str(provider.models)))


def tabled_vendors() -> tuple[str, ...]:
    """The vendors with a table of models, by name."""
    return tuple(sorted(_tabled()))


def model_table(vendor: str) -> ModelTable[ModelRow] | None:
    models = _models(vendor)
    return None if models is None else models.TABLE


def is_named_like(vendor: str, model: str) -> bool:
    """Whether a name looks like a name of one of the vendor's models. The model need not be listed."""
    models = _models(vendor)
    return models is not None and models.find_model(model) is not None


# --- Adapters ---


def create_adapter(
    type_name: str,
    config: AdapterConfig,
    *,
    name: str,
    clock: Clock = SYSTEM_CLOCK,
    transport: Transport | None = None,
) -> ProviderAdapter:
    """Make an adapter of a type, without opening a connection.

    Args:
        type_name: One of `adapter_types`, the name of a plugin, or ``package.module:Class``.
        config: The adapter's configuration.
        name: The adapter's name, which is the prefix of its models' names.
        clock: The clock of the adapter's times and of its randomness.
        transport: Replaces the network, for adapters over HTTP. Other adapters need not accept it.

    Raises:
        ConfigurationError: There is no such type, it can't be imported, or its options are invalid.
    """
    factory = _factory(type_name)
    if transport is None:
        return factory(config, name=name, clock=clock)
    return factory(config, name=name, clock=clock, transport=transport)


def _factory(type_name: str) -> Callable[..., ProviderAdapter]:
    provider = provider_named(type_name)
    module, colon, attribute = type_name.partition(":")
    if provider is None and not colon:
        return _of_plugin(type_name)
    try:
        if provider is not None:
            found = provider.load(provider.adapter)
        else:
            found = getattr(import_module(module, __package__), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"adapter type {type_name!r} can't be imported: {error}") from error
    return cast("Callable[..., ProviderAdapter]", found)


def _of_plugin(type_name: str) -> Callable[..., ProviderAdapter]:
    plugin = plugin_named("callboard.adapters", type_name)
    if plugin is None:
        type_names = ", ".join(adapter_types())
        raise ConfigurationError(
            f"adapter type {type_name!r} is neither one of {type_names} nor package.module:Class"
        )
    offered, fault = plugin.load()
    if fault is not None:
        raise ConfigurationError(f"adapter type {type_name!r} of {plugin.package} can't be loaded: {fault}")
    return cast("Callable[..., ProviderAdapter]", offered)
