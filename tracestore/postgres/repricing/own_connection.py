"""A connection that a repricing has for itself: its temporary tables live there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from callboard.bus.errors import StoreError

from ..database import Database


@asynccontextmanager
async def own_connection(database: Database) -> AsyncIterator[Database]:
    """The database through one more connection, which is closed after the block.

    Raises:
        StoreError: Between us and the server is a pooler, or the server can't be reached.
    """
    if database.pooled:
        raise StoreError(
            f"{database.name}: a repricing has temporary tables for longer than a transaction, and a pooler "
            "takes them away: name the server itself, without pooler=transaction"
        )
    own = Database(database.dsn, schema=database.schema, readonly=database.readonly, single=True)
    await own.open()
    try:
        yield own
    finally:
        await own.close()
