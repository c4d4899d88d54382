"""`callboard traces`, `export` and `sql`: list recorded calls, export them, and query them."""

from __future__ import annotations

import argparse
import io
import re
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import anyio
import msgspec

from callboard.bus import CallboardError, ConfigurationError, StoreError
from callboard.bus.values.usage import CostSum
from callboard.tracestore import CallFilter, CallRow, SqlResult, Store
from callboard.tracestore.call_columns import SHOWN, TurnTree, trees_of

from ..stores import TracePlace, store_to_read
from .options import (
    add_filters,
    add_limit,
    add_trace,
    call_filter,
    chosen_trace,
    flag,
    from_trace,
    positive,
    price_version,
)
from .sanitize import note, sanitize, sanitize_json
from .screen import make_console
from .table import (
    Column,
    FittingTable,
    add_format,
    count,
    figure,
    moment_text,
    plural,
    seconds,
    sum_text,
    write,
    write_records,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from callboard.tracestore.export import Format


ATTEMPTS_PER_CALL = 4
"""The number of attempts to read for each requested call. Calls have fewer attempts, except in outages."""


def add_traces(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    add_limit(parser, 50, "calls")
    flag(parser, "--tree", help="show calls below the turn whose tool made them")
    add_format(parser, "for each attempt")
    parser.set_defaults(run=run_traces)


def run_traces(arguments: argparse.Namespace) -> int:
    where, limit = call_filter(arguments), arguments.limit
    if arguments.tree:
        return run_tree(arguments)
    rows = from_trace(arguments, lambda store: store.calls(where, limit * ATTEMPTS_PER_CALL))
    # With a filter for a status, attempts that were followed by another attempt are skipped.
    rows = [row for row in rows if where.status is None or not row.will_retry]
    if arguments.format != "table":
        write(arguments.format, CallRow, rows[: arguments.limit])
        return 0
    show_calls(chosen_trace(arguments), summarise(rows)[: arguments.limit], limited=arguments.limit)
    return 0


def run_tree(arguments: argparse.Namespace) -> int:
    """Show the trees of the selected calls."""
    where, limit = call_filter(arguments), arguments.limit

    async def read(store: Store) -> list[TurnTree]:
        return await trees_of(store.calls, await store.calls(where, limit * ATTEMPTS_PER_CALL), limit)

    found = from_trace(arguments, read)
    nodes = [node for tree in found for node in tree.walk()]
    if arguments.format != "table":
        write(arguments.format, CallRow, [row for node in nodes for row in node.calls])
        return 0
    console = make_console()
    if not found:
        console.print(f"No such calls in {chosen_trace(arguments)}.", soft_wrap=True)
        return 0
    console.print(FittingTable(_TREE, nodes))
    total = sum_text(reduce(add, (tree.whole for tree in found)))
    console.print(f"\n{plural(len(found), 'tree')}, {total}", style="dim")
    return 0


_TREE: list[Column[TurnTree]] = [
    Column("time", lambda node: moment_text(node.calls[0].started_us), may_go=2),
    Column("turn", lambda node: f"{'  ' * node.depth}{'└ ' if node.depth else ''}…{node.id[-6:]}"),
    Column("status", lambda node: node.calls[-1].status, may_go=1),
    Column("model", lambda node: node.calls[-1].model, folds=True),
    figure("calls", lambda node: str(len({row.request_id for row in node.calls}))),
    figure("own cost", lambda node: sum_text(node.own)),
    figure("with children", lambda node: sum_text(node.whole)),
]


def show_calls(trace: TracePlace, calls: list[CallSummary], *, limited: int) -> None:
    console = make_console()
    if not calls:
        console.print(f"No matching calls in {trace}.", soft_wrap=True)
        return
    console.print(calls_table(calls))
    more = "; for more, see --limit" if len(calls) == limited else ""
    total = sum_text(reduce(add, (call.sum for call in calls)))
    console.print(f"\n{plural(len(calls), 'call')}, {total}, from {trace}{more}", style="dim")


class CallSummary(msgspec.Struct, frozen=True):
    """A call with all its attempts."""

    last: CallRow  # the latest attempt
    attempts: int
    input_tokens: int  # the input tokens of all attempts
    output_tokens: int  # the output tokens of all attempts
    sum: CostSum  # the cost of all attempts together


def summarise(rows: Iterable[CallRow]) -> list[CallSummary]:
    """Group attempts into calls. Both are in order, the newest first."""
    attempts: dict[str, list[CallRow]] = {}
    for row in rows:
        attempts.setdefault(row.request_id, []).append(row)
    return [_summary(group) for group in attempts.values()]


def _summary(group: Sequence[CallRow]) -> CallSummary:
    last = max(group, key=lambda row: row.attempt)
    usages = [row.usage for row in group if row.usage is not None]
    return CallSummary(
        last,
        last.attempt,
        sum(usage.total_input_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        reduce(add, (row.sum for row in group)),
    )


def calls_table(calls: Sequence[CallSummary], *, when: bool = True) -> FittingTable[CallSummary]:
    """A table with a line for each call. `when` shows the time and the id instead of a number."""
    numbers = {call.last.call_id: str(place) for place, call in enumerate(calls, 1)}
    head: list[Column[CallSummary]] = [figure("call", lambda call: numbers[call.last.call_id])]
    if when:
        head = [
            Column("time", lambda call: moment_text(call.last.started_us)),
            Column("call", lambda call: f"…{call.last.request_id[-6:]}", may_go=3),
            Column("status", lambda call: call.last.status),
        ]
    more = [
        Column(shown.label.lower(), partial(_shown, name), may_go=1)
        for name, shown in SHOWN.items()
        if shown.in_lists and any(getattr(call.last, name) is not None for call in calls)
    ]
    columns: list[Column[CallSummary]] = [
        *head,
        Column("model", lambda call: call.last.model, folds=True),
        *more,
        figure("attempts", lambda call: str(call.attempts), may_go=4),
        figure("first token", lambda call: seconds(call.last.first_token_ms), may_go=5),
        count("in", lambda call: call.input_tokens, may_go=1),
        count("out", lambda call: call.output_tokens, may_go=2),
        figure("cost", _cost),
    ]
    return FittingTable(columns, calls)


def _shown(name: str, call: CallSummary) -> str:
    return str(getattr(call.last, name) or "-")


def _cost(call: CallSummary) -> str:
    nothing = call.sum.complete and call.last.usage is None and not call.sum.nano_usd
    return "-" if nothing else sum_text(call.sum)


# --- Export ---

STDOUT = "-"


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Export recorded calls, one row for each attempt. Money is in integer nano-USD and as an exact decimal "
        "text."
    )
    from callboard.tracestore.export import FORMATS

    parser.add_argument("--format", choices=FORMATS, required=True, help="the format")
    parser.add_argument(
        "--under", metavar="VERSION", help="export the costs under this price version (default: the current one)"
    )
    add_filters(parser)
    parser.add_argument(
        "path", metavar="PATH", help=f"the file to write, or {STDOUT} for stdout; an existing file is replaced"
    )
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    source = chosen_trace(arguments)
    where = call_filter(arguments)
    try:
        rows = anyio.run(_export, source, arguments.path, arguments.format, where, arguments.under)
    except OSError as error:
        if arguments.path == STDOUT:
            raise
        raise CallboardError(f"{arguments.path}: {error.strerror or error}") from error
    if arguments.path != STDOUT:
        note(f"{plural(rows, 'row')} written to {arguments.path}")
    return 0


def _stdout(format: Format) -> IO[bytes]:
    """Standard output for binary data. At a terminal, text is shown, and Parquet is refused."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer
    if format == "parquet":
        raise ConfigurationError("Parquet can't be shown at a terminal. Name a file, or pipe it")
    return cast("IO[bytes]", _Terminal(sanitize_json if format == "jsonl" else sanitize))


class _Terminal(io.RawIOBase):
    """A binary stream that prints UTF-8 text at a terminal."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        sys.stdout.write(self._clean(self._decoder.decode(bytes(data))))
        return memoryview(data).nbytes


async def _export(source: TracePlace, path: str, format: Format, where: CallFilter, under: str | None) -> int:
    from callboard.tracestore.export import export_calls

    target = _stdout(format) if path == STDOUT else Path(path)
    async with store_to_read(source) as store:
        under = await price_version(store, under)
        return await export_calls(store, target, format, where=where, under=under)


# --- SQL ---

_NO_SUCH_NAME = re.compile("no such (column|table)|(column|relation) .* does not exist")
"""The errors of SQLite and PostgreSQL about an unknown name."""


def add_sql(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run one read-only SQL statement. Times are in microseconds since the epoch (UTC), money in "
        "nano-USD. The view call_rows uses the names of Python, JSON and exports. --schema shows all tables."
    )
    parser.add_argument(
        "statement",
        nargs="?",
        metavar="STATEMENT",
        help="the SQL statement, or - for stdin; with --schema, a table",
    )
    flag(parser, "--schema", help="describe the tables and their columns")
    add_trace(parser)
    add_limit(parser, 1000, "rows")
    parser.add_argument(
        "--seconds", type=positive, default=10, metavar="S", help="stop after S seconds (default: 10)"
    )
    add_format(parser, "for each row")
    parser.set_defaults(run=run_sql)


def run_sql(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        return show_schema(arguments)
    if arguments.statement is None:
        raise ConfigurationError("no statement. `callboard sql --schema` shows the tables")
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
        _show_result(found)
    if found.truncated:
        note(f"callboard: only the first {plural(arguments.limit, 'row')}; for more, see --limit")
    return 0


class SchemaColumn(msgspec.Struct, frozen=True):
    """A line of `callboard sql --schema --json`."""

    table: str
    column: str
    in_python: str  # the field's name in Python, and in the JSON of `callboard traces --json`
    meaning: str  # the column's content


_SCHEMA: list[Column[SchemaColumn]] = [
    Column("column", lambda row: row.column),
    Column(
        "in Python and JSON", lambda row: "the same" if row.in_python == row.column else row.in_python, may_go=1
    ),
    Column("meaning", lambda row: row.meaning, folds=True),
]


def show_schema(arguments: argparse.Namespace) -> int:
    from callboard.tracestore.descriptions import BOOKKEEPING, TABLES

    named: str | None = arguments.statement
    if named is not None and named not in TABLES:
        raise ConfigurationError(f"no table {named!r}. The tables are {', '.join(TABLES)}")
    chosen = {name: table for name, table in TABLES.items() if named in (None, name)}
    rows = [
        SchemaColumn(name, column, value.in_python or column, value.meaning)
        for name, table in chosen.items()
        for column, value in table.columns.items()
    ]
    if arguments.format != "table":
        write(arguments.format, SchemaColumn, rows)
        return 0
    console = make_console()
    for name, table in chosen.items():
        console.print(f"{name}: {table.meaning}", style="bold", soft_wrap=True)
        console.print(FittingTable(_SCHEMA, [row for row in rows if row.table == name]))
        console.print()
    if named is None:
        console.print("Internal tables, which may change with any version:", style="bold")
        for name, meaning in BOOKKEEPING.items():
            console.print(f"  {name}: {meaning}", soft_wrap=True)
    return 0


def _show_result(found: SqlResult) -> None:
    columns: list[Column[Sequence[object]]] = [
        Column(name, partial(_result_cell, place), folds=True) for place, name in enumerate(found.columns)
    ]
    console = make_console()
    console.print(FittingTable(columns, found.rows))
    console.print(f"\n{plural(len(found.rows), 'row')}", style="dim")


def _result_cell(place: int, row: Sequence[object]) -> str | list[str]:
    return "NULL" if row[place] is None else str(row[place]).split("\n")
