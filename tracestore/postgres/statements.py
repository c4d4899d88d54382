"""The means of a function that works with a connection, in the connection's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..sql.connection import Insert, Row, SqlValue
from .clean import clean_text
from .dialect import POSTGRES
from .errors import unstorable
from .insert import statements_for
from .parameters import translated

if TYPE_CHECKING:
    import psycopg

_COLUMN_TYPES = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
     WHERE attrelid = CAST(%s AS regclass) AND attnum > 0 AND NOT attisdropped
"""


class Statements:
    """PostgreSQL's `tracestore.sql.connection.Statements`.

    Args:
        connection: The connection.
        types: The types of columns that were looked up on this connection, by table.
    """

    dialect = POSTGRES

    def __init__(self, connection: psycopg.Connection, types: dict[str, dict[str, str]]) -> None:
        self.connection = connection
        """psycopg's own connection, for what has no other way, such as COPY."""
        self._types = types

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        """Execute one statement and return all its rows."""
        import psycopg

        query = translated(sql)
        try:
            cursor = self._execute(query, parameters)
        except psycopg.DataError as error:
            if error.sqlstate is not None:
                raise
            # A NUL, which psycopg sends to nobody. What was stored of such a text is found by what became of it.
            cursor = self._execute(query, _cleaned(parameters))
        return [] if cursor.description is None else cursor.fetchall()

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> int:
        """Execute one INSERT, UPDATE or DELETE and return how many rows it changed."""
        return self._execute(translated(sql), parameters).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`. Raises Unstorable for a value that the table doesn't take."""
        waiting = list(rows)
        if waiting:
            with unstorable():
                self.connection.cursor().executemany(_query(translated(sql)), waiting)

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        """Insert rows, whose values follow one another in `values`. Raises Unstorable like `run_many`."""
        for _ in self._inserted(insert, values):
            pass

    def insert_returning(self, insert: Insert, values: list[SqlValue]) -> list[Row]:
        """Insert rows in the same way, and return what the RETURNING behind the conflict's clause says."""
        return [row for cursor in self._inserted(insert, values) for row in cursor]

    def _inserted(self, insert: Insert, values: list[SqlValue]) -> Iterator[psycopg.Cursor[Any]]:
        with unstorable():
            for sql, parameters in statements_for(insert, values, self.column_types(insert.table)):
                yield self._execute(sql, parameters)

    def copy(self, table: str, columns: Sequence[str], options: str, parts: Iterable[bytes]) -> None:
        """Copy rows into a table.

        Args:
            table: The table.
            columns: The columns that the rows have.
            options: The options of COPY that say how the text is to be read.
            parts: The text of the rows, part by part.
        """
        with (
            unstorable(),
            self.connection.cursor().copy(
                _query(f"COPY {table} ({', '.join(columns)}) FROM STDIN WITH ({options})")
            ) as copy,
        ):
            for part in parts:
                copy.write(part)

    def erasing(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: deleted rows are overwritten when PostgreSQL uses their space again, after a vacuum."""
        return contextlib.nullcontext()

    def column_types(self, table: str) -> dict[str, str]:
        """The types of a table's columns by their names."""
        found = self._types.get(table)
        if found is None:
            found = self._types[table] = dict(self._execute(_COLUMN_TYPES, (table,)).fetchall())
        return found

    def script(self, statements: Iterable[str]) -> None:
        """Execute statements without parameters, as they stand."""
        for statement in statements:
            self.connection.execute(_query(statement))

    def _execute(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue]) -> psycopg.Cursor[Any]:
        return self.connection.execute(_query(sql), parameters)


def _cleaned(parameters: Sequence[SqlValue] | Mapping[str, SqlValue]) -> list[SqlValue] | dict[str, SqlValue]:
    def clean(value: SqlValue) -> SqlValue:
        return clean_text(value) if isinstance(value, str) else value

    if isinstance(parameters, Mapping):
        return {name: clean(value) for name, value in parameters.items()}
    return [clean(value) for value in parameters]


def _query(sql: str) -> Any:
    """psycopg's types take literals only; no statement here has a value in its text."""
    return cast("Any", sql)
