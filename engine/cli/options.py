"""The options that several commands have, and their values: the trace, its calls, the model, the engine."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import anyio

from callboard.bus import ConfigurationError, StoreError
from callboard.bus.clock import read_moment
from callboard.tracestore.home import home_folder

from ..stores import StoreAddress, TracePlace, is_address
from .sanitize import note
from .table import NANO

if TYPE_CHECKING:
    from callboard.adapters import CallWarning
    from callboard.tracestore import CallFilter, Store

    from .. import Engine


def add_models_file(parser: argparse.ArgumentParser) -> None:
    help = "read this models.yaml (default: $CALLBOARD_HOME/models.yaml)"
    parser.add_argument("--models-file", type=Path, metavar="PATH", help=help)


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add ``-m`` or ``--model``, which accepts any name of a model."""
    default = "" if required else " (default: the configured one)"
    parser.add_argument(
        "-m", "--model", required=required, metavar="NAME", help=f"the model, by any of its names{default}"
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add ``--key``, the name of the key to send."""
    parser.add_argument("--key", metavar="NAME", help="use the key with this name (default: the adapter's own)")


def flag(parser: argparse._ActionsContainer, *names: str, help: str, **how: Any) -> None:
    """Add an option without a value. It is True if the option is used."""
    parser.add_argument(*names, action="store_true", help=help, **how)


def repeated(parser: argparse.ArgumentParser, *flags: str, **how: Any) -> None:
    """Add an option that may occur several times. Its value is a list."""
    parser.add_argument(*flags, action="append", default=[], **how)


def add_port(parser: argparse.ArgumentParser, port: int) -> None:
    help = f"listen on this port (default: {port}; 0: any free port)"
    parser.add_argument("--port", type=int, default=port, metavar="N", help=help)


def add_address(parser: argparse.ArgumentParser, port: int, *, network: str, hosts: str) -> None:
    """Add the options for a server's address: --port, --bind, --allow-network and --host. `network` and `hosts`
    are the help of the last two.
    """
    add_port(parser, port)
    parser.add_argument(
        "--bind", default="127.0.0.1", metavar="ADDRESS", help="listen on this address (default: 127.0.0.1)"
    )
    flag(parser, "--allow-network", help=network)
    repeated(parser, "--host", metavar="NAME", help=hosts)


def add_action(
    inner: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    description: str = "",
) -> argparse.ArgumentParser:
    """Add a command within a command, such as ``keys set``. Its description defaults to `help`."""
    parser = inner.add_parser(name, help=help, description=description or f"{help}.")
    parser.set_defaults(run=run)
    return parser


STORE_VARIABLE = "CALLBOARD_STORE"
"""The environment variable for the store's address. Use it for an address with a password, because other users of
the machine can see arguments.
"""


OWN_TRACE = "$CALLBOARD_HOME/trace.db"


def add_trace(
    parser: argparse.ArgumentParser,
    default: str = f"{OWN_TRACE}, else the demo's",
    *,
    file: str = "read this trace file",
    server: str = "read the trace on a server",
) -> None:
    """Add ``--db`` and ``--store``, which select the trace."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--db", type=trace_file, metavar="PATH", help=f"{file} (default: {default})")
    address = f"{server}, as postgresql://USER@HOST/DATABASE (default: ${STORE_VARIABLE}, if set)"
    which.add_argument("--store", type=store_address, metavar="URL", help=address)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the trace and calls in it."""
    from callboard.tracestore.call_columns import CallStatus

    add_trace(parser)
    parser.add_argument("--session", metavar="ID", help="show only this session")
    parser.add_argument(
        "--model", metavar="M", help="show only this model: provider:name or name, with an optional '*' at the end"
    )
    parser.add_argument("--provider", metavar="P", help="show only this provider")
    parser.add_argument("--status", choices=get_args(CallStatus), help="show only calls with this status")
    add_period(parser)
    parser.add_argument("--turn", metavar="ID", help="show only this turn")
    parser.add_argument("--root", metavar="ID", help="show only this turn, and the turns and calls below it")
    add_tag(parser)
    parser.add_argument("--key", metavar="NAME", help="show only calls with this key name")
    parser.add_argument(
        "--source",
        metavar="NAME",
        help="show only calls of this source: a program, 'callboard', or 'imported' for all imported calls",
    )
    parser.add_argument("--error-class", metavar="C", help="show only attempts that failed with this error class")
    flag(parser, "--unpriced", help="show only calls with usage but no price")
    flag(parser, "--unknown", help="show only attempts with unknown usage")
    parser.add_argument(
        "--min-cost", metavar="USD", type=amount, help="show only calls that cost at least this amount"
    )


def add_period(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="start at this day or time (ISO 8601), or 24h or 7d ago"
    )
    parser.add_argument(
        "--until", type=moment, metavar="TIME", help="end before this day or time, or 24h or 7d ago"
    )


def add_limit(parser: argparse.ArgumentParser, default: int, what: str, *flags: str) -> None:
    """Add ``--limit``, the maximum number of shown rows."""
    help = f"show at most N {what} (default: {default})"
    parser.add_argument(*flags, "--limit", type=positive, default=default, metavar="N", help=help)


def add_tag(parser: argparse.ArgumentParser, help: str = "show only calls with this tag (repeatable)") -> None:
    parser.add_argument("--tag", metavar="KEY=VALUE", type=tag, action="append", help=help)


def call_filter(arguments: argparse.Namespace) -> CallFilter:
    """Make the call filter from the options of `add_filters`."""
    from callboard.tracestore import CallFilter

    return CallFilter(
        since=arguments.since,
        until=arguments.until,
        provider=arguments.provider,
        model=arguments.model,
        session_id=arguments.session,
        status=arguments.status,
        turn_id=arguments.turn,
        root_turn_id=arguments.root,
        tags=dict(arguments.tag) if arguments.tag else None,
        error_class=arguments.error_class,
        key=arguments.key,
        unpriced=arguments.unpriced,
        unknown=arguments.unknown,
        origin=arguments.source,
        min_cost_nano_usd=arguments.min_cost,
    )


def named_trace(arguments: argparse.Namespace) -> TracePlace | None:
    """The trace that ``--db``, ``--store`` or CALLBOARD_STORE selects; None if none does."""
    named: TracePlace | None = arguments.db or arguments.store
    return named if named is not None else store_of_environment()


def store_of_environment() -> StoreAddress | None:
    text = os.environ.get(STORE_VARIABLE)
    try:
        return StoreAddress(text) if text else None
    except ConfigurationError as error:
        raise ConfigurationError(f"{STORE_VARIABLE}: {error}") from None


def chosen_trace(arguments: argparse.Namespace) -> TracePlace:
    """The selected trace. Without a selection, the default file."""
    if (named := named_trace(arguments)) is not None:
        return named
    found = default_trace()
    if not found.exists():
        raise StoreError(
            f"no trace file at {found}. The first call of an engine or `callboard demo` creates it. Use "
            f"--db for another file, --store for a database, or CALLBOARD_HOME for another folder."
        )
    return found


def trace_file(text: str) -> Path:
    if is_address(text):
        raise argparse.ArgumentTypeError("use --store, not --db, for a database on a server")
    return Path(text)


def store_address(text: str) -> StoreAddress:
    """Parse the address of a trace on a server."""
    try:
        return StoreAddress(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def moment(text: str) -> datetime:
    """Parse a day or a time, local if it has no zone, or an age: 90m, 24h, 7d, 2w."""
    try:
        return read_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tag(text: str) -> tuple[str, str]:
    """Parse a tag such as team=search. Returns its key and value."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tag such as team=search")
    return key, value


def amount(text: str) -> int:
    """Parse an amount in USD. Returns nano-USD."""
    try:
        nano = Decimal(text.removeprefix("$")) * NANO
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount in USD such as 0.05") from None
    if not nano.is_finite() or nano != nano.to_integral_value() or not 0 <= nano < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount in USD with at most 9 decimals")
    return int(nano)


# --- Typed paths ---

TRACE_NAME = "trace.db"
DEMO_TRACE_NAME = "demo-trace.db"


@contextmanager
def failing_as(kind: Callable[[str], Exception], place: object) -> Iterator[None]:
    """Convert an OSError to an error of Callboard that includes the place."""
    try:
        yield
    except OSError as error:
        raise kind(f"{place}: {error.strerror or error}") from error


def default_trace() -> Path:
    """The default trace file: the engine's file. If only the demo's file exists, the demo's file."""
    own_trace, demo = home_folder() / TRACE_NAME, demo_trace()
    return demo if demo.exists() and not own_trace.exists() else own_trace


def demo_trace() -> Path:
    return home_folder() / DEMO_TRACE_NAME


def command_name() -> str:
    """The name by which this command was called, for hints about other commands."""
    called = Path(sys.argv[0])
    if called.name != "callboard":
        return "python -m callboard"
    return called.name if shutil.which("callboard") == str(called) else short(called)


def short(path: Path) -> str:
    """A path relative to the current folder, quoted if needed."""
    return shlex.quote(str(near(path)))


def option_of(trace: TracePlace) -> str:
    """The option that selects a trace, as the user would type it. It contains no password."""
    return f"--db {short(trace)}" if isinstance(trace, Path) else f"--store {shlex.quote(str(trace))}"


def near(path: Path) -> Path:
    """The path, relative if it is within the working directory."""
    shorter = os.path.relpath(path)
    return path if shorter.startswith("..") else Path(shorter)


# --- Reading the trace ---


def from_trace(
    arguments: argparse.Namespace,
    read: Callable[[Store], Awaitable[T]],
    *,
    opened: Callable[[TracePlace], Store] | None = None,
) -> T:
    """Run a query on the selected trace, and return its result."""

    from ..stores import store_to_read

    async def work() -> T:
        place = chosen_trace(arguments)
        if opened is not None and isinstance(place, Path) and not place.exists():
            raise StoreError(f"no trace file at {place}")
        async with (opened or store_to_read)(place) as store:
            return await read(store)

    return anyio.run(work)


async def price_version(store: Store, under: str | None) -> str | None:
    """The full version of a price table from the start in ``--under``; None without the option."""
    if under is None:
        return None
    versions = [table.version for table in await store.price_tables()]
    fitting = [version for version in versions if version.startswith(under)]
    if len(fitting) != 1:
        raise ConfigurationError(
            f"--under {under}: {'several' if fitting else 'no'} price versions start with this; the "
            f"trace has {', '.join(versions) or 'none'}"
        )
    return fitting[0]


T = TypeVar("T")


def on_engine(
    arguments: argparse.Namespace,
    work: Callable[[Engine], Awaitable[T]],
    *,
    capture_content: bool = False,
) -> T:
    """Run a function on an engine with the configuration of ``--models-file``, and return its result."""
    from .. import Engine, load_registry

    registry = load_registry(arguments.models_file)

    async def run() -> T:
        async with Engine(models=registry, capture_content=capture_content) as engine:
            return await work(engine)

    return anyio.run(run)


def print_warnings(warnings: Iterable[CallWarning]) -> None:
    """Write the warnings of a call to stderr."""
    for warning in warnings:
        note(f"{warning.code}: {warning.message}")
