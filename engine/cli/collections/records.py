"""What goes into a collection: texts with ids, from lines, CSV, JSON and whole files."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from callboard.bus import CallboardError
from callboard.bus.values.json import Json, JsonObject

Kind: TypeAlias = Literal["lines", "csv", "tsv", "jsonl", "json", "file"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_BY_SUFFIX: Mapping[str, Kind] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
}


class Record(msgspec.Struct, frozen=True):
    """A text that is to be in a collection."""

    id: str
    """The name of the item."""
    text: str
    """The text."""
    metadata: str | None = None
    """The other fields of its row, as a JSON object."""

    @property
    def hash(self) -> bytes:
        """The hash of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()


class Fields(msgspec.Struct, frozen=True):
    """Which fields of a row mean what."""

    id: str = "id"
    """The field of the id."""
    texts: tuple[str, ...] = ()
    """The fields of the text, which are joined by line breaks; empty for ``text``."""


def records_in(path: Path, kind: Kind | None, fields: Fields) -> Iterator[Record]:
    """The records of a file, or of all files below a folder; hidden ones are left out.

    Raises:
        CallboardError: It can't be read. The text names the file and the row.
    """
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in inner.relative_to(path).parts)
            if inner.is_file() and not hidden:
                yield from records_in(inner, kind or "file", fields)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CallboardError(f"{path}: can't be read as text: {error}") from error
    chosen = kind or _BY_SUFFIX.get(path.suffix.lower(), "file")
    yield from ([Record(str(path), text)] if chosen == "file" else records_of(text, chosen, fields, str(path)))


def records_of(text: str, kind: Kind, fields: Fields, source: str) -> Iterator[Record]:
    """The records of a text. A line without an id of its own has the hash of its text for one.

    Raises:
        CallboardError: The text is not of that kind, or a row has no id or no text.
    """
    match kind:
        case "lines" | "file":
            for line in [text] if kind == "file" else text.splitlines():
                if line.strip():
                    yield Record(hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:16], line)
        case "csv" | "tsv":
            comma = "," if kind == "csv" else "\t"
            rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=comma, restkey="", strict=True)
            yield from _of_rows(rows, fields, source)
        case "jsonl":
            lines = (line for line in text.splitlines() if line.strip())
            yield from _of_rows((_json(line, source) for line in lines), fields, source)
        case "json":
            found = _json(text, source)
            yield from _of_rows(found if isinstance(found, list) else [found], fields, source)


def _json(text: str, source: str) -> Json:
    try:
        found: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CallboardError(f"{source}: is no JSON: {error}") from error
    return found


def _of_rows(rows: Iterable[object], fields: Fields, source: str) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise CallboardError(f"{source}: row {number} is no object")
        yield _of_row(row, fields, f"{source}: row {number}")


def _of_row(row: JsonObject, fields: Fields, where: str) -> Record:
    found = row.get(fields.id)
    if not isinstance(found, str | int) or found == "":
        raise CallboardError(f"{where} has no id in a field {fields.id!r}; --id names another")
    names: Sequence[str] = fields.texts or ("text",)
    texts = [row.get(name) for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise CallboardError(f"{where} has no text in {', '.join(names)}; --text names other fields")
    text = "\n".join(str(text) for text in texts)
    others = {name: value for name, value in row.items() if name not in (fields.id, *names)}
    return Record(str(found), text, msgspec.json.encode(others).decode() if others else None)
