"""Connections to PostgreSQL: how they are made, and the types of values on them.

Every whole number goes over as a bigint, a flag among them as 0 or 1, so that a statement is prepared once. The
sum of bigints is numeric; it comes back as an int where it is whole, else as a float.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg.adapt import AdaptersMap

_MAX_INT64 = (1 << 63) - 1

_DEFAULTS: dict[str, Any] = {
    "application_name": "callboard",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Parameters of a connection that a DSN may set otherwise. A server whose host vanished is noticed in half a
minute."""

_LOCK_TIMEOUT_MS = 30_000
"""The longest wait for a lock: then the work is undone, and may be tried again."""

_SERVER_SIDE = ("tcp_keepalives_idle = 15", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")
"""The server's settings, so that it notices in half a minute when our host has vanished, holding locks."""


def connect(
    dsn: str, schema: str, made: Callable[[psycopg.Connection], None] = lambda connection: None
) -> psycopg.Connection:
    """Connect, without a transaction. Raises psycopg's errors.

    Args:
        dsn: The database.
        schema: The schema of the tables, which are looked for nowhere else.
        made: Told the connection before anything is said on it, as the server may hang.
    """
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict

    asked = conninfo_to_dict(dsn)
    connection = psycopg.connect(**{**_DEFAULTS, **asked}, autocommit=True, context=_Context(_adapters(), None))
    made(connection)
    try:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
        for setting in _SERVER_SIDE:
            connection.execute(f"SET {setting}".encode())
        connection.execute("SET TIME ZONE 'UTC'")
        connection.execute("SET jit = off")  # compiling takes longer than any statement here
        connection.execute("SET standard_conforming_strings = on")
    except BaseException:
        connection.close()
        raise
    return connection


def name_of(dsn: str) -> str:
    """The name of a database in messages: host, port and database, without user and password."""
    from psycopg.conninfo import conninfo_to_dict

    asked = conninfo_to_dict(dsn)
    host, port, database = (str(asked.get(part) or "") for part in ("host", "port", "dbname"))
    return f"postgresql://{host}{f':{port}' if port else ''}/{database}"


class _Context:
    """The types of a connection that is to be made, as psycopg asks for them."""

    def __init__(self, adapters: AdaptersMap, connection: Any) -> None:
        self.adapters = adapters
        self.connection = connection


@functools.cache
def _adapters() -> AdaptersMap:
    import psycopg
    from psycopg.adapt import AdaptersMap, Buffer, Loader
    from psycopg.types.bool import BoolDumper
    from psycopg.types.numeric import Int8Dumper

    class IntDumper(Int8Dumper):
        def dump(self, obj: Any) -> Buffer | None:
            if not -_MAX_INT64 - 1 <= obj <= _MAX_INT64:
                raise OverflowError(f"{obj} is beyond 64 bits")
            return super().dump(obj)

    class FlagDumper(BoolDumper):
        oid = Int8Dumper.oid

        def dump(self, obj: bool) -> Buffer | None:
            return b"1" if obj else b"0"

    class NumberLoader(Loader):
        def load(self, data: Buffer) -> int | float:
            text = bytes(data)
            return float(text) if b"." in text or b"N" in text else int(text)

    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(int, IntDumper)
    adapters.register_dumper(bool, FlagDumper)
    adapters.register_loader("numeric", NumberLoader)
    return adapters
