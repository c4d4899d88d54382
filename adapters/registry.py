"""Adapter types by name, plugins, and the tables of vendors' models.

All of it is derived from the descriptors of `adapters.provider`. Code and tables are imported at their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import ConfigurationError
from callboard.bus.log import Log

from .config import AdapterConfig
from .contract import ProviderAdapter
from .provider import Provider, provider_named, providers
from .transport.transport import Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .provider import ModelRow, ModelTable


# --- Plugins ---

Group: TypeAlias = Literal["callboard.adapters", "callboard.tools", "callboard.commands"]
"""The kind of a plugin: adapter types, tools, or commands of the command line."""

GROUPS: tuple[Group, ...] = get_args(Group)

_log = Log("plugins")


class Loaded(NamedTuple):
    value: object
    """The loaded object; None after a fault."""
    fault: str | None
    """The reason why it can't be loaded; None if it was loaded."""


class Plugin(NamedTuple):
    """One entry point of an installed package."""

    group: Group
    name: str
    place: str
    """The place of its object: ``module:name``."""
    package: str

    def load(self) -> Loaded:
        """The object, imported on first use. A failure is logged once."""
        return _load(self)


@cache
def plugins(group: Group) -> tuple[Plugin, ...]:
    """The plugins of a group by name. Of two with the same name, the first package's is used."""
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
def _load(plugin: Plugin) -> Loaded:
    from importlib import import_module

    module, _, names = plugin.place.partition(":")
    try:
        found: object = import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        fault = f"{type(error).__name__}: {error}"
        _log.warning("plugin_broken", group=plugin.group, name=plugin.name, package=plugin.package, reason=fault)
        return Loaded(None, fault)
    return Loaded(found, None)


def adapter_types() -> tuple[str, ...]:
    """The registered types by name. Any other type is ``package.module:Class``."""
    return tuple(sorted(provider.name for provider in providers()))


def is_adapter_type(name: str) -> bool:
    """Whether a type exists: a registered one, a plugin's, or ``package.module:Class``."""
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
    """Whether a name is one of a vendor's models, listed or future."""
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
        name: The adapter's name, the prefix of its models' names.
        clock: The clock of the adapter's times and of its randomness.
        transport: Replaces the network, for adapters over HTTP. Others need not take it.

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
        known = ", ".join(adapter_types())
        raise ConfigurationError(f"adapter type {type_name!r} is neither one of {known} nor package.module:Class")
    offered, fault = plugin.load()
    if fault is not None:
        raise ConfigurationError(f"adapter type {type_name!r} of {plugin.package} can't be loaded: {fault}")
    return cast("Callable[..., ProviderAdapter]", offered)
