"""Calls as a table for other programs: CSV, JSON lines or Parquet, with one row for each attempt.

Calls are read and written page by page. So an export of millions of calls needs only the memory for one page. New
columns are always added at the end. Each time has two columns: microseconds UTC, and a date with time. Each cost
has two columns: a whole number of nano-USD, and an exact decimal of US dollars. Money is never a float. In CSV and
JSON lines, a date with time is ISO text, and US dollars are decimal text. In Parquet they are `timestamp(us, UTC)`
and `decimal128(28, 9)`, so that a query can compare and add them. An unknown value is empty, never zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias, get_args

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.clock import iso_moment
from callboard.bus.errors import ConfigurationError
from callboard.bus.files import private_file

from .call_columns import COLUMNS as COLUMNS_OF_CALLS
from .call_columns import CallFilter, CallRow
from .store import Store

Format: TypeAlias = Literal["csv", "jsonl", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""The formats of `export_calls`."""

PAGE = 250
"""The number of rows of one read."""

_ROW_GROUP = 10_000  # rows in a Parquet row group; smaller groups are slow to read

Cell: TypeAlias = str | int | float | bool | None
Kind: TypeAlias = Literal["text", "int", "seconds", "bool", "moment", "usd"]
Column: TypeAlias = "tuple[str, Kind, Callable[[CallRow], Cell]]"


_NOT_EXPORTED = {"routing", "estimated_input_tokens", "priced_as"}
_FIRST = (
    *("call_id", "run_id", "request_id", "attempt", "session_id", "turn_id", "message_id", "caused_by"),
    *("started", "finished", "started_us", "finished_us", "first_token_ms", "latency_ms", "status", "operation"),
    *("key", "reason", "provider", "model", "requested_model", "served_model", "streamed", "stop_reason"),
    *("raw_stop_reason", "response_id", "provider_request_id", "error_class", "error_type", "error_message"),
    *("provider_status", "provider_code", "retry_count", "resent", "will_retry", "delay_seconds"),
    *("retry_after_seconds", "input_tokens", "cached_input_tokens", "cache_creation_input_tokens"),
    *("cache_creation_1h_input_tokens", "total_input_tokens", "output_tokens", "reasoning_tokens"),
    *("usage_source", "cost_nano_usd", "cost_usd", "cost_source", "cost_pricing_version", "cost_reason"),
    *("at_call_time_nano_usd", "at_call_time_usd", "at_call_time_source", "at_call_time_pricing_version"),
    *("at_call_time_reason", "tags", "warnings"),
)
"""The columns of the first release, in their fixed order. Later columns come after these."""

_OTHERS: dict[str, tuple[Kind, str]] = {
    "call_id": ("int", "call_id"),
    "started": ("moment", "started_us"),
    "finished": ("moment", "finished_us"),
    "usage_source": ("text", "usage.source"),
    "cost_usd": ("usd", "cost.nano_usd"),
    "at_call_time_usd": ("usd", "at_call_time.nano_usd"),
}
"""The columns whose kind is not clear from the name, with the path from the row."""


def _column(name: str) -> Column:
    if (column := COLUMNS_OF_CALLS.get(name)) is not None:
        return (
            name,
            "text" if column.kind == "json" else column.kind,
            _json(name) if column.kind == "json" else _at(name),
        )
    if name in _OTHERS:
        kind, path = _OTHERS[name]
        return name, kind, _at(path)
    for cost in ("cost", "at_call_time"):
        if (part := name.removeprefix(f"{cost}_")) != name:
            return name, "int" if part == "nano_usd" else "text", _at(f"{cost}.{part}")
    return name, "int", _at(f"usage.{name}")


def _at(path: str) -> Callable[[CallRow], Cell]:
    """Return a function that reads a value from a row by its path, or None if a part of the path is missing."""
    outer, _, inner = path.partition(".")
    if not inner:
        return attrgetter(outer)

    def read(row: CallRow) -> Cell:
        outer_value = getattr(row, outer)
        value: Cell = None if outer_value is None else getattr(outer_value, inner)
        return str(value) if isinstance(value, str) else value  # a source is a member of an enum

    return read


def _json(name: str) -> Callable[[CallRow], Cell]:
    def read(row: CallRow) -> Cell:
        value = getattr(row, name)
        return msgspec.json.encode(value, order="sorted").decode() if value else None

    return read


_LATER = (name for name in COLUMNS_OF_CALLS if name not in {*_FIRST, *_NOT_EXPORTED})

COLUMNS: Final[tuple[Column, ...]] = tuple(map(_column, (*_FIRST, *_LATER)))
"""Name, kind and source of each column. A moment is read in microseconds, US dollars in nano-USD.

Tags and warnings are JSON.
"""


def exact_usd(nano_usd: int) -> str:
    """US dollars with nine decimals."""
    return f"{Decimal(nano_usd).scaleb(-9):.9f}"


async def export_calls(
    store: Store,
    target: Path | IO[bytes],
    format: Format,
    *,
    where: CallFilter | None = None,
    under: str | None = None,
    page: int = PAGE,
) -> int:
    """Write calls to a table, in the order in which they were stored. Return the number of rows."""
    rows = 0
    with _opened(target, store.path) as file, _WRITERS[format](file) as write:
        after = 0
        while found := await store.calls_after(after, where, page, under=under):
            # In a thread, because writing a page would block the event loop too long.
            await anyio.to_thread.run_sync(_write, write, found)
            rows += len(found)
            after = found[-1].call_id
    return rows


def _opened(target: Path | IO[bytes], trace: Path) -> AbstractContextManager[IO[bytes]]:
    if not isinstance(target, Path):
        return nullcontext(target)
    if target.resolve() == trace.resolve():
        raise ConfigurationError(f"{target} is the trace file. Write the export to another file")
    return private_file(target)


def _write(write: _Write, rows: Sequence[CallRow]) -> None:
    write([[read(row) for _, _, read in COLUMNS] for row in rows])


_TEXT_OF: Final[dict[Kind, Callable[[int], str]]] = {"moment": iso_moment, "usd": exact_usd}


def _as_text(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """Convert times and US dollars to text, for formats without a type for them."""
    writers = [_TEXT_OF.get(kind) for _, kind, _ in COLUMNS]
    return [
        [
            cell if write is None or not isinstance(cell, int) else write(cell)
            for write, cell in zip(writers, row, strict=True)
        ]
        for row in rows
    ]


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The characters at the start of text that a spreadsheet reads as a formula."""


def _csv_cell(cell: Cell) -> Cell:
    """Put an apostrophe before text that a spreadsheet would read as a formula."""
    match cell:
        case bool():
            return "true" if cell else "false"
        case str() if cell.startswith(_FORMULA):
            return f"'{cell}"
        case _:
            return cell


_Write: TypeAlias = Callable[[Sequence[Sequence[Cell]]], object]
"""Writes rows of cells, in the order of `COLUMNS`."""

_NAMES = [name for name, _, _ in COLUMNS]


@contextmanager
def _csv(file: IO[bytes]) -> Iterator[_Write]:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_NAMES)
    try:
        yield lambda rows: lines.writerows([[_csv_cell(cell) for cell in row] for row in _as_text(rows)])
        text.flush()
    finally:
        text.detach()  # keep the file open, because the caller closes it


@contextmanager
def _jsonl(file: IO[bytes]) -> Iterator[_Write]:
    encode = msgspec.json.Encoder().encode_lines
    yield lambda rows: file.write(encode([dict(zip(_NAMES, row, strict=True)) for row in _as_text(rows)]))


@contextmanager
def _parquet(file: IO[bytes]) -> Iterator[_Write]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError(
            'writing Parquet needs the package pyarrow. Install it with: pip install "callboard[parquet]"'
        ) from None
    types = {
        "text": pyarrow.string(),
        "int": pyarrow.int64(),
        "seconds": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "moment": pyarrow.timestamp("us", tz="UTC"),
        # This type fits any 64-bit number of nano-USD, and sums of a billion such numbers.
        "usd": pyarrow.decimal128(28, 9),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind, _ in COLUMNS])
    group: list[Sequence[Cell]] = []

    def flush() -> None:
        arrays = [
            pyarrow.array(_in_dollars(cells) if kind == "usd" else cells, types[kind])
            for cells, (_, kind, _) in zip(zip(*group, strict=True), COLUMNS, strict=True)
        ]
        parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        group.clear()

    def write(rows: Sequence[Sequence[Cell]]) -> None:
        group.extend(rows)
        if len(group) >= _ROW_GROUP:
            flush()

    with pyarrow.parquet.ParquetWriter(file, schema) as parquet:
        yield write
        if group:
            flush()


def _in_dollars(cells: Sequence[Cell]) -> list[Decimal | None]:
    return [None if cell is None else Decimal(cell).scaleb(-9) for cell in cells]


_WRITERS: Mapping[Format, Callable[[IO[bytes]], AbstractContextManager[_Write]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
}
