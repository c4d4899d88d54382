"""The shared rows of nodes, as a model and in PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from callboard.tracestore.nodes import OwnershipTables
from callboard.tracestore.postgres.nodes import PostgresOwnership, SharedDatabase
from tests.support.shared_tables import OwnershipModel
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")


class Place(Protocol):
    """Rows of nodes, and their clock."""

    tables: OwnershipTables

    async def passes(self, seconds: float) -> None:
        """Advance the time by some seconds."""

    async def restarts(self) -> None:
        """Make the server look as if it was restarted a moment ago."""


class ModelPlace:
    def __init__(self) -> None:
        self.model = OwnershipModel()
        self.tables: OwnershipTables = self.model

    async def passes(self, seconds: float) -> None:
        self.model.now += seconds

    async def restarts(self) -> None:
        self.model.started = self.model.now


class PostgresPlace:
    def __init__(self, database: SharedDatabase) -> None:
        self.database = database
        self.tables: OwnershipTables = PostgresOwnership(database)

    async def passes(self, seconds: float) -> None:
        """Move all times in the rows back.

        The server of the test was started a moment ago, so its leases would still last. A negative lease length
        prevents this.
        """
        for change in (
            "UPDATE nodes SET lease_until = lease_until - make_interval(secs => ?), lease_seconds = -86400",
            "UPDATE session_owners SET wanted_at = wanted_at - make_interval(secs => ?)",
        ):
            await self.database.statement(change, (seconds,))

    async def restarts(self) -> None:
        # the server was started less than this time ago
        await self.database.statement("UPDATE nodes SET lease_seconds = 1e6", ())


@pytest.fixture(params=["model", "postgres"])
async def place(request: Any) -> AsyncIterator[Place]:
    if request.param == "model":
        yield ModelPlace()
        return
    database = SharedDatabase(request.getfixturevalue("postgres_dsn"))
    yield PostgresPlace(database)
    await database.close()
