"""`callboard export`: the calls of a trace file as CSV, JSON lines or Parquet."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import anyio

from bus import CallboardError, ConfigurationError
from tracestore import CallFilter, TraceStore
from tracestore.export import FORMATS, Format, export_calls

from .events import plural
from .filters import add_filters, call_filter, chosen_file

STDOUT = "-"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="the calls of a trace file as CSV, JSON lines or Parquet",
        description="Writes one row for each attempt. Money is integer nano-USD, and exact decimal text.",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--under", metavar="VERSION", help="costs under this price version (default: the current)")
    add_filters(parser)
    parser.add_argument("path", metavar="PATH", help=f"file to write, or {STDOUT} for stdout; replaced if there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    source = chosen_file(arguments)
    where = call_filter(arguments)
    work = partial(_export, source, arguments.path, arguments.format, where, arguments.under)
    try:
        rows = anyio.run(work)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CallboardError(f"{arguments.path}: {error.strerror or error}") from error
    if arguments.path != STDOUT:
        print(f"{plural(rows, 'row')} written to {arguments.path}", file=sys.stderr)
    return 0


async def _export(source: Path, path: str, format: Format, where: CallFilter, under: str | None) -> int:
    target = sys.stdout.buffer if path == STDOUT else Path(path)
    async with TraceStore.open_readonly(source) as store:
        if under is not None:
            known = [table.version for table in await store.price_tables()]
            if under not in known:
                there = ", ".join(known) or "none"
                raise ConfigurationError(f"{source}: no costs under price version {under!r}; there are: {there}")
        return await export_calls(store, target, format, where=where, under=under)
