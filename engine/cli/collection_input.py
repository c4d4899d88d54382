"""Reads texts for a collection from lines, CSV, JSON and files, and embeds new texts."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from callboard.adapters.embeddings import PartialEmbeddingError, Vector
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore.collections import Collection, CollectionFile, Item, packed

from .. import EmbeddingResult
from ..models.registry import ModelRegistry
from ..operations.embeddings import space_of

# --- Reading texts ---

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
    """A text to add to a collection."""

    id: str  # the name of the item
    text: str
    metadata: str | None = None  # the other fields of the record's row, as a JSON object

    @property
    def hash(self) -> bytes:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()


class Fields(msgspec.Struct, frozen=True):
    """The names of a row's fields for the id and the text."""

    id: str = "id"
    texts: tuple[str, ...] = ()  # the fields of the text, which are joined with line breaks; empty for `text`


def records_in(path: Path, kind: Kind | None, fields: Fields) -> Iterator[Record]:
    """The records of a file, or of all files below a folder except hidden files."""
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
    """The records of a text. If a line has no id, the hash of its text is its id."""
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
        raise CallboardError(f"{source}: is not JSON: {error}") from error
    return found


def _of_rows(rows: Iterable[object], fields: Fields, source: str) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise CallboardError(f"{source}: row {number} is not an object")
        yield _of_row(row, fields, f"{source}: row {number}")


def _of_row(row: JsonObject, fields: Fields, where: str) -> Record:
    found = row.get(fields.id)
    if not isinstance(found, str | int) or found == "":
        raise CallboardError(f"{where} has no id in a field {fields.id!r}; choose another with --id")
    names: Sequence[str] = fields.texts or ("text",)
    texts = [row.get(name) for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise CallboardError(f"{where} has no text in {', '.join(names)}; choose other fields with --text")
    text = "\n".join(str(text) for text in texts)
    others = {name: value for name, value in row.items() if name not in (fields.id, *names)}
    return Record(str(found), text, msgspec.json.encode(others).decode() if others else None)


# --- Embedding and storing ---

AT_ONCE = 256
"""The number of texts that are embedded and stored in one step."""

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[EmbeddingResult]]


class TargetCollection(msgspec.Struct, frozen=True):
    """The collection that records are added to."""

    name: str  # the name of the collection
    model: str  # the model of the collection's vectors, as `provider:name`
    space: str  # the embedding space of the collection's vectors
    dimensions: int | None  # the requested length; None for the model's own
    keep_text: bool = False  # whether the texts are stored, too


class Added(msgspec.Struct):
    """The counts of records that were added."""

    embedded: int = 0  # the number of texts that were embedded
    unchanged: int = 0  # the number of texts that were already in the collection
    results: list[EmbeddingResult] = []  # the results, with tokens and costs


def destination(
    registry: ModelRegistry, collection: Collection | None, name: str, model: str | None, dimensions: int | None
) -> TargetCollection:
    """The collection to add to. An existing collection keeps its model; a new one gets the named model."""
    if collection is None and model is None:
        raise ConfigurationError(f"collection {name!r} is new: choose its embedding model with --model")
    if collection is not None and model is None:
        model = collection.model
    assert model is not None
    entry = registry.resolve(model).model
    into = TargetCollection(name, entry.id, space_of(entry), dimensions)
    if collection is None:
        return into
    if into.space != collection.space:
        raise ConfigurationError(
            f"collection {name!r} has vectors of {collection.model}, which can't be compared with vectors of "
            f"{entry.id}: use that model, or another collection"
        )
    if dimensions not in (None, collection.dimensions):
        raise ConfigurationError(f"the vectors of collection {name!r} have {collection.dimensions} dimensions")
    return msgspec.structs.replace(into, dimensions=collection.asked_dimensions)


async def add(file: CollectionFile, into: TargetCollection, records: Sequence[Record], embed: Embed) -> Added:
    """Add records to a collection. Texts that are already in the collection are not embedded again."""
    by_id = {record.id: record for record in records}  # if two records have the same id, the later one is used
    hashes = file.hashes(into.name)
    same = [record for record in by_id.values() if hashes.get(record.id) == record.hash]
    file.note(
        into.name, {record.id: (record.text if into.keep_text else None, record.metadata) for record in same}
    )
    fresh = [record for record in by_id.values() if hashes.get(record.id) != record.hash]
    added = Added(unchanged=len(same))
    for piece in _pieces(fresh):
        try:
            result = await embed([record.text for record in piece])
        except PartialEmbeddingError as error:
            _keep(file, into, piece, error.vectors)
            raise
        _keep(file, into, piece, result.vectors)
        added.embedded += len(piece)
        added.results.append(result)
    return added


def _pieces(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    for at in range(0, len(records), AT_ONCE):
        yield records[at : at + AT_ONCE]


def _keep(
    file: CollectionFile, into: TargetCollection, records: Sequence[Record], vectors: Sequence[Vector | None]
) -> None:
    items = [
        Item(record.id, record.hash, packed(vector), record.text if into.keep_text else None, record.metadata)
        for record, vector in zip(records, vectors, strict=True)
        if vector is not None
    ]
    file.put(into.name, items, model=into.model, space=into.space, asked_dimensions=into.dimensions)
