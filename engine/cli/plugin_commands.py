"""The commands that installed packages offer by entry points, in the group ``callboard.commands``.

They are looked for when a word is no command of ours. Each is a function like those of our own commands: it takes
argparse's subparsers, adds a parser of its name, and sets ``run``, which takes the arguments and returns the exit
code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, TypeAlias, cast

AddCommand: TypeAlias = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]

GROUP: Final = "callboard.commands"


def plugin_names() -> list[str]:
    """The names of all commands of plugins, whether they can be loaded or not."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names)


def plugin_command(name: str) -> AddCommand | None:
    """The function that adds a plugin's command; None if there is no such plugin, or it can't be loaded."""
    from importlib.metadata import entry_points

    if not entry_points(group=GROUP, name=name):  # so that a misspelt command imports nothing of the library
        return None
    from callboard.adapters.plugins import plugin_named

    from .common.logs import configure

    configure()  # else the warning of a broken one is not shown
    plugin = plugin_named(GROUP, name)
    assert plugin is not None
    offered, fault = plugin.load()
    return cast("AddCommand", offered) if fault is None and callable(offered) else None
