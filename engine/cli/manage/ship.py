"""`callboard ship`: copies a trace file to a server, beside the programs that write it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import anyio

from callboard.bus import ConfigurationError, StoreError

from ...opening import forget_target, ship_file
from ...store_address import StoreAddress
from ..common.arguments import STORE_VARIABLE, store_address, trace_file
from ..common.places import default_trace
from ..common.screen import make_console
from ..common.words import plural


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "ship",
        help="Copy a trace file to a server as it grows",
        description="Copies a trace file to a trace on a server that many hosts share, and goes on as more comes, "
        "until it is interrupted. Nothing is doubled. Files of programs of this machine that died on the way are "
        "copied, too.",
    )
    parser.add_argument(
        "--db",
        type=trace_file,
        metavar="PATH",
        help="trace file (default: $CALLBOARD_HOME/trace.db, else the demo's)",
    )
    parser.add_argument(
        "--store",
        type=store_address,
        metavar="URL",
        help=f"where to, as postgresql://USER@HOST/DATABASE (default: ${STORE_VARIABLE})",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="end when everything is there")
    how.add_argument(
        "--forget",
        action="store_true",
        help="the file is not copied there any more: nothing waits for it, and `prune` deletes what it lacks",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    trace: Path = arguments.db or default_trace()
    target = _target(arguments)
    if not trace.exists():
        raise StoreError(f"there is no trace file at {trace}; --db names another one")
    console = make_console()
    if arguments.forget:
        known = forget_target(trace, target)
        console.print(
            f"{trace} is not copied to {target} any more."
            if known
            else f"{trace} was never copied to {target}; nothing was changed.",
            soft_wrap=True,
        )
        return 0 if known else 1
    if not arguments.once:
        console.print(f"{trace} -> {target}, until it is interrupted", soft_wrap=True)
    events = anyio.run(ship_file, trace, target, arguments.once)
    console.print(f"{plural(events, 'event')} sent to {target}", soft_wrap=True)
    return 0


def _target(arguments: argparse.Namespace) -> StoreAddress:
    named: StoreAddress | None = arguments.store
    if named is not None:
        return named
    text = os.environ.get(STORE_VARIABLE)
    if not text:
        raise ConfigurationError(f"say where to: --store URL, or {STORE_VARIABLE}")
    try:
        return StoreAddress(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{STORE_VARIABLE}: {error}") from None
