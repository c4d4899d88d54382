"""`callboard sql`: any other question about a trace. The command can only read."""

from __future__ import annotations

import argparse
import sys

import anyio

from tracestore import SqlResult

from ...opening import store_to_read
from ..common.arguments import add_trace, chosen_trace, positive
from ..common.fitting import FittingTable
from ..common.harmless import note
from ..common.output import add_format, write_records
from ..common.screen import make_console
from ..common.words import plural


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "sql",
        help="one read-only SQL statement",
        description="Runs one SQL statement that can only read. Tables: calls, call_tags, call_cost, sessions, "
        "runs, events, price_version, price_row, reprice_run, current_run. Times are microseconds since the "
        "epoch (UTC), money is nano-USD.",
    )
    parser.add_argument("statement", help="the statement, or - for stdin")
    add_trace(parser, "as for traces")
    parser.add_argument("--limit", type=positive, default=1000, metavar="N", help="at most N rows (default 1000)")
    parser.add_argument("--seconds", type=positive, default=10, metavar="S", help="at most S seconds (default 10)")
    add_format(parser, "for each row")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    statement = sys.stdin.read() if arguments.statement == "-" else arguments.statement

    async def read() -> SqlResult:
        store = store_to_read(chosen_trace(arguments))
        return await store.sql(statement, limit=arguments.limit, seconds=arguments.seconds)

    found = anyio.run(read)
    if arguments.format != "table":
        records = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
        write_records(arguments.format, found.columns, records)
    else:
        _show(found)
    if found.truncated:
        note(f"callboard: only the first {plural(arguments.limit, 'row')}; see --limit")
    return 0


def _show(found: SqlResult) -> None:
    table = FittingTable()
    for column in found.columns:
        table.add_column(column, folds=True)
    for row in found.rows:
        table.add_row(*("NULL" if value is None else str(value).split("\n") for value in row))
    console = make_console()
    console.print(table)
    console.print(f"\n{plural(len(found.rows), 'row')}", style="dim")
