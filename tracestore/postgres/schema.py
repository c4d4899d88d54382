"""The schema as numbered steps. Missing steps run in one transaction, under an advisory lock.

The steps are literal SQL in ``steps.sql``, where ``CALLBOARD_SCHEMA`` is the schema's name as a literal. A
released step is never changed: a correction is a new step. A step only adds: tables, indexes, functions, and
columns that may be NULL or have a default. So a process of the previous version can write during an upgrade. A
database of a newer version raises StoreError.

`schema_history` lists the steps of a database. A schema that has tables but no `schema_history` isn't Callboard's.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from callboard.bus.clock import to_us
from callboard.bus.errors import StoreError
from callboard.bus.files import package_data

from ..sql.connection import Row, Statements, Steps, read_steps
from .connection import error_text
from .database import WRITERS_LOCK, Database

if TYPE_CHECKING:
    import psycopg


MIGRATIONS: Steps = read_steps(package_data(__name__, "steps.sql").decode())
"""Name and statements of each step; the step at index i brings a database to version i + 1."""

SCHEMA_VERSION = len(MIGRATIONS)

_MIGRATIONS_LOCK = 0x43414C42_53434845  # CALBSCHE


async def open_migrated(database: Database, now_us: int) -> None:
    """Open the database, and bring it to `SCHEMA_VERSION`."""
    await database.open()
    try:
        await migrate(database, now_us)
    except BaseException:
        await database.close()
        raise


async def migrate(database: Database, now_us: int) -> None:
    version = _checked(database, await database.alone(lambda connection: _found(connection, database.schema)))
    if version == SCHEMA_VERSION:
        return
    if database.readonly:
        raise StoreError(
            f"{database.name} has schema version {version}, but this Callboard reads version "
            f"{SCHEMA_VERSION}. Open it once for writing to upgrade it"
        )
    await database.alone(lambda connection: _permitted(connection, database, now_us))


def _permitted(connection: psycopg.Connection, database: Database, now_us: int) -> None:
    import psycopg

    try:
        _migrate(connection, database, now_us)
    except psycopg.errors.InsufficientPrivilege as error:
        version = found_version(connection, database.schema)
        raise StoreError(
            f"{database.name} has schema version {version}, but this Callboard needs version "
            f"{SCHEMA_VERSION}, and this user may not change the tables. Let their owner open it once with "
            f"this version of Callboard "
            f"({error_text(error)})"
        ) from error


def _migrate(connection: psycopg.Connection, database: Database, now_us: int) -> None:
    with connection.transaction():
        for lock in (_MIGRATIONS_LOCK, WRITERS_LOCK):
            connection.execute(_text(f"SELECT pg_advisory_xact_lock({lock})"))
        # Another process may have migrated the database before this check.
        version = _checked(database, _found(connection, database.schema))
        if version == 0:
            _make_schema(connection, database.schema)
        for number, (name, script) in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script:
                connection.execute(_text(statement.replace("CALLBOARD_SCHEMA", f"'{database.schema}'")))
            connection.execute(
                "INSERT INTO schema_history (version, name, applied_us) VALUES (%s, %s, %s)",
                (number, name, now_us),
            )


def _make_schema(connection: psycopg.Connection, schema: str) -> None:
    from psycopg import sql

    if not connection.execute("SELECT to_regnamespace(quote_ident(%s))", (schema,)).fetchall()[0][0]:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    connection.execute(
        "CREATE TABLE schema_history (version bigint PRIMARY KEY, name text NOT NULL, applied_us bigint NOT NULL)"
    )


def _found(connection: psycopg.Connection, schema: str) -> Row:
    """The version of the schema, NULL if the schema is not Callboard's, and the number of its tables."""
    (has_meta, tables) = connection.execute(
        """
        SELECT to_regclass(quote_ident(%s) || '.schema_history') IS NOT NULL,
               (SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v'))
        """,
        (schema, schema),
    ).fetchall()[0]
    if not has_meta:
        return None, tables
    return connection.execute("SELECT coalesce(max(version), 0) FROM schema_history").fetchall()[0][0], tables


def found_version(connection: psycopg.Connection, schema: str) -> int:
    """The version of the tables in a schema; 0 if the schema has no tables of Callboard."""
    return int(_found(connection, schema)[0] or 0)


def _checked(database: Database, found: Row) -> int:
    version, tables = found
    if version is None and tables:
        raise StoreError(
            f"{database.name} has tables of another application in its schema {database.schema}. Choose "
            f"another schema or another database"
        )
    if (version or 0) > SCHEMA_VERSION:
        raise StoreError(
            f"{database.name} has schema version {version}, but this Callboard supports versions up to "
            f"{SCHEMA_VERSION}. Update Callboard, or choose another database"
        )
    return int(version or 0)


def _text(sql: str) -> Any:
    return sql


# --- Partitions of events ---
#
# There is one partition for each month (UTC), made before the month's first event. It is made as a separate table
# and attached, which waits for no reader. Writers need no permission for that: a function of the tables' owner
# does it. Moments before the year 2000 and after 2099, from wrong clocks, have one partition on either side. There
# is no DEFAULT partition, because creating a month would have to scan it.


FIRST_US = to_us(datetime(2000, 1, 1, tzinfo=UTC))
END_US = to_us(datetime(2100, 1, 1, tzinfo=UTC))


def month_of(ts_us: int) -> tuple[int, int, str] | None:
    """The start and the end of a time's month, and the name of its partition; None without a partition."""
    if not FIRST_US <= ts_us < END_US:
        return None
    moment = datetime.fromtimestamp(ts_us // 1_000_000, UTC)
    begin = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    end = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return to_us(begin), to_us(end), f"events_{moment:%Y%m}"


def month_named(name: str) -> tuple[int, int] | None:
    """The start and the end of a month, from the name of its partition; None for any other name."""
    digits = name.removeprefix("events_")
    if len(digits) != len("YYYYMM") or not digits.isdecimal():
        return None
    month = month_of(to_us(datetime(int(digits[:4]), int(digits[4:]), 1, tzinfo=UTC)))
    return None if month is None else month[:2]


def ensure_months(statements: Statements, moments_us: Iterable[int]) -> None:
    """Create the partitions for events of the given times. Call this in the transaction that writes the events."""
    months = {month for month in map(month_of, moments_us) if month is not None}
    if not months:
        return
    attached = {
        name
        for (name,) in statements.run(
            """
            SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
             WHERE i.inhparent = CAST('events' AS regclass)
            """
        )
    }
    for first_us, end_us, name in sorted(months):
        if name not in attached:
            statements.run(
                "SELECT callboard_make_month(CAST(? AS bigint), CAST(? AS bigint), CAST(? AS text))",
                (first_us, end_us, name),
            )
