"""Tools as words: functions of a Python file or module, MCP servers, and tools of plugins.

-T weather.py                 the tools of a file: what @tool made, or else its public functions
-T weather.py:forecast        one of them; the same with a module, as in -T package.module:name
-T https://host/mcp           the tools of an MCP server
-T "mcp:npx some-server"      the tools of an MCP server that is started by this command
-T NAME                       the tools of a plugin
"""

from __future__ import annotations

import inspect
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from callboard.bus import ConfigurationError
from callboard.engine import Tool, mcp_tools
from callboard.engine.tools import ToolLike, as_tools
from callboard.engine.tools.plugins import plugin_tools

_COMMAND = "mcp:"


async def given_tools(words: Sequence[str], life: AsyncExitStack) -> tuple[Tool, ...]:
    """The tools that a person names.

    Args:
        words: The values of ``-T``.
        life: What the connections to MCP servers live in.

    Raises:
        CallboardError: A server can't be reached.
        ConfigurationError: There is no such file, module, function or plugin, or it can't be a tool.
    """
    found: list[ToolLike] = []
    for word in words:
        server = _server(word)
        if server is not None:
            found += await life.enter_async_context(mcp_tools(server))
        else:
            found += _of_code(word)
    try:
        return as_tools(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from error


def _server(word: str) -> str | list[str] | None:
    """The address or the command of an MCP server; None if the word names code."""
    if word.startswith(("http://", "https://")):
        return word
    if not word.startswith(_COMMAND):
        return None
    try:
        command = shlex.split(word.removeprefix(_COMMAND))
    except ValueError as error:
        raise ConfigurationError(f"-T {word}: {error}") from None
    if not command:
        raise ConfigurationError("-T mcp: names no command, such as 'mcp:npx some-server'")
    return command


def _of_code(word: str) -> list[ToolLike]:
    place, _, name = word.rpartition(":") if ":" in word else (word, "", "")
    if place.endswith(".py"):
        module = _loaded(Path(place).expanduser())
    else:
        offered = plugin_tools(word)
        if offered is not None:
            return list(offered)
        module = _imported(place)
    if name:
        if not hasattr(module, name):
            raise ConfigurationError(f"{place} has no {name!r}")
        return [getattr(module, name)]
    tools = tools_of(module)
    if not tools:
        raise ConfigurationError(f"{place} has no tool: no public function with type hints")
    return tools


def tools_of(module: ModuleType) -> list[ToolLike]:
    """What ``@tool`` made in a module; if that is nothing, its own public functions."""
    public = [value for name, value in vars(module).items() if not name.startswith("_")]
    made: list[ToolLike] = [value for value in public if isinstance(value, Tool)]
    own = [each for each in public if inspect.isfunction(each) and each.__module__ == module.__name__]
    return made or list(own)


def _loaded(path: Path) -> ModuleType:
    """The module of a file, run under a name of its own."""
    name = f"callboard_tools_{path.stem}"
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigurationError(_fault(path, error)) from error
    return module


def _fault(path: Path, error: Exception) -> str:
    """What a file of tools did wrong, and on which of its lines."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"{path}{f':{at}' if at else ''}: {type(error).__name__}: {error}"


def _imported(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # behind what is installed
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"-T {name}: {error}") from error
        raise ConfigurationError(
            f"-T {name}: there is no such plugin or module; a file ends with .py, a server begins with https:// "
            "or mcp:"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"-T {name}: {type(error).__name__}: {error}") from error
