"""What is going on in a trace in PostgreSQL and beside it, and the faults that the server finds in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from callboard.bus.errors import StoreError

from ...reports import StoreCondition
from ...sql.connection import Statements
from ...writing.spill import leftovers
from ..database import Database
from ..runs import LOST
from .sizes import size_of

if TYPE_CHECKING:
    import psycopg


async def condition(database: Database, path: Path, lease_seconds: float) -> StoreCondition:
    """The condition of the trace. Nothing is changed.

    Args:
        database: The database.
        path: The place on this machine where a writer keeps what the database can't take.
        lease_seconds: The length of a run's lease.

    Raises:
        StoreError: The database can't be read.
    """

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
        spilled=tuple((left, left.stat().st_size) for left in leftovers(path)),
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
    """The faults that PostgreSQL finds: pages with wrong checksums, invalid indexes, and whatever amcheck says of
    indexes where that extension is there.

    Args:
        database: The database.
        seconds: The time that each statement may take.

    Raises:
        TimeoutError: The time was not enough.
        StoreError: The database can't be read.
    """
    own = Database(database.dsn, schema=database.schema, readonly=True, single=True)
    await own.open()
    try:
        return await own.alone(lambda connection: _faults(connection, seconds, database.name))
    finally:
        await own.close()


def _faults(connection: psycopg.Connection, seconds: float, name: str) -> list[str]:
    import psycopg

    def asked(sql: str) -> list[tuple[Any, ...]]:
        return connection.execute(cast("Any", sql)).fetchall()

    connection.execute(cast("Any", f"SET statement_timeout = {max(1, round(seconds * 1000))}"))
    try:
        faults = [f"index {index} is invalid" for (index,) in asked(_INVALID)]
        faults += [f"{failures} pages with a wrong checksum" for (failures,) in asked(_CHECKSUMS) if failures]
        for (schema,) in asked(_AMCHECK):
            for index, oid in asked(_INDEXES):
                try:
                    asked(f'SELECT "{schema}".bt_index_check({int(oid)})')
                except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
                    faults.append(f"{index}: {error}")
                except psycopg.errors.InsufficientPrivilege as error:
                    raise StoreError(f"{name}: this user may not check indexes: {error}") from error
    except psycopg.errors.QueryCanceled:
        raise TimeoutError(f"{name}: not checked within {seconds:g} s") from None
    return faults
