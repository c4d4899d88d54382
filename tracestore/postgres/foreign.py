"""Rows of other programs' PostgreSQL tables, for imports. The tables are only read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from callboard.bus.errors import ConfigurationError

from .connection import address_of, error_text

_ROWS_AT_ONCE = 500
_LONGEST_VALUE = 8 * 1024 * 1024
_EIO = 5
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
                cursor.execute(query, {"most": _LONGEST_VALUE, "after": after, "overlap": overlap})
                for row in cursor:
                    yield dict(zip(wanted, row, strict=True))
    except psycopg.Error as error:
        raise OSError(_EIO, f"not readable: {error_text(error)}") from None
