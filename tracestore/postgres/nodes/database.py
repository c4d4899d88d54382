"""A shared database as the parts of a node use it: short transactions, whenever it can be reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio

from callboard.bus.clock import SYSTEM_CLOCK, Clock

from ...sql.connection import Row, SqlValue
from ...sql.uninterrupted import Patience
from ..database import SCHEMA, Database
from ..schema.migrations import migrate
from ..statements import Statements

_T = TypeVar("_T")

PATIENCE = Patience(work=5.0, cancelled=1.0)
"""A server that takes longer is one that can't be asked."""


class SharedDatabase:
    """One connection to the database. It is made, and the schema brought up to date, when it is first needed.

    Args:
        dsn: The database.
        schema: The schema of its tables.
        clock: The clock for the moment at which the schema is brought up to date.

    Raises:
        StoreError: This is no DSN, or the driver is not installed.
    """

    def __init__(self, dsn: str, schema: str = SCHEMA, clock: Clock = SYSTEM_CLOCK) -> None:
        self._database = Database(dsn, schema=schema, single=True, patience=PATIENCE)
        self._clock = clock
        self._opening = anyio.Lock()
        self._ready = False  # whether it is open and its tables are those of this version

    @property
    def name(self) -> str:
        """The name of the database in messages, without user and password."""
        return self._database.name

    async def statement(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        """Run one statement, a transaction of its own. It may run twice, if the connection broke.

        Raises:
            StoreUnavailable: The database can't be used now.
            StoreError: It can't be used.
        """
        await self._open()
        return await self._database.read(sql, parameters)

    async def brief(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in one short transaction, READ COMMITTED. It doesn't wait for those who write the trace, and
        locks the rows that it decides by.

        Raises:
            StoreUnavailable: The database can't be used now. If the connection broke, it may be committed.
            StoreError: It can't be used.
        """
        await self._open()
        return await self._database.brief(work)

    async def close(self) -> None:
        """Close the connection. The next work makes another one."""
        self._ready = False
        await self._database.close()

    async def _open(self) -> None:
        if self._ready:
            return
        async with self._opening:
            if self._ready:
                return
            await self._database.open()
            try:
                await migrate(self._database, self._clock.now_us())
            except BaseException:
                await self._database.close()
                raise
            self._ready = True
