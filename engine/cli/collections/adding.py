"""Embedding what is new or changed, and keeping it piece by piece, so that an interruption loses little."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from callboard.adapters.embeddings import PartialEmbeddingError, Vector
from callboard.bus import ConfigurationError
from callboard.engine import EmbeddingResult
from callboard.tracestore.collections.collection_file import Collection, CollectionFile, Item
from callboard.tracestore.collections.similarity import packed

from ...embedding import space_of
from ...models.registry import ModelRegistry
from .records import Record

AT_ONCE = 256
"""The number of texts that are embedded before they are kept."""

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[EmbeddingResult]]


class Into(msgspec.Struct, frozen=True):
    """A collection, as something is to be put into it."""

    name: str
    """The name of the collection."""
    model: str
    """The model of its vectors, as ``provider:name``."""
    space: str
    """The space in which they can be compared."""
    dimensions: int | None
    """The length that is asked for; None for the model's own."""
    keep_text: bool = False
    """Whether the texts are kept, too."""


class Added(msgspec.Struct):
    """What was done."""

    embedded: int = 0
    """The texts that were embedded."""
    unchanged: int = 0
    """The texts that the collection had already."""
    results: list[EmbeddingResult] = []
    """The results, with tokens and costs."""


def destination(
    registry: ModelRegistry, known: Collection | None, name: str, model: str | None, dimensions: int | None
) -> Into:
    """The collection with its model: its own, or for a new one the model that is named.

    Raises:
        ConfigurationError: There is no model, or it is another than that of the collection's vectors.
    """
    if known is None and model is None:
        raise ConfigurationError(f"collection {name!r} is new: say by which model it is embedded, with --model")
    if known is not None and model is None:
        model = known.model
    assert model is not None
    entry = registry.resolve(model).model
    into = Into(name, entry.id, space_of(entry), dimensions)
    if known is None:
        return into
    if into.space != known.space:
        raise ConfigurationError(
            f"the vectors of collection {name!r} are of {known.model}, and those of {entry.id} can't be compared "
            "with them: use that model, or another collection"
        )
    if dimensions not in (None, known.dimensions):
        raise ConfigurationError(f"the vectors of collection {name!r} have {known.dimensions} dimensions")
    return msgspec.structs.replace(into, dimensions=known.asked_dimensions)


async def add(file: CollectionFile, into: Into, records: Sequence[Record], embed: Embed) -> Added:
    """Put records into a collection. Texts that it has already are not embedded again.

    Raises:
        CallboardError: Texts can't be embedded, or not be kept. Those before them are kept.
    """
    by_id = {record.id: record for record in records}  # of two with one id, the later one
    known = file.hashes(into.name)
    same = [record for record in by_id.values() if known.get(record.id) == record.hash]
    file.note(
        into.name, {record.id: (record.text if into.keep_text else None, record.metadata) for record in same}
    )
    fresh = [record for record in by_id.values() if known.get(record.id) != record.hash]
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


def _keep(file: CollectionFile, into: Into, records: Sequence[Record], vectors: Sequence[Vector | None]) -> None:
    items = [
        Item(record.id, record.hash, packed(vector), record.text if into.keep_text else None, record.metadata)
        for record, vector in zip(records, vectors, strict=True)
        if vector is not None
    ]
    file.put(into.name, items, model=into.model, space=into.space, asked_dimensions=into.dimensions)
