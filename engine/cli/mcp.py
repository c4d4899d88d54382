"""MCP on the command line: `callboard serve-mcp`, and the servers of ``--mcp FILE``.

Questions of a server are shown to the user at the terminal. Logins are stored in a private file next to the
trace.
"""

from __future__ import annotations

import argparse
import logging
import os
import webbrowser
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TextIO

import anyio

from callboard.bus import ConfigurationError
from callboard.bus.log import ROOT
from callboard.tracestore.home import home_folder

from .. import Engine, GenerateResult, Session, load_registry
from ..mcp import Elicitation, ElicitationAnswer, McpOAuth, McpServers, McpTokenFile, SamplingRequest, mcp_servers
from ..mcp.servers import ACTOR
from ..tools import ToolLike
from .conversation_setup import add_mcp_file, given_tools
from .options import add_address, add_models_file, repeated
from .sanitize import note, one_line
from .web import listening, refuse_open_binds, serve_until_interrupt

PORT = 8374

TOKEN_VARIABLE = "CALLBOARD_MCP_TOKEN"
"""The environment variable with the token that clients of `serve-mcp --http` must send."""


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve tools to other programs as an MCP server, over stdin and stdout. With -m, serve a model instead: "
        "the tool `ask` sends a message to a session that has the tools."
    )
    repeated(
        parser,
        "-T",
        "--tool",
        dest="tools",
        metavar="TOOL",
        help="serve these tools: FILE.py, FILE.py:function, a module, a plugin, or an MCP server (repeatable)",
    )
    add_mcp_file(parser)
    parser.add_argument("-m", "--model", metavar="NAME", help="serve sessions of this model, by the tool `ask`")
    parser.add_argument("-s", "--system", metavar="TEXT", help="set the system prompt of the sessions")
    parser.add_argument(
        "--name", default="callboard", metavar="NAME", help="set the name of the server (default: callboard)"
    )
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP at /mcp instead")
    add_address(
        parser,
        PORT,
        network=f"serve other machines; clients send the token in ${TOKEN_VARIABLE}",
        hosts="accept requests for this host name (repeatable)",
    )
    add_models_file(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.tools and arguments.model is None:
        raise ConfigurationError("serve-mcp needs tools (-T, --mcp) or a model (-m) to serve")
    if arguments.http:
        refuse_open_binds(arguments)
        if arguments.allow_network and not os.environ.get(TOKEN_VARIABLE):
            raise ConfigurationError(f"--allow-network needs a token for clients: set ${TOKEN_VARIABLE}")
    anyio.run(_serve, arguments)
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from ..mcp.ask import unknown_conversation
    from ..mcp.serve import mcp_service

    async with AsyncExitStack() as life:
        tools: Sequence[ToolLike] = await given_tools(arguments.tools, life)
        if arguments.model is None:
            service = mcp_service(tools, name=arguments.name)
        else:
            engine = await life.enter_async_context(Engine(models=load_registry(arguments.models_file)))

            def session(conversation: str | None) -> Session:
                if conversation is not None:
                    raise unknown_conversation(conversation)
                return engine.session(arguments.model, system_prompt=arguments.system, tools=tools)

            session(None)  # so that a wrong name is reported at the start
            service = mcp_service(session=session, name=arguments.name)
        if not arguments.http:
            await service.serve_stdio()
            return
        app = service.http_app(hosts=arguments.host, token=os.environ.get(TOKEN_VARIABLE) or None)
        await _serve_http(app, arguments)


async def _serve_http(app: Any, arguments: argparse.Namespace) -> None:
    listener, address = listening(arguments)
    note(f"An MCP server, until Ctrl-C: {address}mcp")
    await serve_until_interrupt(app, listener, lifespan="auto")


Generate = Callable[[SamplingRequest], Awaitable[GenerateResult]]


async def opened(path: str, life: AsyncExitStack, generate: Generate | None = None) -> McpServers:
    """The servers of a file, until the end of a conversation. A note names each server that is down."""
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
    """A log filter that hides lines about the end of a server, because a note reports it."""
    return not str(getattr(record, ROOT, {}).get("actor", "")).startswith(ACTOR)


def _open_page(url: str) -> None:
    note(f"(log in at {url})")
    webbrowser.open(url)


# --- Questions to the user ---


def ask_user(question: Elicitation) -> ElicitationAnswer:
    """Ask at the terminal. Without a terminal the question is declined."""
    try:
        with open("/dev/tty", "r+", encoding="utf-8", buffering=1) as terminal:
            return answer_at(terminal, question)
    except OSError:
        note(f"(MCP server {question.server} asks: {one_line(question.message)}; there is no terminal to answer)")
        return "decline"


def answer_at(terminal: TextIO, question: Elicitation) -> ElicitationAnswer:
    """The user's answer: a value for each field, or whether to open a page."""
    terminal.write(f"MCP server {one_line(question.server)} asks: {one_line(question.message)}\n")
    if question.url is not None:
        terminal.write(f"It wants you to visit {one_line(question.url)}. Open it? [y/N] ")
        if terminal.readline().strip().lower() not in ("y", "yes"):
            return "decline"
        webbrowser.open(question.url)
        return "accept"
    terminal.write("Answer? [y/N] ")
    if terminal.readline().strip().lower() not in ("y", "yes"):
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
    given = items if isinstance(items, dict) else {}
    titled = given.get("oneOf") or given.get("anyOf") or ()
    return [str(each) for each in given.get("enum") or [each.get("const") for each in titled]]


def value_of(word: str, schema: dict[str, Any]) -> object:
    """A typed word as the value of a field. Raises ValueError with a text for the user."""
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
            with open("/dev/tty", "r+", encoding="utf-8", buffering=1) as terminal:
                terminal.write(f"MCP server {one_line(request.server)} asks the model: {text}\nSend it? [y/N] ")
                return terminal.readline().strip().lower() in ("y", "yes")
        except OSError:
            return False

    return await generate(request) if await anyio.to_thread.run_sync(agreed) else None
