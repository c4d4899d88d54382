"""Plugins: objects that installed packages offer by entry points, such as an adapter, a tool or a command.

A package says in its pyproject.toml what it offers, by group and name:

    [project.entry-points."callboard.tools"]
    weather = "my_package.tools:weather"

Groups are looked up when a name is asked for that we don't have ourselves, since looking takes milliseconds. A
plugin that can't be loaded is one warning, which names it, and stops nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from callboard.bus.log import Log

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group: TypeAlias = Literal["callboard.adapters", "callboard.tools", "callboard.commands"]
"""What a plugin may be: a type of adapters, a tool or several, or a command of the command line."""

GROUPS: tuple[Group, ...] = get_args(Group)

_log = Log("plugins")


class Loaded(NamedTuple):
    """A plugin that was asked for."""

    value: object
    """The object that it offers; None if there is a fault."""
    fault: str | None
    """The reason why it can't be loaded; None if it could be."""


class Plugin(NamedTuple):
    """One entry point of an installed package."""

    group: Group
    """What it is."""
    name: str
    """The name by which it is asked for."""
    place: str
    """The place of its object: ``module:name``."""
    package: str
    """The package that offers it, with its version."""

    def load(self) -> Loaded:
        """The object, imported at the first time. A plugin that can't be loaded is warned of, once."""
        return _load(self)


@cache
def plugins(group: Group) -> tuple[Plugin, ...]:
    """The plugins of a group by name. Of two that have the same name, the one whose package comes first."""
    from importlib.metadata import entry_points

    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=group), key=_package):
        plugin = Plugin(group, entry.name, entry.value, _package(entry))
        first = found.setdefault(entry.name, plugin)
        if first.place != plugin.place:
            _log.warning("plugin_hidden", group=group, name=entry.name, of=plugin.package, by=first.package)
    return tuple(found[name] for name in sorted(found))


def plugin_named(group: Group, name: str) -> Plugin | None:
    """The plugin of a name; None if there is none."""
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
    except (Exception, SystemExit) as error:  # it is somebody else's code
        fault = f"{type(error).__name__}: {error}"
        _log.warning("plugin_broken", group=plugin.group, name=plugin.name, package=plugin.package, reason=fault)
        return Loaded(None, fault)
    return Loaded(found, None)
