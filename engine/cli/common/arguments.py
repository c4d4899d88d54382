"""The options that commands share: the trace file, the calls in it, the model and its configuration."""

from __future__ import annotations

import argparse
import os
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import get_args

from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import CallFilter
from callboard.tracestore.filters import CallStatus
from callboard.tracestore.timestamps import read_moment

from ...store_address import StoreAddress, TracePlace, is_address
from .money import NANO
from .places import default_trace


def add_models_file(parser: argparse.ArgumentParser) -> None:
    """``--models-file``."""
    parser.add_argument(
        "--models-file", type=Path, metavar="PATH", help="models.yaml (default: $CALLBOARD_HOME/models.yaml)"
    )


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """``-m`` or ``--model``, by any of its names."""
    default = "" if required else " (default: the configured one)"
    parser.add_argument("-m", "--model", required=required, metavar="NAME", help=f"by any of its names{default}")


def add_key(parser: argparse.ArgumentParser) -> None:
    """``--key``, the name of the key to send."""
    parser.add_argument(
        "--key", metavar="NAME", help="send the adapter's key of this name (default: the adapter's own)"
    )


STORE_VARIABLE = "CALLBOARD_STORE"
"""The environment variable for an address with a password, which other users of a machine see in ``--store``."""


def add_trace(parser: argparse.ArgumentParser, default: str = "$CALLBOARD_HOME/trace.db, else the demo's") -> None:
    """``--db`` and ``--store``, the trace."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--db", type=trace_file, metavar="PATH", help=f"trace file (default: {default})")
    which.add_argument(
        "--store",
        type=store_address,
        metavar="URL",
        help=f"trace on a server, as postgresql://USER@HOST/DATABASE (default: ${STORE_VARIABLE}, if it is set)",
    )


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The trace, and which of its calls."""
    add_trace(parser)
    parser.add_argument("--session", metavar="ID", help="only of this session")
    parser.add_argument("--model", metavar="M", help="only this model: provider:name or name, '*' at the end")
    parser.add_argument("--provider", metavar="P", help="only of this provider")
    parser.add_argument("--status", choices=get_args(CallStatus), help="only calls that ended so")
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="from this day or time on (ISO 8601), or for the last 24h, 7d"
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="before this day or time, or so long ago")
    parser.add_argument("--turn", metavar="ID", help="only of this turn")
    parser.add_argument(
        "--tag", metavar="KEY=VALUE", type=tag, action="append", help="only with this tag; may be repeated"
    )
    parser.add_argument("--key", metavar="NAME", help="only with the key of this name")
    parser.add_argument("--error-class", metavar="C", help="only attempts that failed with this class of error")
    parser.add_argument("--unpriced", action="store_true", help="only calls that have usage and no price")
    parser.add_argument("--unknown", action="store_true", help="only attempts whose usage is not known")
    parser.add_argument("--min-cost", metavar="USD", type=amount, help="only calls that cost at least this much")


def call_filter(arguments: argparse.Namespace) -> CallFilter:
    """The filter for calls that the options of `add_filters` say."""
    return CallFilter(
        since=arguments.since,
        until=arguments.until,
        provider=arguments.provider,
        model=arguments.model,
        session_id=arguments.session,
        status=arguments.status,
        turn_id=arguments.turn,
        tags=dict(arguments.tag) if arguments.tag else None,
        error_class=arguments.error_class,
        key=arguments.key,
        unpriced=arguments.unpriced,
        unknown=arguments.unknown,
        min_cost_nano_usd=arguments.min_cost,
    )


def named_trace(arguments: argparse.Namespace) -> TracePlace | None:
    """The trace that ``--db``, ``--store`` or else CALLBOARD_STORE names.

    Raises:
        ConfigurationError: The variable holds no address.
    """
    named: TracePlace | None = arguments.db or arguments.store
    if named is None and (text := os.environ.get(STORE_VARIABLE)):
        try:
            return StoreAddress(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{STORE_VARIABLE}: {error}") from None
    return named


def chosen_trace(arguments: argparse.Namespace) -> TracePlace:
    """The trace that was named, or else the default file.

    Raises:
        ConfigurationError: CALLBOARD_STORE holds no address.
        StoreError: There is no default one yet.
    """
    if (named := named_trace(arguments)) is not None:
        return named
    found = default_trace()
    if not found.exists():
        raise StoreError(
            f"there is no trace file at {found}: an engine's first call makes it, and so does `callboard demo`. "
            "--db names another file, --store a database, CALLBOARD_HOME another folder."
        )
    return found


def trace_file(text: str) -> Path:
    """The path of a trace file."""
    if is_address(text):
        raise argparse.ArgumentTypeError("a database on a server is named by --store, not by --db")
    return Path(text)


def store_address(text: str) -> StoreAddress:
    """The address of a trace on a server."""
    try:
        return StoreAddress(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def moment(text: str) -> datetime:
    """A day or a time, local if it has no zone; or a time ago: 90m, 24h, 7d, 2w."""
    try:
        return read_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tag(text: str) -> tuple[str, str]:
    """A tag such as team=search, as its key and value."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no tag such as team=search")
    return key, value


def amount(text: str) -> int:
    """An amount in USD, as nano-USD."""
    try:
        nano = Decimal(text.removeprefix("$")) * NANO
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD such as 0.05") from None
    if not nano.is_finite() or nano != nano.to_integral_value() or not 0 <= nano < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount in USD with at most 9 decimals")
    return int(nano)
