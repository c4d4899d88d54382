"""`callboard export`: the calls of a trace file as CSV, JSON lines or Parquet."""

from __future__ import annotations

import argparse
import io
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import anyio

from callboard.bus import CallboardError, ConfigurationError
from callboard.tracestore import CallFilter
from callboard.tracestore.export import FORMATS, Format, export_calls

from ...opening import store_to_read
from ...store_address import TracePlace
from ..common.arguments import add_filters, call_filter, chosen_trace
from ..common.harmless import harmless, harmless_json, note
from ..common.reading import price_version
from ..common.words import plural

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDOUT = "-"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="Export calls as CSV, JSON Lines or Parquet",
        description="Writes one row for each attempt. Money is integer nano-USD, and exact decimal text.",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--under", metavar="VERSION", help="costs under this price version (default: the current)")
    add_filters(parser)
    parser.add_argument("path", metavar="PATH", help=f"file to write, or {STDOUT} for stdout; replaced if there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    source = chosen_trace(arguments)
    where = call_filter(arguments)
    work = partial(_export, source, arguments.path, arguments.format, where, arguments.under)
    try:
        rows = anyio.run(work)
    except OSError as error:
        if arguments.path == STDOUT:
            raise
        raise CallboardError(f"{arguments.path}: {error.strerror or error}") from error
    if arguments.path != STDOUT:
        note(f"{plural(rows, 'row')} written to {arguments.path}")
    return 0


def _stdout(format: Format) -> IO[bytes]:
    """Raises ConfigurationError for a terminal that would be sent what is no text."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    if format == "parquet":
        raise ConfigurationError("Parquet is not for a terminal; name a file, or pipe it")
    return cast("IO[bytes]", _Terminal(harmless_json if format == "jsonl" else harmless))


class _Terminal(io.RawIOBase):
    """Shows UTF-8 to a person.

    Args:
        clean: Removes the characters that could steer the terminal.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        sys.stdout.write(self._clean(self._decoder.decode(bytes(data))))
        return memoryview(data).nbytes


async def _export(source: TracePlace, path: str, format: Format, where: CallFilter, under: str | None) -> int:
    target = _stdout(format) if path == STDOUT else Path(path)
    async with store_to_read(source) as store:
        under = await price_version(store, under)
        return await export_calls(store, target, format, where=where, under=under)
