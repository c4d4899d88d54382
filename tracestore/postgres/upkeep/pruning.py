"""Retention in PostgreSQL, see `tracestore.sql.upkeep.pruning`.

Calls go first, with their tags and costs, in short transactions. Then a month that lies before the cutoff as a
whole is dropped with all its events, which takes as long for many as for few. What has to stay of it, such as the
events of calls that have no end, is put back into a new partition of the month in the same transaction. A month of
which much has to stay, or that somebody reads for long, and the month of the cutoff lose rows and not their
partition.

To drop a month takes the role that owns the tables. Deleted rows leave space to later rows, but it stays on the
disk until ``vacuum``, which rewrites the tables while writers wait. A dropped month gives its space back at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ...sql.connection import Statements
from ...sql.upkeep import pruning
from ..database import Database
from ..schema.partitions import ensure_months, month_named
from .sizes import size_of

if TYPE_CHECKING:
    import psycopg

_log = Log("tracestore.pruning")

KEPT_AT_MOST = 20_000
"""The events that are put back when a month is dropped. Of a month with more, rows are deleted."""

LOCK_TIMEOUT = "2s"
"""The time that a drop waits for those who read events. Whoever comes after it waits as well."""

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
    """One pruning of one database."""

    _delete_tags = "DELETE FROM call_tags WHERE call_id IN ({calls})"
    _events_with_calls = False
    _old_runs = f"{pruning.OLD_RUNS} AND r.shipped_from IS NULL"  # others say what has come of them

    def __init__(self, database: Database, progress: pruning.Progress | None) -> None:
        super().__init__(database, progress)
        self._server = database

    async def _delete(self, before_us: int) -> int:
        """Note first how far retention goes: what was deleted from before that moment is not to come again."""
        await self._server.write(lambda statements: statements.run(_NOTE, (before_us,)))
        await self._server.write(lambda statements: statements.run(_ENDINGS, (before_us,)))
        return await super()._delete(before_us)

    async def _delete_events(self, before_us: int) -> None:
        """Drop months, and delete what is old of the others."""
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
        """Once, by the share of the size: what is deleted doesn't make the tables smaller."""
        used, _ = await self._sizes()
        if used > max_bytes:
            cutoff = await self._cutoff(1 - max_bytes / used)
            await self._delete(max(cutoff, self._report.before_us))

    async def _vacuum(self) -> None:
        """Rewrite every table. Whoever reads or writes it waits."""
        tables = await self._server.read(
            "SELECT relname FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace) ORDER BY relname"
        )
        for (table,) in tables:
            await self._server.alone(partial(_vacuum_full, table=table))

    async def _give_back(self) -> None:
        """Nothing: autovacuum makes the space of deleted rows free for others."""


def _drop_month(statements: Statements, name: str, first_us: int) -> dict[str, int]:
    statements.run(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    ((events, kept),) = statements.run(f"SELECT count(*), count(*) FILTER (WHERE {_STAYS}) FROM {name} AS e")
    if kept > min(events / 2, KEPT_AT_MOST):
        return {}
    statements.run(
        f"CREATE TEMPORARY TABLE kept_events ON COMMIT DROP AS SELECT e.* FROM {name} AS e WHERE {_STAYS}"
    )
    statements.run(f"DROP TABLE {name}")
    if kept:
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
    return {"events": events - kept}


def _vacuum_full(connection: psycopg.Connection, table: str) -> None:
    from psycopg import sql

    connection.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(table)))
