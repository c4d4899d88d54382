"""From arguments to an exit code: 0 done, 1 failed, 2 badly asked or badly configured, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from bus import CallboardError, ConfigurationError

from .common.harmless import harmless, note, say
from .common.logs import configure as configure_logs
from .common.screen import complain

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

FAILED = 1
BADLY_CONFIGURED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # as if by SIGPIPE, which is how `callboard traces | head` is meant to end


COMMANDS = {
    "demo": "demo.demo:add_command",
    "chat": "ask.chat:add_command",
    "embed": "ask.embed:add_command",
    "image": "ask.image:add_command",
    "video": "ask.video:add_command",
    "doctor": "manage.doctor:add_command",
    "traces": "look.traces:add_command",
    "sessions": "look.sessions:add_command",
    "cost": "look.cost:add_command",
    "budget": "look.budget:add_command",
    "stats": "look.stats:add_stats_command",
    "errors": "look.stats:add_errors_command",
    "sql": "look.sql:add_command",
    "models": "manage.models:add_command",
    "prices": "manage.prices:add_command",
    "templates": "manage.templates:add_command",
    "reprice": "reprice.reprice:add_command",
    "record": "ask.record:add_command",
    "replay": "look.replay:add_command",
    "export": "look.export:add_command",
    "prune": "manage.upkeep:add_prune",
    "backup": "manage.upkeep:add_backup",
    "ship": "manage.ship:add_command",
    "web": "look.web:add_command",
}
"""The function that adds each command to the parser, in the order of ``--help``. Only needed ones are imported."""

AddCommand: TypeAlias = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. An error of Callboard is reported in one line on stderr, without a traceback.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else argv
    if not words:
        build_parser().print_help(sys.stderr)
        return BADLY_CONFIGURED
    arguments = build_parser(_needed(words)).parse_args(words)
    make_streams_forgiving()
    configure_logs()
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ConfigurationError as error:
        complain(str(error))
        return BADLY_CONFIGURED
    except CallboardError as error:
        complain(str(error))
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more
        return PIPE_CLOSED
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            note()  # after the terminal's own ^C
        return INTERRUPTED


def _needed(words: Sequence[str]) -> Iterable[str]:
    """The commands that a parser of these words must know: all of them, unless the first word settles it."""
    match words:
        case [command, *_] if command in COMMANDS:
            return (command,)
        case ["--version", *_]:
            return ()
        case _:
            return COMMANDS


def build_parser(names: Iterable[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser of these commands. Each command adds its own part."""
    parser: argparse.ArgumentParser = _Parser(
        prog="callboard",
        description="Callboard: sessions over any model, every call an event, every cost a query.",
        epilog="Begin with `callboard demo`: it needs no key. `callboard COMMAND --help` says more of each. "
        "models.yaml, and what is kept, is in the folder $CALLBOARD_HOME (default ~/.callboard). "
        "Exit code: 0 done, 1 failed, 2 badly asked or badly configured, 130 interrupted.",
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show program's version number and exit",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        module, _, function = COMMANDS[name].partition(":")
        add_command: AddCommand = getattr(import_module(f".{module}", __package__), function)
        add_command(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """Its messages quote what was typed, or pasted."""

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        super()._print_message(harmless(message), file)


class _Version(argparse.Action):
    """As argparse's own, but the version is looked up only when it is asked for: that takes 15 ms of imports."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        say(f"callboard {installed_version()}")
        parser.exit()


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("callboard")
    except PackageNotFoundError:
        return "(not installed)"


def make_streams_forgiving() -> None:
    """A terminal that can't show a character gets a question mark, not a crash."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
