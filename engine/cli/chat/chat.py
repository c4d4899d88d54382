"""`callboard chat`: a chat over the same engine that a host embeds.

The main thread is the person's: it reads lines, draws, and is where Ctrl-C arrives. The engine has an event loop
in a thread of its own, so that neither ever waits for the other.
"""

from __future__ import annotations

import argparse

from anyio.from_thread import start_blocking_portal

from callboard.engine import load_registry

from ..answer.last_session import LastSession, last_session
from ..commands import PAIR
from ..common.arguments import add_key, add_models_file
from ..common.screen import Screen, make_console
from ..given.options import options_of
from .backstage import Backstage, Setting
from .conversation import Chat
from .interrupts import Interrupts

TOOL_ROUNDS = 10
"""How often the model may go on after its tools, unless ``-o max_tool_rounds`` says otherwise."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "chat",
        help="Talk to a model, and switch models on the way",
        description="A conversation at a terminal, or of the lines of a pipe. /help in it shows its commands. "
        "What is said is kept if --save, /save or the question at its end says so.",
    )
    parser.add_argument("-m", "--model", metavar="NAME", help="by any of its names (default: the configured one)")
    parser.add_argument("-s", "--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--save", action="store_true", help="keep what is said, so that it can be resumed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--resume", metavar="SESSION", help="go on with a saved session, and save it (see `callboard sessions`)"
    )
    which.add_argument(
        "-c",
        "--continue",
        dest="goes_on",
        action="store_true",
        help="go on with the last conversation that is kept",
    )
    parser.add_argument(
        "-T",
        "--tool",
        dest="tools",
        metavar="TOOL",
        action="append",
        default=[],
        help="functions of a FILE.py or a module, or an MCP server, as `callboard ask` takes them",
    )
    parser.add_argument("--approve", action="store_true", help="ask before each call of a tool")
    parser.add_argument(
        "-o",
        "--option",
        dest="options",
        nargs=2,
        metavar=PAIR,
        action="append",
        default=[],
        help="such as temperature=0.2 or temperature 0.2, for every message",
    )
    add_key(parser)
    add_models_file(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the chat. Errors inside the conversation are shown in it.

    Raises:
        CallboardError: There can be no chat.
    """
    setting = setting_of(arguments)
    registry = load_registry(arguments.models_file)
    screen = Screen(make_console())
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(Backstage, registry, setting)) as backstage,
        Interrupts() as interrupts,
    ):
        Chat(screen, portal, backstage, interrupts, setting).talk()
    return 0


def setting_of(arguments: argparse.Namespace) -> Setting:
    """What the chat begins with.

    Raises:
        ConfigurationError: Something of it is wrong.
    """
    last = last_session() if arguments.goes_on else LastSession("")
    return Setting(
        model=arguments.model,
        system=arguments.system,
        key=arguments.key,
        resumed=last.session_id or arguments.resume,
        saved=arguments.save,
        options={"max_tool_rounds": TOOL_ROUNDS, **options_of(map(tuple, arguments.options))},
        tools=arguments.tools or last.tools,
        asks_always=arguments.approve,
    )
