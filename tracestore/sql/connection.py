"""A database as the statements of this folder see it: SQLite today, and whatever else keeps a trace.

A statement is text with parameters, written ``?`` or ``:name``; a connection whose driver writes them otherwise
translates. Work on a database is one function that gets `Statements` and runs to its end in the connection's
thread, so a synchronous driver is all that a database needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from .repricing.pricing_dialect import PricingDialect

SqlValue: TypeAlias = str | int | float | bytes | None
"""A value that a statement is given, or that a row has."""
Row: TypeAlias = tuple[Any, ...]  # as the driver gives it; each reader knows its own columns
Sql: TypeAlias = tuple[str, list[SqlValue]]
"""A statement or a part of one, and its parameters."""

_T = TypeVar("_T")


class Unstorable(ValueError):
    """A value is to blame, not the database. Writing it again would fail again."""


class Insert(NamedTuple):
    """An INSERT of any number of rows."""

    table: str
    """The name of the table."""
    columns: tuple[str, ...]
    """The columns that each row has a value for."""
    conflict: str
    """The ON CONFLICT clause, which makes it harmless that a row is inserted twice."""


class Dialect(Protocol):
    """The expressions that databases write differently. Whatever is not here is written so that all understand it:
    booleans as conditions, a flag in a column as 0 or 1, ``count(*) FILTER``, the lesser of two by CASE.
    """

    @property
    def pricing(self) -> PricingDialect:
        """The SQL for pricing many calls at once."""
        ...

    @property
    def moment(self) -> str:
        """A text for the state of the database that a `look` sees."""
        ...

    @property
    def untouched_since(self) -> str:
        """Whether a row was there at such a moment, whose text is a parameter, and was not written since."""
        ...

    @property
    def latest_claim(self) -> str | None:
        """A statement for the number of the latest claim of a session, which nobody raises before the end of the
        transaction. None where nodes of a cluster share nothing.
        """
        ...

    @property
    def with_sessions(self) -> tuple[str, ...]:
        """Statements that delete what the nodes of a cluster know of sessions. ``{names}`` stands for a list of
        the sessions.
        """
        ...

    def tag(self, tags: str) -> str:
        """The value of one tag, NULL if there is none. `tags` is a column of JSON, the tag's name a parameter."""
        ...

    def behind(self, text: str, sign: str) -> str:
        """The part of a text behind the first `sign` in it."""
        ...

    def like_topic(self, column: str, pattern: str) -> tuple[str, SqlValue]:
        """Whether a topic matches a pattern with ``*``: a condition, and its parameter."""
        ...

    def by_number(self, table: str, name: str) -> str:
        """A table to be read in the order of its ids, and through no other index, under the name `name`."""
        ...

    def rounded(self, value: str, digits: int) -> str:
        """A number with so many decimal places."""
        ...


class Statements(Protocol):
    """The means of a function that works in the connection's thread. They are not to be kept or used elsewhere."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        ...

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = (), /) -> list[Row]:
        """Execute one statement and return all its rows."""
        ...

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = (), /) -> int:
        """Execute one INSERT, UPDATE or DELETE and return how many rows it changed."""
        ...

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]], /) -> None:
        """Execute one statement for each of `rows`."""
        ...

    def erasing(self) -> AbstractContextManager[None]:
        """A context in which deleted bytes are overwritten, as far as the database can."""
        ...

    def insert(self, insert: Insert, values: list[SqlValue], /) -> None:
        """Insert rows, whose values follow one another in `values`."""
        ...


class Database(Protocol):
    """A database, for queries."""

    @property
    def name(self) -> str:
        """The name of the database in messages to people."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""
        ...

    async def read(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> list[Row]:
        """Return all rows of one statement that writes nothing."""
        ...

    async def look(self, work: Callable[[Statements], _T], /) -> _T:
        """Run work that writes nothing, in one go."""
        ...

    async def write(self, work: Callable[[Statements], _T], /) -> _T:
        """Run work in one transaction, which is committed when the work returns."""
        ...


def lesser(one: str, other: str) -> str:
    """The lesser of two values that are never NULL."""
    return f"CASE WHEN {one} < {other} THEN {one} ELSE {other} END"


def greater(one: str, other: str) -> str:
    """The greater of two values that are never NULL."""
    return f"CASE WHEN {one} > {other} THEN {one} ELSE {other} END"


def at_most(rows: int | None) -> Sql:
    """The LIMIT clause for so many rows; None is all of them."""
    return ("", []) if rows is None else ("LIMIT ?", [rows])


def placeholders(number: int) -> str:
    """So many parameters, with commas between them."""
    return ", ".join("?" * number)
