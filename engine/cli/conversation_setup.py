"""Sets up a conversation: its model, the last conversation, its tools and MCP servers, and their questions to the
user.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import logging
import os
import shlex
import sys
import traceback
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, TypeAlias

import anyio
import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.bus.log import ROOT
from callboard.tracestore.home import home_folder

from .. import (
    ApprovalRequest,
    Approved,
    Denied,
    GenerateResult,
    ModelInfo,
    ModelRegistry,
    Tool,
    get_latest_model,
    list_models,
    mcp_tools,
)
from ..mcp import Elicitation, ElicitationAnswer, McpOAuth, McpServers, McpTokenFile, SamplingRequest, mcp_servers
from ..mcp.servers import ACTOR
from ..models.configured import FROM_ENVIRONMENT
from ..tools import Approve, ToolLike, as_tools
from ..tools.definitions import plugin_tools
from .command_line import PAIR
from .options import flag, repeated
from .sanitize import note, one_line
from .table import json_text

# --- The model ---

VARIABLE = "CALLBOARD_MODEL"
"""The environment variable with the model to use without ``-m``."""


def first_model(registry: ModelRegistry) -> str:
    """The first of these that is set: the model of $CALLBOARD_MODEL, the default model, and the first usable
    model.

    Without a models.yaml, the first usable model is the latest model of the provider with a key. At a terminal,
    its name is shown, because the user has not chosen it.
    """
    chosen = os.environ.get(VARIABLE) or registry.default_model
    if chosen:
        return chosen
    if registry.source == FROM_ENVIRONMENT and registry.default_provider is not None:
        latest = get_latest_model(registry.default_provider)
        if latest is not None:
            model = f"{registry.default_provider}:{_priced(registry.default_provider, latest).id}"
            if sys.stderr.isatty():
                note(f"({model}; choose another with -m, or for all commands with {VARIABLE})")
            return model
    for entry in registry.models.values():
        if entry.kind == "chat" and registry.adapters[entry.adapter].state == "configured":
            return entry.aliases[0] if entry.aliases else entry.id
    raise ConfigurationError(f"{registry.source} lists no model that can be called; choose one with --model")


def _priced(provider: str, latest: ModelInfo) -> ModelInfo:
    """A provider's best general model with a known price. If there is none, its latest model."""
    return next(
        (
            each
            for each in list_models(provider)
            if each.general and not each.deprecated and each.input_cost_per_million is not None
        ),
        latest,
    )


class LastSession(msgspec.Struct, frozen=True):
    """The last conversation of this user."""

    session_id: str
    tools: tuple[str, ...] = ()
    """The tools, as named on the command line. Their code is not stored."""


def _file() -> Path:
    return home_folder() / "last-session.json"


def last_session() -> LastSession:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=LastSession)
    except (OSError, msgspec.DecodeError):
        raise ConfigurationError("there is no conversation to continue yet: ask without -c first") from None


def remember(session_id: str, tools: Sequence[str] = ()) -> None:
    """Store this conversation as the last one. If the folder can't be written, nothing happens."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_private(_file(), msgspec.json.encode(LastSession(session_id, tuple(tools))))


# --- Tools ---
#
# `-T weather.py` is the tools of a file that are made with @tool. Without any, it is the file's public functions.
# `-T weather.py:forecast` is one of them. `-T package.module:name` is the same with a module.
# `-T https://host/mcp` is the tools of an MCP server. `-T "mcp:npx some-server"` starts the server first.
# `-T NAME` is the tools of a plugin. `--mcp FILE` is the tools of the servers in a file.

_COMMAND = "mcp:"

MCP_FILE = "mcp-file:"
"""The prefix that marks a file of MCP servers among the tools of a conversation."""

Generate: TypeAlias = Callable[[SamplingRequest], Awaitable[GenerateResult]]


def add_tools_and_options(parser: argparse.ArgumentParser, *, tools: str, options: str) -> None:
    """Add the options for tools: -T, --mcp, --approve and -o. `tools` and `options` are the help of -T and -o."""
    repeated(parser, "-T", "--tool", dest="tools", metavar="TOOL", help=tools)
    add_mcp_file(parser)
    flag(parser, "--approve", help="ask before each tool call")
    repeated(parser, "-o", "--option", dest="options", nargs=2, metavar=PAIR, help=options)


def add_mcp_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mcp",
        dest="tools",
        action="append",
        type=MCP_FILE.__add__,
        metavar="FILE",
        help='use the MCP servers of a file in the form {"mcpServers": {...}} (repeatable)',
    )


async def given_tools(
    words: Sequence[str], life: AsyncExitStack, generate: Generate | None = None
) -> tuple[ToolLike, ...]:
    """Load the tools that the command line names. Tools of MCP servers in a file may change later.

    `life` stops the servers at the end. `generate` makes a reply if a server requests one and the user agrees.
    """
    found: list[ToolLike] = []
    for word in words:
        server = _server(word)
        if word.startswith(MCP_FILE):
            found.append(await _opened(word.removeprefix(MCP_FILE), life, generate))
        elif server is not None:
            found += await life.enter_async_context(mcp_tools(server))
        else:
            found += _of_code(word)
    try:
        as_tools(found)
        return tuple(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from error


def _server(word: str) -> str | list[str] | None:
    """The address or the command of an MCP server; None if the argument names Python code."""
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
        raise ConfigurationError(f"{place} has no tools: it needs a public function with type hints")
    return tools


def tools_of(module: ModuleType) -> list[ToolLike]:
    """The ``@tool`` tools of a module. If it has none, the module's own public functions."""
    public = [value for name, value in vars(module).items() if not name.startswith("_")]
    made: list[ToolLike] = [value for value in public if isinstance(value, Tool)]
    own_functions = [each for each in public if inspect.isfunction(each) and each.__module__ == module.__name__]
    return made or list(own_functions)


def _loaded(path: Path) -> ModuleType:
    """Run a file as a module with a unique name."""
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
    """The error text for a file of tools, with the line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    at = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return f"{path}{f':{at}' if at else ''}: {type(error).__name__}: {error}"


def _imported(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # appended, so that installed packages take precedence
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"-T {name}: {error}") from error
        raise ConfigurationError(
            f"-T {name}: no such plugin or module. The name of a file ends with .py, and that of a "
            f"server starts with https:// or mcp:"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"-T {name}: {type(error).__name__}: {error}") from error


# --- MCP servers of a file ---
# Their logins are stored in a private file next to the trace.


async def _opened(path: str, life: AsyncExitStack, generate: Generate | None = None) -> McpServers:
    """The servers of a file, open until the conversation ends. Servers that are down are reported."""
    servers = mcp_servers(
        path,
        auth=McpOAuth(McpTokenFile(home_folder() / "mcp-logins.json"), open_url=_open_page),
        elicit=ask_user,
        sampling=None if generate is None else lambda request: _sampled(request, generate),
        roots=[Path.cwd()],
    )
    logging.getLogger("callboard.bus.actor").addFilter(_is_no_server)
    logging.getLogger("callboard.engine.mcp").setLevel(logging.ERROR)
    await life.enter_async_context(servers)
    for status in servers.status():
        if status.state != "up":
            note(f"(MCP server {status.name}: {one_line(status.error or status.state)})")
    return servers


def _is_no_server(record: logging.LogRecord) -> bool:
    """A log filter that hides lines about the end of a server, which are reported in another way."""
    return not str(getattr(record, ROOT, {}).get("actor", "")).startswith(ACTOR)


def _open_page(url: str) -> None:
    note(f"(log in at {url})")
    webbrowser.open(url)


# --- Questions to the user at the terminal ---

_NOBODY = "it needs an approval, and no terminal is available to ask for it"


def approver(tools: Iterable[ToolLike], *, asks_always: bool, tells: bool = True) -> Approve:
    """The function that decides about tool calls. Tools that need no approval run without a question."""

    def approve(request: ApprovalRequest) -> Approved | Denied:
        call = f"{request.call.name} {json_text(request.arguments)}"
        careful = {tool.name for tool in as_tools(tools) if tool.needs_approval is not None}
        if not asks_always and request.call.name not in careful:
            if tells:
                note(f"tool {call}")
            return Approved()
        try:
            with _terminal() as terminal:
                return _ask_user(terminal, call)
        except OSError:
            note(f"tool {call}: {_NOBODY}")
            return Denied(_NOBODY)

    return approve


def _ask_user(terminal: TextIO, call: str) -> Approved | Denied:
    terminal.write(f"tool {one_line(call)}: run it? [y/N, or a reason] ")
    answer = terminal.readline().strip()
    if answer.lower() in ("y", "yes"):
        return Approved()
    return Denied("" if answer.lower() in ("", "n", "no") else answer)


def _terminal() -> TextIO:
    """The user's terminal, even if stdin is a pipe. Raises OSError."""
    return open("/dev/tty", "r+", encoding="utf-8", buffering=1)


def _agrees(terminal: TextIO, question: str) -> bool:
    terminal.write(f"{question} [y/N] ")
    return terminal.readline().strip().lower() in ("y", "yes")


def ask_user(question: Elicitation) -> ElicitationAnswer:
    """Ask the user at the terminal. Without a terminal, the question is declined."""
    try:
        with _terminal() as terminal:
            return answer_at(terminal, question)
    except OSError:
        note(f"(MCP server {question.server} asks: {one_line(question.message)}; there is no terminal to answer)")
        return "decline"


def answer_at(terminal: TextIO, question: Elicitation) -> ElicitationAnswer:
    """The user's answer: a value for each field, or whether the user agrees to open a page."""
    terminal.write(f"MCP server {one_line(question.server)} asks: {one_line(question.message)}\n")
    if question.url is not None:
        if not _agrees(terminal, f"It wants you to visit {one_line(question.url)}. Open it?"):
            return "decline"
        webbrowser.open(question.url)
        return "accept"
    if not _agrees(terminal, "Answer?"):
        return "decline"
    properties: Any = (question.schema or {}).get("properties") or {}
    needed: Any = (question.schema or {}).get("required") or ()
    found: dict[str, Any] = {}
    for name, schema in properties.items():
        while True:
            terminal.write(f"  {_prompt(name, schema)}: ")
            line = terminal.readline()
            if not line:
                return "cancel"
            word = line.strip()
            if not word and (name not in needed or "default" in schema):
                break
            try:
                found[name] = value_of(word, schema)
                break
            except ValueError as error:
                terminal.write(f"  {error}\n")
    return found


def _prompt(name: str, schema: dict[str, Any]) -> str:
    words = [one_line(str(schema.get("title") or name))]
    if choices := _choices(schema):
        words.append(f"({', '.join(map(one_line, choices))})")
    elif schema.get("description"):
        words.append(f"({one_line(str(schema['description']))})")
    if "default" in schema:
        words.append(f"[{one_line(str(schema['default']))}]")
    return " ".join(words)


def _choices(schema: dict[str, Any]) -> list[str]:
    items = schema.get("items") if schema.get("type") == "array" else schema
    item_schema = items if isinstance(items, dict) else {}
    titled = item_schema.get("oneOf") or item_schema.get("anyOf") or ()
    return [str(each) for each in item_schema.get("enum") or [each.get("const") for each in titled]]


def value_of(word: str, schema: dict[str, Any]) -> object:
    """Convert a typed word to the value of a field. Raises ValueError with a text for the user."""
    choices = _choices(schema)
    match schema.get("type"):
        case "boolean":
            if word.lower() not in ("y", "yes", "true", "n", "no", "false"):
                raise ValueError("yes or no?")
            return word.lower() in ("y", "yes", "true")
        case "integer" | "number" as kind:
            try:
                return int(word) if kind == "integer" else float(word)
            except ValueError:
                raise ValueError(f"this is not a {kind}") from None
        case "array":
            words = [part.strip() for part in word.split(",") if part.strip()]
            if choices and (wrong := [part for part in words if part not in choices]):
                raise ValueError(f"{wrong[0]!r} is none of them; separate several with commas")
            return words
        case _:
            if choices and word not in choices:
                raise ValueError("this is none of them")
            return word


async def _sampled(request: SamplingRequest, generate: Generate) -> GenerateResult | None:
    """Generate a reply for a server, if the user agrees."""

    def agreed() -> bool:
        text = one_line(request.messages[-1].text if request.messages else "")
        try:
            with _terminal() as terminal:
                return _agrees(terminal, f"MCP server {one_line(request.server)} asks the model: {text}\nSend it?")
        except OSError:
            return False

    return await generate(request) if await anyio.to_thread.run_sync(agreed) else None
