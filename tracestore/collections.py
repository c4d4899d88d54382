"""The file of collections: vectors with their ids, the hashes of their texts, and metadata.

The file is separate from the trace, because a trace is derived from events and pruned by age. Only its owner can
read the file. A collection has one model, since vectors of two models can't be compared.
"""

from __future__ import annotations

import heapq
import math
import os
import sqlite3
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import mul
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.files import refuse_link

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS collections (
        id          INTEGER PRIMARY KEY,
        name        TEXT NOT NULL UNIQUE,
        model       TEXT NOT NULL,
        space       TEXT NOT NULL,
        dimensions  INTEGER NOT NULL,
        asked       INTEGER
    ) STRICT;
    CREATE TABLE IF NOT EXISTS items (
        collection  INTEGER NOT NULL REFERENCES collections (id),
        id          TEXT NOT NULL,
        hash        BLOB NOT NULL,
        vector      BLOB NOT NULL,
        text        TEXT,
        metadata    TEXT,
        PRIMARY KEY (collection, id)
    ) STRICT, WITHOUT ROWID;
"""
_APPLICATION = 0x43424543
_VERSION = 1
_ITEMS = "items AS i JOIN collections AS c ON c.id = i.collection"
_CHUNK = 1000
"""The number of vectors that are compared at a time."""


class Collection(msgspec.Struct, frozen=True):
    name: str
    model: str
    """The model of the collection's vectors, as ``provider:name``."""
    space: str
    """The id of the space in which the vectors can be compared, see `embedding_space`."""
    dimensions: int
    """The length of the collection's vectors."""
    asked_dimensions: int | None
    """The requested length of the vectors; None for the model's own."""
    items: int


class Item(msgspec.Struct, frozen=True):
    """A vector to store in a collection."""

    id: str
    """The name of the item in its collection. A later item of the same name replaces the item."""
    hash: bytes
    """The hash of the item's text, to recognise an unchanged text."""
    vector: bytes
    """The vector, as `packed` makes it."""
    text: str | None = None
    """The text; None if it is not stored."""
    metadata: str | None = None
    """The host's metadata, as a JSON object."""


class Similar(msgspec.Struct, frozen=True):
    """An item that a search found."""

    id: str
    score: float
    """The cosine similarity, from -1 to 1."""
    text: str | None
    """The text; None if it is not stored."""
    metadata: msgspec.Raw | None
    """The host's metadata, as a JSON object."""


class CollectionFile:
    """The file of collections, for use in a ``with`` block."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._readonly = readonly
        self._connection: sqlite3.Connection

    def __enter__(self) -> Self:
        """Open the file. A missing file is created, unless the store is only read. Raises StoreError."""
        with self._translated():
            self._connection = self._connect()
            try:
                if self._readonly and not self.path.exists():
                    self._connection.executescript(_SCHEMA)
                else:
                    self._check()
            except BaseException:
                self._connection.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        if self._readonly:
            where = f"{self.path.resolve().as_uri()}?mode=ro" if self.path.exists() else ":memory:"
            return sqlite3.connect(where, uri=True, isolation_level=None)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        refuse_link(self.path)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        # Overwrite deleted vectors, because they reveal much of their texts.
        connection.execute("PRAGMA secure_delete = ON")
        return connection

    def _check(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (tables and application != _APPLICATION) or version > _VERSION:
            raise StoreError(f"{self.path} is not a collections file, or belongs to a newer Callboard")
        if not tables:
            self._connection.executescript(
                f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA application_id = {_APPLICATION};"
                f"PRAGMA user_version = {_VERSION};COMMIT;"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def collections(self) -> list[Collection]:
        with self._translated():
            rows = self._connection.execute(
                """
                SELECT c.name, c.model, c.space, c.dimensions, c.asked, count(i.id)
                  FROM collections AS c LEFT JOIN items AS i ON i.collection = c.id
                 GROUP BY c.id ORDER BY c.name
                """
            ).fetchall()
        return [Collection(*row) for row in rows]

    def collection(self, name: str) -> Collection | None:
        return next((each for each in self.collections() if each.name == name), None)

    def hashes(self, name: str) -> dict[str, bytes]:
        """The hashes of a collection's texts by the ids of its items."""
        with self._translated():
            rows = self._connection.execute(
                f"SELECT i.id, i.hash FROM {_ITEMS} WHERE c.name = ?", (name,)
            ).fetchall()
        return dict(rows)

    def put(
        self, name: str, items: Sequence[Item], *, model: str, space: str, asked_dimensions: int | None = None
    ) -> None:
        """Store items in a collection. A missing collection is created. Either all items are stored, or none."""
        if not items:
            return
        dimensions = len(items[0].vector) // 4
        with self._translated(), self._transaction():
            self._connection.execute(
                "INSERT INTO collections (name, model, space, dimensions, asked) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO NOTHING",
                (name, model, space, dimensions, asked_dimensions),
            )
            key, of_model, of_space, length = self._connection.execute(
                "SELECT id, model, space, dimensions FROM collections WHERE name = ?", (name,)
            ).fetchone()
            if space != of_space:
                raise StoreError(
                    f"{name!r} has vectors of {of_model}, which can't be compared with vectors of {model}"
                )
            if any(len(item.vector) != 4 * length for item in items):
                raise StoreError(f"the vectors of {name!r} have {length} dimensions, not {dimensions}")
            self._connection.executemany(
                """
                INSERT INTO items (collection, id, hash, vector, text, metadata) VALUES (?, ?, ?, ?, ?, ?)
                ON CONFLICT (collection, id) DO UPDATE SET
                    hash = excluded.hash, vector = excluded.vector, text = excluded.text,
                    metadata = excluded.metadata
                """,
                [(key, item.id, item.hash, item.vector, item.text, item.metadata) for item in items],
            )

    def note(self, name: str, metadata: Mapping[str, tuple[str | None, str | None]]) -> None:
        """Change the metadata of items by id, and their texts if given. The vectors are not changed."""
        with self._translated(), self._transaction():
            self._connection.executemany(
                "UPDATE items SET text = coalesce(?, text), metadata = ? WHERE id = ?"
                " AND collection = (SELECT id FROM collections WHERE name = ?)",
                [(*values, item, name) for item, values in metadata.items()],
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def delete(self, name: str, items: Iterable[str] | None = None) -> int:
        """Delete a collection, or some of its items. The bytes are overwritten."""
        of_it = "collection = (SELECT id FROM collections WHERE name = ?)"
        with self._translated(), self._transaction():
            before = self._connection.total_changes
            if items is None:
                self._connection.execute(f"DELETE FROM items WHERE {of_it}", (name,))
                gone = self._connection.total_changes - before
                self._connection.execute("DELETE FROM collections WHERE name = ?", (name,))
                return gone
            self._connection.executemany(f"DELETE FROM items WHERE {of_it} AND id = ?", [(name, i) for i in items])
            return self._connection.total_changes - before

    def vector(self, name: str, item: str) -> bytes | None:
        with self._translated():
            row = self._connection.execute(
                f"SELECT vector FROM {_ITEMS} WHERE c.name = ? AND i.id = ?", (name, item)
            ).fetchone()
        return None if row is None else row[0]

    def similar(self, name: str, vector: bytes, limit: int, *, without: str | None = None) -> list[Similar]:
        """The items of a collection with the most similar vectors, the most similar first."""
        scores = scores_with(vector)
        best: list[tuple[float, str]] = []
        with self._translated():
            cursor = self._connection.execute(
                f"SELECT i.id, i.vector FROM {_ITEMS} WHERE c.name = ? AND i.id IS NOT ? ORDER BY i.id",
                (name, without),
            )
            while rows := cursor.fetchmany(_CHUNK):
                found = zip(scores([row[1] for row in rows]), (row[0] for row in rows), strict=True)
                best = heapq.nlargest(limit, [*best, *found], key=lambda each: each[0])
            return [self._found(name, item, score) for score, item in best]

    def _found(self, name: str, item: str, score: float) -> Similar:
        text, metadata = self._connection.execute(
            f"SELECT i.text, i.metadata FROM {_ITEMS} WHERE c.name = ? AND i.id = ?", (name, item)
        ).fetchone()
        return Similar(item, score, text, None if metadata is None else msgspec.Raw(metadata.encode()))


# --- Cosine similarity ---
# Vectors are stored as little-endian float32. numpy is used if it is installed. A vector of zeros is similar to
# nothing: its similarity is 0.


Scores: TypeAlias = Callable[[Sequence[bytes]], list[float]]
"""The similarities of some stored vectors with a given vector."""


def packed(vector: Sequence[float]) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(data: bytes) -> array[float]:
    numbers = array("f")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def scores_with(data: bytes) -> Scores:
    """Return a function that compares the vector with stored vectors. All vectors must have the same length."""
    try:
        import numpy
    except ImportError:
        return plain_scores(data)

    def scores(stored: Sequence[bytes]) -> list[float]:
        if not stored:
            return []
        vector = numpy.frombuffer(data, "<f4").astype("f8")
        rows = numpy.frombuffer(b"".join(stored), "<f4").reshape(len(stored), -1).astype("f8")
        lengths = numpy.sqrt((rows * rows).sum(axis=1)) * math.sqrt(float(vector @ vector))
        found: list[float] = numpy.divide(
            rows @ vector, lengths, out=numpy.zeros(len(stored)), where=lengths > 0
        ).tolist()
        return found

    return scores


def plain_scores(data: bytes) -> Scores:
    """Compare with stored vectors in plain Python, like `scores_with`."""
    vector = unpacked(data)
    length = _length(vector)

    def score(stored: bytes) -> float:
        other = unpacked(stored)
        lengths = length * _length(other)
        return sum(map(mul, vector, other)) / lengths if lengths else 0.0

    return lambda stored: [score(each) for each in stored]


def _length(vector: Iterable[float]) -> float:
    return math.sqrt(sum(number * number for number in vector))
