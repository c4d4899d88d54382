"""`callboard embed`, `collections` and `similar`: embed texts, store their vectors, and compare them."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add as plus
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, get_args

import msgspec

from callboard.adapters.embeddings import INPUT_TYPES, InputType, PartialEmbeddingError, Vector
from callboard.bus import CallboardError, CallWarning, ConfigurationError
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import CostSum
from callboard.tracestore.collections import Collection, CollectionFile, Item, Similar, packed
from callboard.tracestore.home import home_folder

from .. import EmbeddingResult, Engine
from ..models.registry import ModelRegistry
from ..operations.embeddings_and_images import space_of
from .options import (
    add_action,
    add_key,
    add_limit,
    add_model,
    add_models_file,
    flag,
    on_engine,
    positive,
    print_warnings,
    repeated,
)
from .sanitize import echo, note, one_line, write_json
from .table import Column, add_format, cost_text, count, figure, json_text, plural, sum_text, write_rows

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

    id: str
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
    names = fields.texts or ("text",)
    for number, row in enumerate(rows, 1):
        where = f"{source}: row {number}"
        if not isinstance(row, dict):
            raise CallboardError(f"{where} is not an object")
        found = row.get(fields.id)
        if not isinstance(found, str | int) or found == "":
            raise CallboardError(f"{where} has no id in a field {fields.id!r}; choose another with --id")
        texts = [row.get(name) for name in names]
        if not all(isinstance(text, str) for text in texts):
            raise CallboardError(f"{where} has no text in {', '.join(names)}; choose other fields with --text")
        others = {name: value for name, value in row.items() if name not in (fields.id, *names)}
        metadata = msgspec.json.encode(others).decode() if others else None
        yield Record(str(found), "\n".join(map(str, texts)), metadata)


# --- Embedding and storing ---

AT_ONCE = 256
"""The number of texts that are embedded and stored in one step."""


class TargetCollection(msgspec.Struct, frozen=True):
    """The collection that records are added to."""

    name: str
    model: str  # the model of the vectors, as `provider:name`
    space: str  # the embedding space of the vectors
    dimensions: int | None  # the requested length; None for the model's own
    keep_text: bool = False  # whether the texts are stored, too


class Added(msgspec.Struct):
    """The counts of records that were added."""

    embedded: int = 0
    unchanged: int = 0  # the number of texts that were already in the collection
    results: list[EmbeddingResult] = []


def destination(
    registry: ModelRegistry, collection: Collection | None, name: str, model: str | None, dimensions: int | None
) -> TargetCollection:
    """The collection to add to. An existing collection keeps its model; a new one gets the named model."""
    chosen = model if model is not None or collection is None else collection.model
    if chosen is None:
        raise ConfigurationError(f"collection {name!r} is new: choose its embedding model with --model")
    entry = registry.resolve(chosen).model
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


async def add(
    file: CollectionFile, into: TargetCollection, records: Sequence[Record], engine: Engine, key: str | None
) -> Added:
    """Add records to a collection. Texts that are already in the collection are not embedded again."""
    by_id = {record.id: record for record in records}  # if two records have the same id, the later one is used
    hashes = file.hashes(into.name)
    same = [record for record in by_id.values() if hashes.get(record.id) == record.hash]
    file.note(
        into.name, {record.id: (record.text if into.keep_text else None, record.metadata) for record in same}
    )
    fresh = [record for record in by_id.values() if hashes.get(record.id) != record.hash]
    added = Added(unchanged=len(same))
    for at in range(0, len(fresh), AT_ONCE):
        piece = fresh[at : at + AT_ONCE]
        try:
            result = await _embedded(engine, into, [record.text for record in piece], "document", key)
        except PartialEmbeddingError as error:
            _keep(file, into, piece, error.vectors)
            raise
        _keep(file, into, piece, result.vectors)
        added.embedded += len(piece)
        added.results.append(result)
    return added


def _keep(
    file: CollectionFile, into: TargetCollection, records: Sequence[Record], vectors: Sequence[Vector | None]
) -> None:
    items = [
        Item(record.id, record.hash, packed(vector), record.text if into.keep_text else None, record.metadata)
        for record, vector in zip(records, vectors, strict=True)
        if vector is not None
    ]
    file.put(into.name, items, model=into.model, space=into.space, asked_dimensions=into.dimensions)


def add_embed(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Embed the given texts, or each line of stdin. If a text can't be embedded, its line has `error` "
        "instead of `embedding`, and the exit code is 1."
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="a text (default: the lines of stdin)")
    add_model(parser)
    add_models_file(parser)
    add_key(parser)
    parser.add_argument(
        "--dimensions", type=int, metavar="N", help="set the size of each vector (default: that of the model)"
    )
    parser.add_argument(
        "--input-type",
        choices=INPUT_TYPES,
        metavar="PURPOSE",
        help=f"set the purpose of the embedding: {', '.join(INPUT_TYPES)}",
    )
    flag(parser, "--truncate", help="cut texts that are too long")
    parser.add_argument(
        "--jsonl",
        metavar="FIELD",
        help="read JSON objects from stdin, with the text in this field, and print each with its vector",
    )
    flag(parser, "--base64", help="print vectors as base64 of little-endian float32")
    parser.set_defaults(run=run_embed)


def run_embed(arguments: argparse.Namespace) -> int:
    records = list(_texts(arguments.text, arguments.jsonl, sys.stdin))
    texts = [text for text, _ in records]
    names = ("model", "dimensions", "input_type", "truncate", "key")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    write = partial(_write_vectors, records, as_base64=arguments.base64)
    try:
        result = on_engine(arguments, lambda engine: engine.embed(texts, **options))
    except PartialEmbeddingError as error:
        write(error.vectors, failures={at: str(failure) for at, failure in error.failures.items()})
        raise
    write(result.vectors)
    print_warnings(result.warnings)
    what = f"{plural(len(texts), 'text')}, {result.dimensions} dimensions, {result.model}"
    note(f"{what}: {plural(result.usage.input_tokens, 'token')}, {cost_text(result.cost)}")
    return 0


def _texts(texts: list[str], field: str | None, lines: TextIO) -> Iterator[tuple[str, JsonObject]]:
    """Each text, with the fields of its record for the output."""
    if texts or field is None:
        for number, text in enumerate(texts or (line.rstrip("\n") for line in lines)):
            yield text, {"index": number}
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Json = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CallboardError(f"line {number} of the input is not JSON: {error}") from error
        found = record.get(field) if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(found, str):
            raise CallboardError(f"line {number} of the input has no text in a field {field!r}")
        yield found, record


def _write_vectors(
    records: list[tuple[str, JsonObject]],
    vectors: Iterable[Vector | None],
    *,
    as_base64: bool,
    failures: dict[int, str] | None = None,
) -> None:
    for at, ((_, record), vector) in enumerate(zip(records, vectors, strict=True)):
        outcome: JsonObject
        if vector is None:
            outcome = {"error": (failures or {})[at]}
        else:
            outcome = {"embedding": b64encode(packed(vector)).decode() if as_base64 else list(vector)}
        write_json(json_text({**record, **outcome}))


# --- Collections ---


def add_collections(parser: argparse.ArgumentParser) -> None:
    parser.description = "Store texts as vectors in collections, in $CALLBOARD_HOME/embeddings.db."
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_adding(inner)
    listing = add_action(inner, "list", list_collections, "List collections", "List all collections.")
    add_format(listing, "for each collection")
    delete = add_action(inner, "delete", delete_collection, "Delete a collection, or items of it")
    delete.add_argument("collection", metavar="COLLECTION", help="the collection")
    delete.add_argument("id", nargs="*", metavar="ID", help="delete only these items")
    add_action(inner, "path", show_path, "Print the path of the file")


def _add_adding(inner: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_action(
        inner,
        "add",
        add_to_collection,
        "Embed new and changed texts",
        "Embed texts into a collection, and skip unchanged texts. A file is one text, with its path as "
        "the id. In .csv, .tsv, .json and .jsonl files, each row has a text and an id, and the other "
        "fields are stored with the vector.",
    )
    parser.add_argument("collection", metavar="COLLECTION", help="the collection; created if it does not exist")
    parser.add_argument(
        *("-f", "--from"),
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        type=Path,
        metavar="FILE",
        help="files or folders to embed (default: the lines of stdin)",
    )
    parser.add_argument("-m", "--model", metavar="NAME", help="set the model of a new collection")
    parser.add_argument(
        "--as", dest="kind", choices=KINDS, help="set the format of the files, regardless of their names"
    )
    parser.add_argument(
        "--id", default="id", metavar="FIELD", help="read the id of a row from this field (default: id)"
    )
    repeated(parser, "--text", metavar="FIELD", help="read the text from this field (default: text; repeatable)")
    flag(parser, "--keep-text", help="also store the texts, and show them in `similar`")
    parser.add_argument("--dimensions", type=positive, metavar="N", help="set the vector size of a new collection")
    add_key(parser)
    add_models_file(parser)


def add_similar(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the items of a collection that are most similar to a text or an item, by cosine similarity."
    )
    parser.add_argument("collection", metavar="COLLECTION", help="the collection")
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="find items similar to this item, without the item itself"
    )
    parser.add_argument("-c", "--content", metavar="TEXT", help="find items similar to this text (default: stdin)")
    add_limit(parser, 10, "items", "-n")
    add_key(parser)
    add_models_file(parser)
    add_format(parser, "for each item")
    parser.set_defaults(run=similar)


def add_to_collection(arguments: argparse.Namespace) -> int:
    """Embed records and add them to a collection. After an error, texts that were already embedded are kept."""
    fields = Fields(arguments.id, tuple(arguments.text))
    if arguments.files:
        records = [record for path in arguments.files for record in records_in(path, arguments.kind, fields)]
    else:
        records = list(records_of(sys.stdin.read(), arguments.kind or "lines", fields, "the input"))
    name: str = arguments.collection

    async def work(engine: Engine) -> Added:
        with CollectionFile(collections_file()) as file:
            into = destination(engine.registry, file.collection(name), name, arguments.model, arguments.dimensions)
            into = msgspec.structs.replace(into, keep_text=arguments.keep_text)
            return await add(file, into, records, engine, arguments.key)

    added = on_engine(arguments, work)
    print_warnings(
        {warning: None for result in added.results for warning in result.warnings if _is_shown(warning)}
    )
    costs = (CostSum.of_call(each.usage, each.cost, unknown=False) for each in added.results)
    cost = reduce(plus, costs, CostSum())
    beside = f"; {sum_text(cost)}" if added.results else ""
    note(f"{name}: {plural(added.embedded, 'text')} embedded, {added.unchanged:,} unchanged{beside}")
    return 0


def _is_shown(warning: CallWarning) -> bool:
    """Whether to show a warning. A dropped input type is not shown, because the command chose it, not the user."""
    return warning.code != WarningCode.PARAMETER_DROPPED or not warning.message.startswith("input_type ")


async def _embedded(
    engine: Engine, into: TargetCollection, texts: Sequence[str], kind: InputType, key: str | None
) -> EmbeddingResult:
    return await engine.embed(texts, model=into.model, dimensions=into.dimensions, input_type=kind, key=key)


_SIMILAR: list[Column[Similar]] = [
    figure("score", lambda each: f"{each.score:.4f}"),
    Column("id", lambda each: each.id, folds=True),
    Column("text", lambda each: one_line(_text_of(each))[:200], folds=True, may_go=1),
]


def similar(arguments: argparse.Namespace) -> int:
    name: str = arguments.collection
    with CollectionFile(collections_file(), readonly=True) as file:
        collection = _existing(file, name)
        found = file.similar(name, _vector(arguments, file, collection), arguments.limit, without=arguments.id)
    return write_rows(arguments.format, Similar, found, _SIMILAR)


def _existing(file: CollectionFile, name: str) -> Collection:
    collection = file.collection(name)
    if collection is None:
        raise CallboardError(f"unknown collection {name!r}. `callboard collections list` shows all collections")
    return collection


def _text_of(found: Similar) -> str:
    return found.text or ("" if found.metadata is None else bytes(found.metadata).decode())


def _vector(arguments: argparse.Namespace, file: CollectionFile, collection: Collection) -> bytes:
    """The vector to compare with: the vector of an item, or of a text that the collection's own model embeds."""
    if arguments.id is not None and arguments.content is not None:
        raise ConfigurationError("pass an ID or a text, not both")
    if arguments.id is not None:
        vector = file.vector(collection.name, arguments.id)
        if vector is None:
            raise CallboardError(f"collection {collection.name!r} has no item {arguments.id!r}")
        return vector
    text: str = sys.stdin.read().strip() if arguments.content is None else arguments.content
    if not text:
        raise ConfigurationError("pass an ID, a text with -c, or a text on stdin")

    async def work(engine: Engine) -> bytes:
        into = destination(engine.registry, collection, collection.name, None, None)
        result = await _embedded(engine, into, [text], "query", arguments.key)
        return packed(result.vectors[0])

    vector = on_engine(arguments, work)
    if len(vector) != 4 * collection.dimensions:
        raise ConfigurationError(
            f"{collection.model} gives {len(vector) // 4} dimensions now, but collection {collection.name!r} has "
            f"{collection.dimensions}: embed it again"
        )
    return vector


_COLLECTIONS: list[Column[Collection]] = [
    Column("collection", lambda each: each.name),
    Column("model", lambda each: each.model, folds=True, may_go=1),
    count("dimensions", lambda each: each.dimensions, may_go=2),
    count("items", lambda each: each.items),
]


def list_collections(arguments: argparse.Namespace) -> int:
    with CollectionFile(collections_file(), readonly=True) as file:
        found = file.collections()
    return write_rows(
        arguments.format,
        Collection,
        found,
        _COLLECTIONS,
        empty=f"No collections in {collections_file()}.",
        whole=True,
    )


def delete_collection(arguments: argparse.Namespace) -> int:
    name: str = arguments.collection
    with CollectionFile(collections_file(), readonly=True) as file:
        _existing(file, name)
    with CollectionFile(collections_file()) as file:
        gone = file.delete(name, arguments.id or None)
    if arguments.id and not gone:
        raise CallboardError(f"collection {name!r} has no such items")
    items = plural(gone, "item")
    echo(f"{items} deleted from {name}." if arguments.id else f"Deleted {name}: {items}.")
    return 0


def show_path(arguments: argparse.Namespace) -> int:
    echo(str(collections_file()))
    return 0


def collections_file() -> Path:
    """The path of the file of collections, which may not exist."""
    return home_folder() / "embeddings.db"
