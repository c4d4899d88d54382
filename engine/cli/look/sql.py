"""`callboard sql`: any other question about a trace. The command can only read."""

from __future__ import annotations

import argparse
import re
import sys

import anyio
import msgspec

from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import SqlResult
from callboard.tracestore.described import BOOKKEEPING, TABLES

from ...opening import store_to_read
from ..common.arguments import add_trace, chosen_trace, positive
from ..common.fitting import FittingTable
from ..common.harmless import note
from ..common.output import add_format, write, write_records
from ..common.screen import make_console
from ..common.words import plural

_NO_SUCH_NAME = re.compile("no such (column|table)|(column|relation) .* does not exist")
"""What SQLite and PostgreSQL say of a name that they don't know."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "sql",
        help="Run a read-only SQL statement",
        description="Runs one SQL statement that can only read. Times are microseconds since the epoch (UTC), "
        "money is nano-USD. The view call_rows has the names of Python, JSON and exports; --schema shows all.",
    )
    parser.add_argument("statement", nargs="?", help="the statement, or - for stdin; with --schema, one table")
    parser.add_argument("--schema", action="store_true", help="the tables and their columns, with a sentence each")
    add_trace(parser, "as for traces")
    parser.add_argument("--limit", type=positive, default=1000, metavar="N", help="at most N rows (default 1000)")
    parser.add_argument("--seconds", type=positive, default=10, metavar="S", help="at most S seconds (default 10)")
    add_format(parser, "for each row")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    if arguments.schema:
        return show_schema(arguments)
    if arguments.statement is None:
        raise ConfigurationError("there is no statement; `callboard sql --schema` shows the tables")
    statement = sys.stdin.read() if arguments.statement == "-" else arguments.statement

    async def read() -> SqlResult:
        store = store_to_read(chosen_trace(arguments))
        return await store.sql(statement, limit=arguments.limit, seconds=arguments.seconds)

    try:
        found = anyio.run(read)
    except StoreError as error:
        if _NO_SUCH_NAME.search(str(error)):
            raise StoreError(f"{error}; `callboard sql --schema` shows tables and columns") from error
        raise
    if arguments.format != "table":
        records = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
        write_records(arguments.format, found.columns, records)
    else:
        _show(found)
    if found.truncated:
        note(f"callboard: only the first {plural(arguments.limit, 'row')}; see --limit")
    return 0


class SchemaColumn(msgspec.Struct, frozen=True):
    """A line of `callboard sql --schema --json`."""

    table: str
    """The name of the table."""
    column: str
    """The name of the column."""
    in_python: str
    """The name that it has in Python, and in the JSON of `callboard traces --json`."""
    meaning: str
    """What it holds."""


def show_schema(arguments: argparse.Namespace) -> int:
    """Raises ConfigurationError, if there is no such table."""
    named: str | None = arguments.statement
    if named is not None and named not in TABLES:
        raise ConfigurationError(f"there is no table {named!r}: they are {', '.join(TABLES)}")
    chosen = {name: table for name, table in TABLES.items() if named in (None, name)}
    if arguments.format != "table":
        rows = [
            SchemaColumn(name, column, said.in_python or column, said.meaning)
            for name, table in chosen.items()
            for column, said in table.columns.items()
        ]
        write(arguments.format, SchemaColumn, rows)
        return 0
    console = make_console()
    for name, table in chosen.items():
        console.print(f"{name}: {table.meaning}", style="bold", soft_wrap=True)
        shown = FittingTable()
        shown.add_column("column")
        shown.add_column("in Python and JSON", may_go=1)
        shown.add_column("meaning", folds=True)
        for column, said in table.columns.items():
            shown.add_row(column, said.in_python or "the same", said.meaning)
        console.print(shown)
        console.print()
    if named is None:
        console.print("Callboard's own, which may change with any version:", style="bold")
        for name, meaning in BOOKKEEPING.items():
            console.print(f"  {name}: {meaning}", soft_wrap=True)
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
