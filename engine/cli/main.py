"""From arguments to an exit code: 0 done, 1 failed, 2 badly asked or badly configured, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from bus import CallboardError, ConfigurationError

from .chat import add_command as add_chat
from .cost import add_command as add_cost
from .demo import add_command as add_demo
from .doctor import add_command as add_doctor
from .embed import add_command as add_embed
from .export import add_command as add_export
from .image import add_command as add_image
from .logs import configure as configure_logs
from .models import add_command as add_models
from .prices import add_command as add_prices
from .replay import add_command as add_replay
from .reprice import add_command as add_reprice
from .screen import complain
from .sessions import add_command as add_sessions
from .sql import add_command as add_sql
from .stats import add_errors_command, add_stats_command
from .traces import add_command as add_traces
from .upkeep import add_backup, add_prune
from .video import add_command as add_video

FAILED = 1
BADLY_CONFIGURED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # as if by SIGPIPE, which is how `callboard traces | head` is meant to end


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Reports what Callboard raises in one line on stderr; never a traceback for that."""
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return BADLY_CONFIGURED
    arguments = parser.parse_args(argv)
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
            print(file=sys.stderr)  # after the terminal's own ^C
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each command adds its own."""
    parser = argparse.ArgumentParser(
        prog="callboard",
        description="Callboard: sessions over any model, every call an event, every cost a query.",
        epilog="Begin with `callboard demo`: it needs no key. `callboard COMMAND --help` says more of each. "
        "models.yaml, and what is kept, is in the folder $CALLBOARD_HOME (default ~/.callboard). "
        "Exit code: 0 done, 1 failed, 2 badly asked or badly configured, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"callboard {installed_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add_command in (
        *(add_demo, add_chat, add_embed, add_image, add_video, add_doctor),
        *(add_traces, add_sessions, add_cost, add_stats_command, add_errors_command, add_sql),
        *(add_models, add_prices, add_reprice, add_replay, add_export, add_prune, add_backup),
    ):
        add_command(commands)
    return parser


def installed_version() -> str:
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
