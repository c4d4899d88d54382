"""Rows for programs: one JSON object a line, or CSV with a head.

Amounts are whole numbers of nano-USD, as everywhere. People open CSV in a spreadsheet, so there each amount comes
in USD as well, as an exact decimal. A nested value has one column for each field (``usage.input_tokens``), and a
missing value is empty. Characters that could steer a terminal are escaped in JSON. CSV has no escapes, so they are
left out there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import msgspec

from callboard.adapters.requests.surrogates import mend_json, mend_json_value

from .harmless import harmless, write_json

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
    """Write records of the same fields to stdout.

    Args:
        form: JSON lines or CSV.
        columns: The columns of the CSV. A nested one is ``a.b``.
        records: The records, flat or nested.
    """
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
    out.writerow([_cell(name) for name in head])
    for record in records:
        values = with_usd(record, columns)
        out.writerow([_cell(values.get(name, "")) for name in head])


def with_usd(record: Mapping[str, Any], columns: Iterable[str] | None = None) -> dict[str, Any]:
    """A record in which each amount stands in USD as well, as an exact decimal text.

    Args:
        record: The record.
        columns: The fields that are looked at; None is all of them.
    """
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


def _cell(value: object) -> object:
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
