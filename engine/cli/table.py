"""Prints rows as a table that fits the terminal, as JSON lines, or as CSV.

Amounts are integers in nano-USD. CSV also has each amount in USD as an exact decimal, for spreadsheets. A nested
value has one column for each field (`usage.input_tokens`), and a missing value is empty. Characters that could
control a terminal are escaped in JSON. They are left out in CSV, which has no escapes.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from callboard.adapters.requests.content import repair_json, repair_json_value
from callboard.bus import Cost
from callboard.bus.clock import iso_moment
from callboard.bus.values.usage import CostSum

from .sanitize import one_line, sanitize, write_json
from .screen import make_console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


Format: TypeAlias = Literal["table", "json", "csv"]
_NANO = "nano_usd"


def add_format(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options --json and --csv. `what` completes the sentence "Print one JSON object a line"."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--json", action="store_const", dest="format", const="json", help=f"print one JSON object a line {what}"
    )
    which.add_argument(
        "--csv", action="store_const", dest="format", const="csv", help="print CSV, for spreadsheets"
    )
    parser.set_defaults(format="table", draws=True)


def write(form: Format, kind: type[msgspec.Struct], rows: Sequence[msgspec.Struct]) -> None:
    """Write structs of one type to stdout. CSV always has a column for each field, even without rows."""
    if form == "json":
        write_records(form, (), rows)
    else:
        write_records(form, _flat_fields(kind), (msgspec.json.decode(json_text(row)) for row in rows))


def write_records(form: Format, columns: Sequence[str], records: Iterable[Any]) -> None:
    """Write records with the same fields to stdout. CSV has these columns, and a column in USD for each amount."""
    if form == "json":
        for record in records:
            write_json(json_text(record))
        return
    head = [name for column in columns for name in _with_usd(column)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([_csv_cell(name) for name in head])
    for record in records:
        values = with_usd(flat(record), columns)
        out.writerow([_csv_cell(values.get(name, "")) for name in head])


def json_text(value: object) -> str:
    """Encode a value as JSON. Half surrogate pairs, for example in a provider's error text, become U+FFFD."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(repair_json_value(msgspec.to_builtins(value)))
    return repair_json(encoded).decode()


def with_usd(record: Mapping[str, Any], columns: Iterable[str] | None = None) -> dict[str, Any]:
    """Add each amount in USD to a record, as an exact decimal text."""
    usd = {
        column.replace(_NANO, "usd"): None if record[column] is None else f"{Decimal(record[column]).scaleb(-9):f}"
        for column in (record if columns is None else columns)
        if column.endswith(_NANO) and column in record
    }
    return {**record, **usd}


def flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A record with nested fields as ``a.b``. Lists, and objects with arbitrary keys, are kept as JSON."""
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
    # A spreadsheet would run a cell that starts like a formula. An apostrophe makes it text.
    if not isinstance(value, str):
        return value
    text = sanitize(value)
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
    """The struct type of a field, which may also allow None; None for other fields."""
    for part in (kind, *getattr(kind, "__args__", ())):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


# --- Tables ---
# In narrow columns, words would break into letters, and in a table that is too wide, numbers would break. So if
# there is not enough room, the least important columns are left out, and a line below the table names them.

FOLDED_WIDTH = 24  # the minimum width of a column that may wrap, so that names remain readable

_GAP = 2

R = TypeVar("R")


class Column(NamedTuple, Generic[R]):
    """A column of a table: its heading, and a function for the cell of each row."""

    heading: str
    cell: Callable[[R], str | Sequence[str]]  # the text of a row: one line, or several lines
    folds: bool = False  # whether the cell may wrap over several lines
    may_go: int = 0
    """0 for a column that is always shown. If there is no room, the column with the highest number is dropped
    first.
    """
    right: bool = False
    footer: str = ""  # the text below the column, shown if the table has several rows


def figure(heading: str, cell: Callable[[R], str], *, may_go: int = 0, footer: str = "") -> Column[R]:
    """A right-aligned column for numbers."""
    return Column(heading, cell, may_go=may_go, right=True, footer=footer)


def count(
    heading: str, of: Callable[[R], int], *, may_go: int = 0, summed: Iterable[R] = (), zero: str = "0"
) -> Column[R]:
    """A column for whole numbers. Below it is the sum over the rows in `summed`."""

    def text(number: int) -> str:
        return f"{number:,}" if number else zero

    rows = list(summed)
    footer = text(sum(map(of, rows))) if rows else ""
    return figure(heading, lambda row: text(of(row)), may_go=may_go, footer=footer)


class FittingTable(Generic[R]):
    """A table for terminals of any width."""

    def __init__(self, columns: Sequence[Column[R]], rows: Iterable[R]) -> None:
        self._columns = columns
        self._headings = [one_line(column.heading) for column in columns]
        self._rows = [[_cell(column.cell(row)) for column in columns] for row in rows]
        sums = len(self._rows) > 1 and any(column.footer for column in columns)
        self._footers = [one_line(column.footer) for column in columns] if sums else None

    def shown_in(self, width: int) -> list[int]:
        """The indexes of the columns for which there is room."""
        widths = [self._full_width(place) for place in range(len(self._columns))]
        chosen = list(range(len(widths)))
        while sum(widths[place] for place in chosen) + _GAP * (len(chosen) - 1) > width:
            first = max(chosen, key=lambda place: self._columns[place].may_go)
            if not self._columns[first].may_go:
                break
            chosen.remove(first)
        return chosen

    def _full_width(self, place: int) -> int:
        from rich.cells import cell_len

        footer = self._footers[place] if self._footers else ""
        texts = (self._headings[place], footer, *(row[place] for row in self._rows))
        widest = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
        return min(widest, FOLDED_WIDTH) if self._columns[place].folds else widest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        chosen = self.shown_in(options.max_width)
        yield self._drawn(chosen)
        left_out = [heading for place, heading in enumerate(self._headings) if place not in chosen]
        if any(left_out):
            yield Text(f"(hidden columns: {', '.join(filter(None, left_out))})", style="dim")

    def _drawn(self, chosen: Sequence[int]) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE if self._footers else box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_footer=self._footers is not None,
            pad_edge=False,
            show_edge=False,
            header_style="dim",
            footer_style="bold",
        )
        for place in chosen:
            column = self._columns[place]
            table.add_column(
                self._headings[place],
                self._footers[place] if self._footers else "",
                justify="right" if column.right else "left",
                overflow="fold" if column.folds else "ellipsis",
                no_wrap=not column.folds,
            )
        for row in self._rows:
            table.add_row(*(row[place] for place in chosen))
        return table


def _cell(text: str | Sequence[str]) -> str:
    return one_line(text) if isinstance(text, str) else "\n".join(map(one_line, text))


S = TypeVar("S", bound=msgspec.Struct)


def write_rows(
    form: Format,
    kind: type[S],
    rows: Sequence[S],
    columns: Sequence[Column[S]],
    *,
    empty: str = "",
    below: str = "",
    whole: bool = False,
) -> int:
    """Write rows in the chosen format: all fields for a program, or `columns` for a person.

    `empty` is printed instead of a table without rows, and `below` after the table. At a terminal, these texts are
    wrapped, unless `whole` is True.
    """
    if form != "table":
        write(form, kind, rows)
        return 0
    console = make_console()
    if empty and not rows:
        console.print(empty, soft_wrap=whole)
        return 0
    console.print(FittingTable(columns, rows))
    if below:
        console.print(f"\n{below}", style="dim", soft_wrap=whole)
    return 0


# --- Counts, durations and times as text ---


def seconds(milliseconds: int | None) -> str:
    """A duration as text: in milliseconds below a second, in seconds above."""
    if milliseconds is None:
        return "-"
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rate(part: float | None) -> str:
    """A fraction in per cent; a dash if it is None."""
    return "-" if part is None else f"{part * 100:.1f}%"


def moment_text(ts_us: int | None) -> str:
    """A local time. The date is left out if it is today."""
    if ts_us is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(ts_us // 1_000_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return iso_moment(ts_us)  # the year is out of range, because a clock was set wrong
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


# --- Money ---

NANO = 1_000_000_000


def usd(nano_usd: int) -> str:
    """An amount with digits that suit its size: small amounts to the nano-dollar, large ones to the cent."""
    size = abs(nano_usd)
    if size == 0:
        return "$0"
    places = 9 if size < NANO // 100 else 6 if size < NANO else 2 if size >= 1000 * NANO else 4
    shown = Decimal(size).scaleb(-9).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"{'-' if nano_usd < 0 else ''}${shown:,f}"


def rounded(nano_usd: int) -> str:
    """A rounded amount: to the cent from one dollar up, and with significant digits below."""
    if abs(nano_usd) < NANO:
        return usd(nano_usd)
    cents = Decimal(abs(nano_usd)).scaleb(-9).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return f"{'-' if nano_usd < 0 else ''}${cents:,f}"


def exact(nano_usd: int, places: int = 2) -> str:
    """An amount with all digits, and at least `places` decimals. The minus sign is the typographic one."""
    dollars, _, part = f"{Decimal(abs(nano_usd)).scaleb(-9):.9f}".partition(".")
    return f"{'−' if nano_usd < 0 else ''}${int(dollars):,}.{part.rstrip('0').ljust(places, '0')}"


def places(nano_usd: int) -> int:
    """The number of decimals of an amount."""
    return len(f"{abs(nano_usd) % NANO:09}".rstrip("0"))


def cost_text(cost: Cost | None) -> str:
    """A call's cost as text; ``unpriced`` or a dash if there is none."""
    if cost is None:
        return "-"
    return "unpriced" if cost.nano_usd is None else usd(cost.nano_usd)


def difference(before: int, after: int) -> str:
    """The change, with its sign."""
    change = after - before
    return "no change" if change == 0 else f"{'+' if change > 0 else '-'}{usd(abs(change))}"


def percent(before: int, after: int) -> str:
    """The change in per cent, with its sign. Empty if `before` is zero or nothing changed."""
    change = after - before
    if change == 0 or before <= 0:
        return ""
    sign = "+" if change > 0 else "-"
    permille = (abs(change) * 1000 + before // 2) // before
    if permille < 100:
        return f"{sign}{permille // 10}.{permille % 10}%"
    return f"{sign}{(abs(change) * 100 + before // 2) // before:,}%"


def sum_text(total: CostSum) -> str:
    """A sum, with the number of calls whose cost it does not include."""
    if total.calls and total.unpriced == total.calls:
        return "unpriced"
    if total.calls and total.unknown == total.calls:
        return "unknown"
    return " + ".join([usd(total.nano_usd), *beside(total)])


def beside(total: CostSum) -> list[str]:
    """The number of calls whose cost no amount includes, with the reasons."""
    kinds = ((total.unpriced, "unpriced"), (total.unknown, "unknown"))
    return [f"{count:,} {kind}" for count, kind in kinds if count]


def print_incomplete(console: Console, total: CostSum, unpriced: str = "without a price") -> None:
    """Print the number of calls that a sum does not include, and of estimates in it, one line each."""
    if total.unpriced:
        console.print(f"{plural(total.unpriced, 'call')} {unpriced}, not included in sums.", style="yellow")
    if total.unknown:
        console.print(
            f"{plural(total.unknown, 'call')} of unknown cost, not included in sums: cut off before the "
            f"usage was known, or without an end.",
            style="yellow",
            soft_wrap=True,
        )
    if total.estimated:
        console.print(f"{plural(total.estimated, 'call')} with estimated usage.", style="dim")
