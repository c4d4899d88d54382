"""Collects the tools that a program passes: `Tool` objects, plain functions and tool sources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, overload
from weakref import WeakKeyDictionary

from callboard.adapters.provider import plugin_named
from callboard.bus.errors import ConfigurationError
from callboard.bus.log import Log, takes_old_names
from callboard.bus.values.messages import ToolDefinition

from .handler import Tool
from .parameters import ToolDefinitionError

_log = Log("engine.tools")


class ToolSource(Sequence[Tool]):
    """Tools that may change, such as the tools of MCP servers. A source is a sequence of the current tools.

    A session with a source among its tools reads it again before each step of a turn.
    """

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The current tools. The tuple must be the same object until they change."""

    def watch(self, changed: Callable[[], object]) -> Callable[[], object]:
        """Call a function whenever the tools change. Returns a function that stops this.

        By default, a source reports no changes.
        """
        return lambda: None

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tool, ...]: ...
    def __getitem__(self, index: int | slice) -> Tool | tuple[Tool, ...]:
        return self.tools[index]

    def __len__(self) -> int:
        return len(self.tools)

    def __bool__(self) -> bool:
        """Always true: a source without tools may have some later."""
        return True


ToolLike: TypeAlias = Tool | ToolSource | Callable[..., object]
"""A tool, a `ToolSource` for all its tools, or a function, which becomes a tool as with ``@tool``."""

_made: WeakKeyDictionary[Callable[..., object], Tool] = WeakKeyDictionary()
"""A cache of the tools made from functions, so that a function passed with every call is inspected once."""


@takes_old_names(given="tools")
def as_tools(tools: Iterable[ToolLike]) -> tuple[Tool, ...]:
    """Convert the given tools and functions to tools.

    Raises:
    ConfigurationError: Two of the program's own tools have one name.
    ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
    TypeError: An item is neither a tool nor a function.
    """
    return collected(tools)[0]


def collected(
    tools: Iterable[ToolLike],
) -> tuple[tuple[Tool, ...], tuple[ToolSource, ...], tuple[ToolDefinition, ...]]:
    """The tools, as `as_tools` returns them, the tool sources, and the tools as models see them.

    The same tools have the same tuple of definitions, also in another session, because caches use its identity as
    their key.
    """
    direct: list[Tool] = []
    sources: list[ToolSource] = []
    if type(tools) not in (list, tuple) and isinstance(tools, ToolSource):
        sources.append(tools)
    else:
        for each in tools:
            if isinstance(each, Tool):  # checked first, because it is fast
                direct.append(each)
            elif isinstance(each, ToolSource):
                sources.append(each)
            else:
                direct.append(_made_of(each))
    definitions = _definitions_of(direct)
    if not sources:
        return tuple(direct), (), definitions
    found = _with_those_of(sources, direct)
    return found, tuple(sources), _definitions_of(found)


_sets: dict[tuple[int, ...], tuple[ToolDefinition, ...]] = {}
"""The definitions of tools with distinct names, by the ids of the definitions."""
_MOST_SETS = 128


def _definitions_of(tools: Sequence[Tool]) -> tuple[ToolDefinition, ...]:
    """The definitions of tools. Raises ConfigurationError if two have the same name, because a call could mean
    either of them.
    """
    definitions = tuple([tool.definition for tool in tools])
    key = tuple(map(id, definitions))
    known = _sets.get(key)
    if known is not None:
        return known
    names = [definition.name for definition in definitions]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two tools are named {twice!r}. Rename one: @tool(name='...')")
    if len(_sets) >= _MOST_SETS:
        _sets.clear()
    _sets[key] = definitions
    return definitions


def _with_those_of(sources: Iterable[ToolSource], direct: Iterable[Tool]) -> tuple[Tool, ...]:
    """The program's own tools, followed by the tools of sources. A source's tool is skipped if its name is already
    used.
    """
    found = {tool.name: tool for tool in direct}
    for source in sources:
        for tool in source.tools:
            if found.setdefault(tool.name, tool) is not tool:
                _log.warning("tool_left_out", tool=tool.name, error="another tool has this name")
    return tuple(found.values())


def _made_of(function: object) -> Tool:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"tools must contain only Tool objects and functions, not {_kind(function)}")
    from .from_function import tool

    try:
        made_tool = _made.get(function)
    except TypeError:  # the function is not hashable, or does not support weak references
        return tool(function)
    if made_tool is None:
        made_tool = tool(function)
        if hasattr(function, "__code__"):  # a method is a new object at each access
            _made[function] = made_tool
    return made_tool


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def plugin_tools(name: str) -> Sequence[Tool] | None:
    """The tools of a plugin; None if no plugin has that name.

    A plugin is a function, a tool, or a list of them.
    """
    plugin = plugin_named("callboard.tools", name)
    if plugin is None:
        return None
    offered, fault = plugin.load()
    if fault is not None:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} can't be loaded: {fault}")
    provided: Sequence[ToolLike] = offered if isinstance(offered, (list, tuple)) else [offered]  # type: ignore[list-item]
    try:
        return as_tools(provided)
    except (TypeError, ToolDefinitionError) as error:
        raise ConfigurationError(f"the tools {name!r} of {plugin.package} are not tools: {error}") from error
