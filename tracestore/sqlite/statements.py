"""The means of a function that works with a connection, in the connection's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..sql.connection import Insert, Row, SqlValue, Unstorable
from .dialect import SQLITE
from .insert import statements_for
from .search import DROP

if TYPE_CHECKING:
    import sqlite3

_PROGRESS_STEPS = 10_000
_VALUE_LIMIT_BYTES = 16 * 1024 * 1024


@contextlib.contextmanager
def _unstorable() -> Iterator[None]:
    import sqlite3

    try:
        yield
    except (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise Unstorable(str(error)) from error  # no text, beyond 64 bits, or of no type that SQLite knows
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise Unstorable(str(error)) from error  # missing, of another type than the column's, or too large


class Statements:
    """SQLite's `tracestore.sql.connection.Statements`."""

    dialect = SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        """Execute one statement and return all its rows."""
        return self._connection.execute(sql, parameters).fetchall()

    def first(self, sql: str, parameters: Sequence[SqlValue], limit: int) -> tuple[list[str], list[Row]]:
        """The columns and the first rows of one statement, which may only read, and no value beyond 16 MiB."""
        import sqlite3

        self._connection.set_authorizer(_may_read)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT_BYTES)
        cursor = self._connection.execute(sql, parameters)
        return [column[0] for column in cursor.description or ()], cursor.fetchmany(limit)

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> int:
        """Execute one INSERT, UPDATE or DELETE and return how many rows it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def script(self, sql: str) -> None:
        """Execute statements outside of a transaction, each to its end. `run` stops at a row without columns."""
        self._connection.executescript(sql)

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`. Raises Unstorable for a value that the table doesn't take."""
        with _unstorable():
            self._connection.executemany(sql, rows)

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        """Insert rows, whose values follow one another in `values`. Raises Unstorable like `run_many`."""
        with _unstorable():
            for sql, parameters in statements_for(insert, values):
                self._connection.execute(sql, parameters)

    @contextlib.contextmanager
    def erasing(self) -> Iterator[None]:
        """Overwrite the bytes of rows that are deleted inside, and all words that were indexed for a search."""
        self.run("PRAGMA secure_delete = ON")
        try:
            yield
            self.run(DROP)
        finally:
            self.run("PRAGMA secure_delete = OFF")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the work inside as a whole, or undo it when it raises."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # When the disk is full SQLite has rolled back by itself, and a second ROLLBACK would raise.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def interrupted_at(self, deadline: float) -> Iterator[None]:
        """Interrupt whatever statement inside still runs at that moment of `time.monotonic`."""

        def too_late() -> bool:  # called by SQLite now and then; true interrupts the statement
            return time.monotonic() > deadline

        self._connection.set_progress_handler(too_late, _PROGRESS_STEPS)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)


def _may_read(action: int, first: str | None, second: str | None, *rest: str | None) -> int:
    """SQLite's question whether a statement may do something: it may read, but open or load no other file."""
    import sqlite3

    match action:
        case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_READ | sqlite3.SQLITE_RECURSIVE:
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_FUNCTION if second != "load_extension":
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_PRAGMA if first in _READING_PRAGMAS:
            return sqlite3.SQLITE_OK
        case _:
            return sqlite3.SQLITE_DENY


_READING_PRAGMAS = ("table_info", "table_xinfo", "table_list", "index_list", "index_info")
