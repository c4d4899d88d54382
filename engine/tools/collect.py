"""Tools as a program passes them: `Tool` objects, and plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from callboard.adapters.provider import plugin_named
from callboard.bus.errors import ConfigurationError

from .handler import Tool, require_distinct
from .parameters import ToolDefinitionError

ToolLike: TypeAlias = Tool | Callable[..., object]
"""A tool, or a function that is made one as ``@tool`` makes it: by its name, its type hints and its docstring."""

_made: WeakKeyDictionary[Callable[..., object], Tool] = WeakKeyDictionary()
"""The tools of functions, so that a function that is given with every call is looked into once."""


def as_tools(given: Iterable[ToolLike]) -> tuple[Tool, ...]:
    """The given tools and functions as tools.

    Raises:
        ConfigurationError: Two tools have one name.
        ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
        TypeError: An item is neither a tool nor a function.
    """
    tools = tuple(each if isinstance(each, Tool) else _made_of(each) for each in given)
    require_distinct(tools)
    return tools


def _made_of(function: object) -> Tool:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"tools must be tools and functions, not {_kind(function)}")
    from .define import tool

    try:
        known = _made.get(function)
    except TypeError:  # it can't be hashed, or not be referred to weakly
        return tool(function)
    if known is None:
        known = tool(function)
        if hasattr(function, "__code__"):  # a method is another object each time
            _made[function] = known
    return known


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def plugin_tools(name: str) -> Sequence[Tool] | None:
    """The tools of a plugin; None if no plugin has that name.

    A plugin offers a function, a tool, or a list of such.
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
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} are not tools: {error}") from error
