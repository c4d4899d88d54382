"""The tools that installed packages offer by entry points, in the group ``callboard.tools``."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters.plugins import plugin_named
from callboard.bus.errors import ConfigurationError

from .function.given import ToolLike, as_tools
from .function.parameters import ToolDefinitionError
from .function.tool import Tool


def plugin_tools(name: str) -> Sequence[Tool] | None:
    """The tools of a plugin; None if no plugin has that name.

    A plugin offers a function, a tool, or a list of such.

    Raises:
        ConfigurationError: The plugin can't be loaded, or offers something else.
    """
    plugin = plugin_named("callboard.tools", name)
    if plugin is None:
        return None
    offered, fault = plugin.load()
    if fault is not None:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} can't be loaded: {fault}")
    given: Sequence[ToolLike] = offered if isinstance(offered, (list, tuple)) else [offered]  # type: ignore[list-item]
    try:
        return as_tools(given)
    except (TypeError, ToolDefinitionError) as error:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} are none: {error}") from error
