"""Retention, backup and the condition of a trace in PostgreSQL, and the server's own reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ..nodes import NodeRow
from ..reports import Check, StoreCondition
from ..sql import pruning
from ..sql.connection import Statements
from ..writing.overflow import leftovers
from .database import Database, separate_connection
from .runs import LOST
from .schema import ensure_months, found_version, month_named

if TYPE_CHECKING:
    import psycopg


# --- Retention ---
#
# See `tracestore.sql.pruning`. Calls are deleted first, with their tags and costs, in short transactions. Then
# each whole month before the cutoff is dropped with its events, which is quick for any number. Rows that must
# stay, such as events of calls without an end, are put into a new partition in the same transaction. Rows are
# deleted one by one if much of a month must stay, if readers block the drop, and in the month of the cutoff.
#
# Only the owner of the tables can drop a month. The space of deleted rows is reused for later rows. Only
# ``vacuum`` returns the space to the disk; it rewrites the tables while writers wait. A dropped month frees its
# space immediately.


_log = Log("tracestore.pruning")

KEPT_AT_MOST = 20_000
"""The largest number of events to put back when a month is dropped. If a month has more, its rows are deleted one
by one.
"""

LOCK_TIMEOUT = "2s"
"""The time that a drop waits for readers of events. Meanwhile, later readers wait too."""

_MONTHS = """
    SELECT c.relname
      FROM pg_inherits AS i
      JOIN pg_class AS c ON c.oid = i.inhrelid
     WHERE i.inhparent = CAST('events' AS regclass)
     ORDER BY c.relname
"""
_STAYS = """
    (e.id >= (SELECT max(id) FROM events)
     OR (e.request_id IS NOT NULL AND EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = e.request_id)))
"""
_NOTE = """
    INSERT INTO pruned (id, before_us) VALUES (1, ?)
    ON CONFLICT (id) DO UPDATE SET before_us = greatest(pruned.before_us, excluded.before_us)
"""
_ENDINGS = "DELETE FROM turn_endings WHERE decided_at < to_timestamp(? / 1000000.0)"


class ServerPruning(pruning.Pruning):
    _delete_tags = "DELETE FROM call_tags WHERE call_id IN ({calls})"
    _events_with_calls = False
    _old_runs = f"{pruning.OLD_RUNS} AND r.shipped_from IS NULL"  # Shipped runs are ended in their own files.

    def __init__(self, database: Database, progress: pruning.Progress | None) -> None:
        super().__init__(database, progress)
        self._server = database

    async def _delete(self, before_us: int) -> int:
        """Delete old rows. The cutoff is recorded first, because older deleted rows must not return."""
        await self._server.write(lambda statements: statements.run(_NOTE, (before_us,)))
        await self._server.write(lambda statements: statements.run(_ENDINGS, (before_us,)))
        return await super()._delete(before_us)

    async def _delete_events(self, before_us: int) -> None:
        """Drop whole months, and delete the old rows of other months."""
        for (name,) in await self._server.read(_MONTHS):
            month = month_named(name)
            if month is not None and month[1] <= before_us:
                try:
                    await self._step(partial(_drop_month, name=name, first_us=month[0]))
                except StoreError as error:
                    _log.info("month_not_dropped", month=name, error=str(error))
        await super()._delete_events(before_us)

    async def _sizes(self) -> tuple[int, int]:
        size = await self._server.look(size_of)
        return size, size

    async def _shrink_to(self, max_bytes: int) -> None:
        """Delete the excess share of rows, once. The result can't be measured: tables don't shrink."""
        used, _ = await self._sizes()
        if used > max_bytes:
            cutoff = await self._cutoff(1 - max_bytes / used)
            await self._delete(max(cutoff, self._report.before_us))

    async def _vacuum(self) -> None:
        """Rewrite every table. Readers and writers wait meanwhile."""
        tables = await self._server.read(
            "SELECT relname FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace) ORDER BY relname"
        )
        for (table,) in tables:
            await self._server.alone(partial(_vacuum_full, table=table))

    async def _give_back(self) -> None:
        """Do nothing: autovacuum frees the space of deleted rows."""


def _drop_month(statements: Statements, name: str, first_us: int) -> dict[str, int]:
    statements.run(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    ((events, remaining),) = statements.run(f"SELECT count(*), count(*) FILTER (WHERE {_STAYS}) FROM {name} AS e")
    if remaining > min(events / 2, KEPT_AT_MOST):
        return {}
    statements.run(
        f"CREATE TEMPORARY TABLE kept_events ON COMMIT DROP AS SELECT e.* FROM {name} AS e WHERE {_STAYS}"
    )
    statements.run(f"DROP TABLE {name}")
    if remaining:
        columns = [
            column
            for (column,) in statements.run(
                "SELECT attname FROM pg_attribute"
                " WHERE attrelid = CAST('events' AS regclass) AND attnum > 0 AND NOT attisdropped"
            )
        ]
        listed = ", ".join(columns)
        ensure_months(statements, [first_us])
        statements.run(f"INSERT INTO events ({listed}) SELECT {listed} FROM kept_events")
    return {"events": events - remaining}


def _vacuum_full(connection: psycopg.Connection, table: str) -> None:
    from psycopg import sql

    connection.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(table)))


# --- Condition and faults ---


async def condition(database: Database, path: Path, lease_seconds: float) -> StoreCondition:
    def look(statements: Statements) -> tuple[int, int, int, int]:
        ((open_runs,),) = statements.run(
            "SELECT count(*) FROM runs WHERE ended_us IS NULL AND shipped_from IS NULL"
        )
        lost = [run_id for (run_id,) in statements.run(LOST, (lease_seconds,))]
        ((calls,),) = statements.run(
            f"""
            SELECT count(*) FROM calls
             WHERE status = 'started'
               AND run IN (SELECT o.id FROM runs AS o WHERE o.run_id IN ({LOST}))
            """,
            (lease_seconds,),
        )
        return open_runs, len(lost), calls, size_of(statements)

    open_runs, lost, calls, size = await database.look(look)
    return StoreCondition(
        living=open_runs - lost,
        lost=lost,
        open_calls=calls,
        spilled=tuple((leftover, leftover.stat().st_size) for leftover in leftovers(path)),
        file_bytes=size,
        free_bytes=0,
        shrinkable=True,
    )


_INVALID = """
    SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
     WHERE NOT i.indisvalid AND c.relkind = 'i' AND c.relnamespace = CAST(current_schema() AS regnamespace)
     ORDER BY c.relname
"""
_CHECKSUMS = "SELECT coalesce(checksum_failures, 0) FROM pg_stat_database WHERE datname = current_database()"
_INDEXES = """
    SELECT c.relname, CAST(c.oid AS bigint)
      FROM pg_index AS i
      JOIN pg_class AS c ON c.oid = i.indexrelid
      JOIN pg_am AS m ON m.oid = c.relam AND m.amname = 'btree'
     WHERE i.indisvalid AND c.relkind = 'i' AND c.relnamespace = CAST(current_schema() AS regnamespace)
     ORDER BY c.relname
"""
_AMCHECK = """
    SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
     WHERE e.extname = 'amcheck'
"""


async def check(database: Database, seconds: float) -> list[str]:
    """The faults that PostgreSQL finds: wrong checksums, invalid indexes, and reports of amcheck if installed."""
    async with separate_connection(database.dsn, database.schema) as single:
        return await single.alone(lambda connection: _faults(connection, seconds, database.name))


def _faults(connection: psycopg.Connection, seconds: float, name: str) -> list[str]:
    import psycopg

    def query(sql: str) -> list[tuple[Any, ...]]:
        return connection.execute(cast("Any", sql)).fetchall()

    connection.execute(cast("Any", f"SET statement_timeout = {max(1, round(seconds * 1000))}"))
    try:
        faults = [f"index {index} is invalid" for (index,) in query(_INVALID)]
        faults += [f"{failures} pages with a wrong checksum" for (failures,) in query(_CHECKSUMS) if failures]
        for (schema,) in query(_AMCHECK):
            for index, oid in query(_INDEXES):
                try:
                    query(f'SELECT "{schema}".bt_index_check({int(oid)})')
                except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
                    faults.append(f"{index}: {error}")
                except psycopg.errors.InsufficientPrivilege as error:
                    raise StoreError(f"{name}: this user may not check indexes: {error}") from error
    except psycopg.errors.QueryCanceled:
        raise TimeoutError(f"{name}: not checked within {seconds:g} s") from None
    return faults


# --- Facts for `callboard doctor` ---


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The host, the port and the database."""
    version: str
    schema: str
    schema_version: int
    """The version of the tables; 0 if there are no tables yet."""
    user: str
    """The name of the role that is connected."""
    writable: bool
    """Whether the role may write to the trace, or create a missing trace."""
    standby: bool
    """Whether the server is a standby, which only replicates another server."""
    encrypted: str | None
    """The version of TLS; None if the connection is not encrypted."""
    verified: bool
    """Whether the server's certificate and name were checked."""
    local: bool
    """Whether the connection stays on this machine."""


async def server_facts(dsn: str, schema: str) -> ServerFacts:
    """The facts of a server, read over a separate connection. Nothing is created."""
    async with separate_connection(dsn, schema) as database:
        return await database.alone(lambda connection: _facts(connection, database))


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
        cursor = connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')")
    else:
        cursor = connection.execute(
            "SELECT has_table_privilege(quote_ident(%s) || '.events', 'INSERT')", (schema,)
        )
    return bool(cursor.fetchall()[0][0])


def _tls(connection: psycopg.Connection) -> str:
    found = connection.execute("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchall()
    return str(found[0][0]) if found else "TLS"


def size_of(statements: Statements) -> int:
    """The bytes of all tables of the schema, with their indexes."""
    ((size,),) = statements.run(
        """
        SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
         WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace)
        """
    )
    return int(size)


def refuse_backup(database: Database, path: Path | str) -> StoreError:
    """The error that explains how to back up with PostgreSQL's own programs, without the password of the DSN."""
    return StoreError(
        f"{database.name}: to copy a trace in PostgreSQL, use the programs of PostgreSQL:"
        f" pg_dump --format=custom --schema={database.schema} --file={path} DSN, and pg_restore to "
        f"restore it. For a whole server, use pg_basebackup"
    )


def checks_of(facts: ServerFacts, condition: StoreCondition | None, nodes: Sequence[NodeRow]) -> list[Check]:
    """The checks of a server, of the connection to it, and of the trace on it, if there is one."""
    server = f"{facts.name}: PostgreSQL {facts.version}"
    if condition is None:
        message = f"{server}, no trace in schema {facts.schema} yet; the first call creates it"
        found = [Check("store", True, message)]
    else:
        detail = f"{server}, schema {facts.schema} version {facts.schema_version}"
        size = f"{condition.file_bytes / 1_000_000:,.1f} MB"
        found = [Check("store", True, f"{detail}, {size}"), *condition.leftovers("this database")]
    if nodes:
        found.append(_nodes(nodes))
    return [*found, _server_writable(facts), _way(facts)]


def _nodes(rows: Sequence[NodeRow]) -> Check:
    """The nodes that share the trace. A stopped node is no failure: other nodes take over its sessions."""
    living = [row for row in rows if row.lives]
    descriptions = [
        f"{row.name} ({row.cluster}, {row.sessions} sessions, {row.seconds_left:.0f} s)" for row in living
    ]
    gone = [f"{row.name} ({row.sessions} sessions)" for row in rows if not row.lives]
    detail = ", ".join(descriptions) or "none lives"
    fix = "Their sessions continue when they are resumed." if gone else ""
    return Check("store:nodes", True, f"{detail}; gone: {', '.join(gone)}" if gone else detail, fix)


def _server_writable(facts: ServerFacts) -> Check:
    if facts.writable:
        return Check("store:writable", True, f"as {facts.user}")
    if facts.standby:
        return Check("store:writable", False, "this server is a replica", "To write, use the primary server.")
    return Check(
        "store:writable",
        False,
        f"{facts.user} may only read",
        "This is enough for reading. To write, grant that role the rights listed in the guide to many hosts.",
    )


def _way(facts: ServerFacts) -> Check:
    """Check whether others on the network could read the traffic or impersonate the server."""
    name = "store:tls"
    if facts.local:
        return Check(name, True, f"{facts.encrypted or 'not encrypted'}, on this machine")
    better = "sslmode=verify-full in the address, with sslrootcert, also verifies the server."
    if facts.encrypted is None:
        return Check(name, False, "not encrypted: others on the network can read the traffic", f"Add {better}")
    return Check(name, True, facts.encrypted, "" if facts.verified else better)
