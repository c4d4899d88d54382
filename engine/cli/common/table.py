"""Rows as a table that fits the terminal, as JSON lines, or as CSV."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from callboard.adapters.requests.surrogates import mend_json, mend_json_value

from .harmless import harmless, one_line, write_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


Format: TypeAlias = Literal["table", "json", "csv"]
_NANO = "nano_usd"


def add_format(parser: argparse.ArgumentParser, what: str) -> None:
    """The options --json and --csv. `what` ends the sentence "one JSON object a line"."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--json", action="store_const", dest="format", const="json", help=f"one JSON object a line {what}"
    )
    which.add_argument("--csv", action="store_const", dest="format", const="csv", help="CSV, for spreadsheets")
    parser.set_defaults(format="table")


def write(form: Format, kind: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> None:
    """Structs of one kind, on stdout. Every field is there in every row of CSV, also where there are no rows."""
    if form == "json":
        for row in rows:
            write_json(json_text(row))
    else:
        write_csv(_flat_fields(kind), (flat(msgspec.json.decode(json_text(row))) for row in rows))


def write_records(form: Format, columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Write records of the same fields to stdout."""
    if form == "json":
        for record in records:
            write_json(json_text(record))
    else:
        write_csv(columns, (flat(record) for record in records))


def json_text(value: object) -> str:
    """A value as JSON. Halves of surrogate pairs, as in a provider's own words, become U+FFFD."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(mend_json_value(msgspec.to_builtins(value)))
    return mend_json(encoded).decode()


def write_csv(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    head = [name for column in columns for name in _with_usd(column)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([_csv_cell(name) for name in head])
    for record in records:
        values = with_usd(record, columns)
        out.writerow([_csv_cell(values.get(name, "")) for name in head])


def with_usd(record: Mapping[str, Any], columns: Iterable[str] | None = None) -> dict[str, Any]:
    """A record in which each amount stands in USD as well, as an exact decimal text."""
    usd = {
        column.replace(_NANO, "usd"): None if record[column] is None else f"{Decimal(record[column]).scaleb(-9):f}"
        for column in (record if columns is None else columns)
        if column.endswith(_NANO) and column in record
    }
    return {**record, **usd}


def flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A record with nested fields as ``a.b``. Lists, and objects with free keys, stay as JSON."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and name not in _AS_JSON:
            found |= flat(value, f"{before}{name}.")
        elif isinstance(value, (Mapping, list, tuple)):
            found[before + name] = msgspec.json.encode(value).decode() if value else ""
        else:
            found[before + name] = value
    return found


_AS_JSON = ("tags", "routing", "raw")


def _csv_cell(value: object) -> object:
    # A cell that begins like a formula is one to a spreadsheet; an apostrophe makes it text.
    if not isinstance(value, str):
        return value
    text = harmless(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit()


def _with_usd(column: str) -> list[str]:
    return [column, column.replace(_NANO, "usd")] if column.endswith(_NANO) else [column]


def _flat_fields(kind: type[msgspec.Struct]) -> list[str]:
    names: list[str] = []
    for field in msgspec.structs.fields(kind):
        inner = _struct_in(field.type) if field.name not in _AS_JSON else None
        names += [field.name] if inner is None else [f"{field.name}.{name}" for name in _flat_fields(inner)]
    return names


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, perhaps beside None."""
    for part in (kind, *getattr(kind, "__args__", ())):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


# -- tables

FOLDED_WIDTH = 24  # of a column that may fold: as narrow as names can be and still be read

_GAP = 2


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    heading: str
    """The text above it."""
    footer: str
    """The text below it."""
    right: bool
    """Whether it is aligned to the right."""
    folds: bool
    """Whether it may be broken over several lines."""
    may_go: int
    """0 for a column that always stays. Of the others, the one with the greatest number goes first."""


class FittingTable:
    """A table that is filled like rich's own."""

    def __init__(self, *, footer: bool = False) -> None:
        self._footer = footer
        self._columns: list[Column] = []
        self._rows: list[tuple[str, ...]] = []

    def add_column(
        self,
        heading: str,
        footer: str = "",
        *,
        justify: Literal["left", "right"] = "left",
        folds: bool = False,
        may_go: int = 0,
    ) -> None:
        self._columns.append(Column(one_line(heading), one_line(footer), justify == "right", folds, may_go))

    def add_row(self, *cells: str | Sequence[str]) -> None:
        """Add a row. A cell is one line, or several lines."""
        self._rows.append(tuple(_cell(cell) for cell in cells))

    def shown_in(self, width: int) -> list[int]:
        """The places of the columns for which there is room."""
        wanted = [self._wanted(place) for place in range(len(self._columns))]
        chosen = list(range(len(wanted)))
        while sum(wanted[place] for place in chosen) + _GAP * (len(chosen) - 1) > width:
            first = max(chosen, key=lambda place: self._columns[place].may_go)
            if not self._columns[first].may_go:
                break
            chosen.remove(first)
        return chosen

    def _wanted(self, place: int) -> int:
        from rich.cells import cell_len

        column = self._columns[place]
        texts = (column.heading, column.footer if self._footer else "", *(row[place] for row in self._rows))
        widest = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
        return min(widest, FOLDED_WIDTH) if column.folds else widest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        chosen = self.shown_in(options.max_width)
        yield self._drawn(chosen)
        left_out = [column.heading for place, column in enumerate(self._columns) if place not in chosen]
        if any(left_out):
            yield Text(f"(no room for: {', '.join(filter(None, left_out))})", style="dim")

    def _drawn(self, chosen: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE if self._footer else box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_footer=self._footer,
            pad_edge=False,
            show_edge=False,
            header_style="dim",
            footer_style="bold",
        )
        for place in chosen:
            column = self._columns[place]
            table.add_column(
                column.heading,
                column.footer,
                justify="right" if column.right else "left",
                overflow="fold" if column.folds else "ellipsis",
                no_wrap=not column.folds,
            )
        for row in self._rows:
            table.add_row(*(row[place] for place in chosen))
        return table


def _cell(said: str | Sequence[str]) -> str:
    return one_line(said) if isinstance(said, str) else "\n".join(map(one_line, said))
