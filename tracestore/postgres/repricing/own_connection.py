"""A connection that a repricing has for itself: its temporary tables live there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..database import Database


@asynccontextmanager
async def own_connection(database: Database) -> AsyncIterator[Database]:
    """The database through one more connection, which is closed after the block."""
    own = Database(database.dsn, schema=database.schema, readonly=database.readonly, single=True)
    await own.open()
    try:
        yield own
    finally:
        await own.close()
