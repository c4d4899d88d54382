"""Rows of other programs' SQLite files and PostgreSQL tables, for imports. They are only read.

Such a database may be in use, damaged or of an unexpected version. A missing column is left out. A row that is too
large is empty. Any other problem is an OSError, which an import reports and skips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from callboard.bus.errors import ConfigurationError

if TYPE_CHECKING:
    import sqlite3

_LONGEST_VALUE = 16 * 1024 * 1024
_EIO = 5


def foreign_rows(
    path: Path, table: str, columns: Sequence[str], order: Sequence[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, one at a time. A row with a value above 16 MiB is empty.

    Args:
        path: The file.
        table: The name of the table.
        columns: The columns to read. A column that the table lacks is left out.
        order: The columns to sort by, if the table has them.

    Raises:
        OSError: The file can't be read as a database, or lacks the table. The text quotes none of its content.
    """
    import sqlite3

    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.text_factory = _text
            yield from _rows(connection, table, columns, order)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(_EIO, f"not readable as a database ({type(error).__name__})") from None


def _rows(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], order: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    import sqlite3

    known = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    wanted = [name for name in columns if name in known]
    if not wanted:
        raise OSError(_EIO, f"there is no table {table!r} with the expected columns")
    sorting = [name for name in order if name in known]
    assert all(re.fullmatch(r"\w+", name) for name in (table, *wanted, *sorting))
    by = f" ORDER BY {', '.join(sorting)}" if sorting else ""
    # By number, because an error in a row ends the statement that reads it.
    numbers = [number for (number,) in connection.execute(f"SELECT rowid FROM {table}{by}")]
    for number in numbers:
        try:
            rows = connection.execute(
                f"SELECT {', '.join(wanted)} FROM {table} WHERE rowid = ?", (number,)
            ).fetchall()
        except sqlite3.DataError:
            yield {}
        else:
            yield from (dict(zip(wanted, row, strict=True)) for row in rows)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# --- PostgreSQL ---

_ROWS_AT_ONCE = 500
_NOT_LIBPQS = re.compile(r"(?<=[?&])(connection_limit|pool_timeout|pgbouncer|socket_timeout|sslidentity)=[^&#]*&?")
"""Parameters of Prisma, which LiteLLM uses. libpq rejects them."""


def server_rows(
    dsn: str, table: str, columns: Sequence[str], order: str, after: str = "", overlap: str = "0"
) -> Iterator[Mapping[str, str | None]]:
    """The rows of a table on a server, one at a time, with each value as text. A value above 8 MiB is left out.

    Args:
        dsn: The address.
        table: The name of the table.
        columns: The columns to read. A column that the table lacks is left out.
        order: The column to sort by, a time.
        after: The time of the first row; empty for all rows.
        overlap: The interval before that time in which rows are read again, as PostgreSQL writes it.

    Raises:
        ConfigurationError: psycopg is missing.
        OSError: The server or the table can't be read. The text has no password.
    """
    try:
        import psycopg
        from psycopg import sql
    except ModuleNotFoundError:
        raise ConfigurationError("a server needs psycopg: pip install 'callboard[postgres]'") from None
    from .postgres.connection import address_of, error_text

    address = address_of(_NOT_LIBPQS.sub("", dsn).rstrip("?&"))
    name = sql.Identifier(address.schema, table) if address.schema else sql.Identifier(table)
    try:
        with psycopg.connect(address.dsn, connect_timeout=10, application_name="callboard") as connection:
            connection.read_only = True
            connection.execute("SET LOCAL TIME ZONE 'UTC'")
            told = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(name)).description or ()
            known = {column.name for column in told}
            wanted = [column for column in columns if column in known]
            if order not in wanted:
                raise OSError(_EIO, f"the table {table!r} lacks the column {order!r}")
            value = sql.SQL("CASE WHEN octet_length({0}::text) <= %(most)s THEN {0}::text END")
            where = sql.SQL("WHERE {} >= %(after)s::timestamp - %(overlap)s::interval") if after else sql.SQL("")
            query = sql.SQL("SELECT {} FROM {} {} ORDER BY {}").format(
                sql.SQL(", ").join(value.format(sql.Identifier(column)) for column in wanted),
                name,
                where.format(sql.Identifier(order)),
                sql.Identifier(order),
            )
            with connection.cursor("callboard") as cursor:
                cursor.itersize = _ROWS_AT_ONCE
                cursor.execute(query, {"most": _LONGEST_VALUE // 2, "after": after, "overlap": overlap})
                for row in cursor:
                    yield dict(zip(wanted, row, strict=True))
    except psycopg.Error as error:
        raise OSError(_EIO, f"not readable: {error_text(error)}") from None
