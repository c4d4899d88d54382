"""A lock that bears a name, among all who share a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import anyio

from ...sql.uninterrupted import bounded, uninterrupted
from ..database import Database
from ..errors import translated_errors
from ..link import Link, Reach
from .database import PATIENCE

if TYPE_CHECKING:
    import psycopg

_TURN_SECONDS = 0.25
"""The time between two attempts to take a lock that somebody may hold for minutes."""


@asynccontextmanager
async def named_lock(database: Database, name: str) -> AsyncIterator[None]:
    """Hold the lock. It waits for its turn.

    The lock is that of a transaction, so that a pooler leaves it alone, on a connection of its own. It ends with
    the connection, and with it when the server is restarted or cut off, which the holder doesn't notice.

    Args:
        database: The database. Each of its schemas has locks of its own.
        name: The name, any text.

    Raises:
        StoreUnavailable: The database can't be used now.
    """
    key = int.from_bytes(sha256(f"{database.schema}\0{name}".encode()).digest()[:8], "big", signed=True)

    def taken(connection: psycopg.Connection) -> bool:
        connection.execute("BEGIN")
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        found = connection.execute(f"SELECT pg_try_advisory_xact_lock({key})").fetchone()
        if found is not None and found[0]:
            return True
        connection.execute("ROLLBACK")
        return False

    # It is asked for again and again: a statement that waits would meet the time limits that a role may have, and
    # keep a pooler's connection.
    link = Link(database.dsn, database.schema, "callboard-postgres-lock", Reach())
    try:
        with translated_errors(database.name):
            while not await bounded(link.alone(taken), PATIENCE, link.give_up):  # noqa: ASYNC110 - see above
                await anyio.sleep(_TURN_SECONDS)
        yield
    finally:
        await uninterrupted(bounded(link.close(), PATIENCE, link.cut))
