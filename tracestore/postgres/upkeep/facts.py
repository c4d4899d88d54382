"""The facts that a PostgreSQL server tells about a trace, for `callboard doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..database import Database
from ..schema.migrations import found_version

if TYPE_CHECKING:
    import psycopg

    from ..store import PostgresStore


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a server tells about a trace at one moment."""

    name: str
    """The host, the port and the database."""
    version: str
    """The version of PostgreSQL."""
    schema: str
    """The name of the schema of the tables."""
    schema_version: int
    """The version of the tables, 0 if there are none yet."""
    user: str
    """The role of the connection."""
    writable: bool
    """Whether the role may write to the trace, or make it if there is none."""
    standby: bool
    """Whether the server only follows another one."""
    encrypted: str | None
    """The version of TLS. None if the connection has none."""
    verified: bool
    """Whether the server's certificate and name were checked."""
    local: bool
    """Whether the connection stays on this machine."""


async def server_facts(store: PostgresStore) -> ServerFacts:
    """Look over a connection of its own. Nothing is made.

    Raises:
        StoreError: The server can't be reached, or lets nobody in by this address.
    """
    database = Database(store.dsn, schema=store.schema, readonly=True, single=True)
    await database.open()
    try:
        return await database.alone(lambda connection: _facts(connection, database))
    finally:
        await database.close()


def _facts(connection: psycopg.Connection, database: Database) -> ServerFacts:
    version = found_version(connection, database.schema)
    shown, user, standby, readonly = connection.execute(
        """
        SELECT current_setting('server_version'), current_user, pg_is_in_recovery(),
               current_setting('default_transaction_read_only') = 'on'
        """
    ).fetchall()[0]
    info = connection.info
    return ServerFacts(
        name=database.name,
        version=shown.split()[0],
        schema=database.schema,
        schema_version=version,
        user=user,
        writable=not standby and not readonly and _may_write(connection, database.schema, version),
        standby=standby,
        encrypted=_tls(connection) if connection.pgconn.ssl_in_use else None,
        verified=info.get_parameters().get("sslmode") == "verify-full",
        local=info.host.startswith(("/", "127.", "@")) or info.host in ("", "localhost", "::1"),
    )


def _may_write(connection: psycopg.Connection, schema: str, version: int) -> bool:
    if not version:
        asked = connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')")
    else:
        asked = connection.execute("SELECT has_table_privilege(quote_ident(%s) || '.events', 'INSERT')", (schema,))
    return bool(asked.fetchall()[0][0])


def _tls(connection: psycopg.Connection) -> str:
    found = connection.execute("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchall()
    return str(found[0][0]) if found else "TLS"
