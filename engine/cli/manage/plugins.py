"""`callboard plugins`: the adapters, tools and commands that installed packages offer."""

from __future__ import annotations

import argparse
import logging

import msgspec

from callboard.adapters.plugins import GROUPS, Plugin, plugins

from ..commands import COMMANDS
from ..common.fitting import FittingTable
from ..common.output import add_format, write
from ..common.screen import make_console
from ..common.words import plural


class PluginLine(msgspec.Struct, frozen=True):
    """A line of `callboard plugins --json`."""

    kind: str
    """The kind of what it offers: ``adapters``, ``tools`` or ``commands``."""
    name: str
    """The name by which it is asked for."""
    package: str
    """The package that offers it, with its version."""
    place: str
    """The place of its object: ``module:name``."""
    error: str | None
    """The reason why it can't be used; None if it can be."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plugins",
        help="List adapters, tools and commands of other packages",
        description="Lists what installed packages offer by entry points in the groups callboard.adapters, "
        "callboard.tools and callboard.commands, and loads each of them.",
    )
    add_format(parser, "for each plugin")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """A plugin that is broken is listed with its fault, which is no failure of the list."""
    logging.getLogger("callboard.plugins").setLevel(logging.ERROR)  # what it warns of stands in the list
    found = [_line(plugin) for group in GROUPS for plugin in plugins(group)]
    if arguments.format != "table":
        write(arguments.format, PluginLine, found)
        return 0
    console = make_console()
    if not found:
        console.print("No plugins are installed.")
        return 0
    table = FittingTable()
    for heading, may_go in (("kind", 0), ("name", 0), ("package", 1), ("place", 3)):
        table.add_column(heading, may_go=may_go)
    table.add_column("state", folds=True)
    for line in found:
        table.add_row(line.kind, line.name, line.package, line.place, line.error or "ok")
    console.print(table)
    console.print(f"\n{plural(len(found), 'plugin')}", style="dim")
    return 0


def _line(plugin: Plugin) -> PluginLine:
    kind = plugin.group.removeprefix("callboard.")
    return PluginLine(kind, plugin.name, plugin.package, plugin.place, _fault(plugin))


def _fault(plugin: Plugin) -> str | None:
    if plugin.group == "callboard.commands" and plugin.name in COMMANDS:
        return "hidden by a command of Callboard's own"
    if plugin.group == "callboard.adapters" and _is_own_type(plugin.name):
        return "hidden by an adapter of Callboard's own"
    return plugin.load().fault


def _is_own_type(name: str) -> bool:
    from callboard.adapters.registry import adapter_types

    return name in adapter_types()
