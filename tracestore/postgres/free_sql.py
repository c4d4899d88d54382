"""SQL that somebody typed: it may only read, for so long and so much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from callboard.bus.errors import StoreError

from ..reports import SqlResult
from ..sql.connection import SqlValue
from .connection import connect
from .database import Database
from .errors import said, translated_errors
from .parameters import translated
from .thread import WorkThread

if TYPE_CHECKING:
    import psycopg

_PLAIN = (str, int, float, bytes)


async def select(
    database: Database, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float
) -> SqlResult:
    """Run one statement on a connection of its own, in a transaction that only reads and that is undone.

    A role that may only read is what keeps a statement from calling functions that do more; see the guide.

    Args:
        database: The database.
        sql: The statement.
        parameters: The values of its parameters.
        limit: The largest number of rows.
        seconds: The time that the statement may take.

    Raises:
        StoreError: The statement does anything but read, is no SQL, or takes too long.
        ValueError: A parameter or a limit is impossible.
    """
    if limit < 0 or seconds <= 0:
        raise ValueError("limit must not be negative, and seconds must be positive")
    thread = WorkThread("callboard-postgres-sql")
    try:
        return await thread.run(lambda: _selected(database, sql, parameters, limit, seconds))
    finally:
        thread.stop()


def _selected(
    database: Database, sql: str, parameters: Sequence[SqlValue], limit: int, seconds: float
) -> SqlResult:
    import psycopg

    with translated_errors(database.name):
        connection = connect(database.dsn, database.schema)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(cast("Any", f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"))
            columns, rows = _rows(connection, sql, parameters, limit + 1)
        except psycopg.errors.QueryCanceled:
            raise StoreError(
                f"{database.name}: the statement took longer than {seconds:g} s; narrow it, or allow it more time"
            ) from None
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise StoreError(f"{database.name}: only reading is allowed: SELECT, WITH, EXPLAIN") from error
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            raise StoreError(f"{database.name}: {said(error)}") from error
        finally:
            connection.close()
    found = [tuple(map(_plain, row)) for row in rows]
    return SqlResult(tuple(columns), tuple(found[:limit]), len(found) > limit)


def _plain(value: Any) -> SqlValue:
    return value if value is None or isinstance(value, _PLAIN) else str(value)


def _rows(
    connection: psycopg.Connection, sql: str, parameters: Sequence[SqlValue], limit: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and the first rows of one statement."""
    query = cast("Any", translated(sql) if parameters else sql)
    if sql.split(maxsplit=1)[:1] and sql.split(maxsplit=1)[0].lower() in ("explain", "show"):
        cursor: Any = connection.cursor(binary=True)  # binary: so that it may be one statement only
        cursor.execute(query, parameters or None, prepare=False)
        return [column.name for column in cursor.description or ()], cursor.fetchmany(limit)
    with connection.cursor(name="typed") as several:  # a cursor of the server: a SELECT, and nothing else
        several.execute(query, parameters or None)
        return [column.name for column in several.description or ()], several.fetchmany(limit)
