"""`callboard serve-mcp`: tools, or a model, as an MCP server for other hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio

from callboard.bus import ConfigurationError

from .. import Engine, Session, load_registry
from ..tools import ToolLike
from .conversation_setup import add_mcp_file, given_tools
from .options import add_address, add_models_file, repeated
from .sanitize import note
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
