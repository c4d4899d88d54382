"""One PostgreSQL database, for one event loop: a connection that writes, and connections that read.

- **One transaction writes at a time**, whoever's it is: it begins with an advisory lock that it holds to its end,
  as SQLite locks its file. So rows get their numbers in the order in which they are committed, and a reader that
  remembers how far it has read misses nothing; what a transaction looked up stays true until it commits; and no
  two can wait for each other. Writers share commits by batching; more of them don't write more.
- **A transaction happens as a whole or not at all, whoever is cancelled.** It is one function, which a thread runs
  in one go, and whose caller waits for its end.
- **A server that hangs holds nobody up for ever.** Work whose caller is cancelled has some seconds left, and work
  with a time limit has that. Then its connection is cut, and it fails as if the connection had broken.
- **A connection that broke is made anew with the next work.** Whatever only reads, or has only begun, is tried on
  the new one at once. A transaction whose connection broke on the way raises StoreUnavailable: nothing of it is
  committed, unless it broke during the very COMMIT. Whoever writes again must be able to write the same twice.
- **One `look` sees one state of the database**, however many statements it runs.

Every failure is a `StoreError` that names the database. A failure that may pass is a `StoreUnavailable`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from callboard.bus.errors import StoreError

from ..sql.connection import Row, SqlValue
from ..sql.uninterrupted import Patience, bounded, uninterrupted
from .connection import Address, address_of, name_of
from .dialect import POSTGRES
from .errors import translated_errors
from .link import Link, Reach
from .statements import Statements

if TYPE_CHECKING:
    import psycopg

_T = TypeVar("_T")

SCHEMA = "callboard"
"""The schema of the tables, unless a store names another."""

EVER_US = (1 << 63) - 1
"""A moment that is later than any. Hosts' clocks differ, and so what was said may bear a time to come."""

PATIENCE = Patience(cancelled=5.0)
"""No statement is too long, unless nobody waits for it any more."""

_CLOSE_SECONDS = 5.0
"""The longest time for what is under way when a database is closed."""

_READERS = 2


class Database:
    """One database. Connections are made when they are needed.

    Args:
        dsn: The database, as a URL or as libpq's ``key=value`` words. It may name a schema and a pooler.
        schema: The schema of the tables, where the DSN names none.
        readonly: Whether nothing is to be written.
        single: Whether all work shares one connection, so that temporary tables are there for all of it.
        patience: The time that each piece of work has.

    Raises:
        StoreError: This is no DSN, or the driver is not installed.
        ValueError: The schema has a name of other signs than small letters, digits and underscores, or is another
            one than that of the DSN.
    """

    dialect = POSTGRES

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        readonly: bool = False,
        single: bool = False,
        patience: Patience = PATIENCE,
    ) -> None:
        address = _address(dsn)
        if address.schema is not None and schema not in (SCHEMA, address.schema):
            raise ValueError(f"the schema is {schema}, and the address says {address.schema}")
        schema = address.schema or schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(f"the schema must be small letters, digits and underscores, not {schema!r}")
        self.dsn = dsn
        self.schema = schema
        self.readonly = readonly
        self.pooled = address.pooled
        """Whether each transaction may be on another connection of the server's."""
        self.name = _named(dsn, None if schema == SCHEMA else schema)
        self._patience = patience
        reach = Reach()
        self._writer = Link(dsn, schema, "callboard-postgres-writer", reach)
        self._readers = [
            self._writer if single else Link(dsn, schema, f"callboard-postgres-reader-{number}", reach)
            for number in range(1 if single else _READERS)
        ]
        self.is_open = False
        self.before_reading: Callable[[], Awaitable[None]] | None = None
        """Called before each question, if it is set."""

    async def open(self) -> None:
        """Let the database be used. Raises StoreError if it can't be reached."""
        with translated_errors(self.name):
            link = self._readers[0]
            await self._bounded(link, link.statement(lambda statements: statements.run("SELECT 1")))
        self.is_open = True

    async def close(self) -> None:
        """Finish what takes no more than seconds, and close the connections. Closing twice is harmless."""
        self.is_open = False
        for link in {id(link): link for link in (self._writer, *self._readers)}.values():
            await uninterrupted(bounded(link.close(), Patience(work=_CLOSE_SECONDS), link.cut))

    async def read(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        """Return all rows of one statement that writes nothing."""
        self._check_open()
        if self.before_reading is not None:
            await self.before_reading()
        with translated_errors(self.name):
            link = self._reader()
            return await self._bounded(link, link.statement(lambda statements: statements.run(sql, parameters)))

    async def look(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work`, which writes to nothing but temporary tables, on one state of the database."""
        self._check_open()
        if self.before_reading is not None:
            await self.before_reading()
        with translated_errors(self.name):
            link = self._reader()
            return await self._bounded(link, link.snapshot(work))

    async def write(
        self,
        work: Callable[[Statements], _T],
        stage: Callable[[Statements], None] | None = None,
        *,
        patience: Patience | None = None,
    ) -> _T:
        """Run `work` in one transaction, which is committed when the work returns and undone when it raises.

        A caller that is cancelled still waits for it to end.

        Args:
            work: The work.
            stage: Fills temporary tables in the same transaction, before it is this one's turn to write.
            patience: The time that it has; None is the database's own.
        """
        self._check_open()
        if self.readonly:
            raise StoreError(f"{self.name} was opened for reading only")
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.transaction(work, stage), patience)

    async def brief(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in a short transaction of its own, which writers of the trace don't wait for, nor it for
        them. It may write to no table of the trace.
        """
        self._check_open()
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.brief(work))

    async def alone(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Run `work` with the writing connection itself, outside of a transaction."""
        self._check_open()
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.alone(work))

    async def _bounded(self, link: Link, work: Coroutine[Any, Any, _T], patience: Patience | None = None) -> _T:
        patience = patience or self._patience
        return await bounded(work, patience, link.cut if patience.work is None else link.give_up)

    def _reader(self) -> Link:
        return min(self._readers, key=lambda link: link.waiting)

    def _check_open(self) -> None:
        if not self.is_open:
            raise StoreError(f"{self.name} is not open: call open() first")


def _address(dsn: str) -> Address:
    try:
        return address_of(dsn)
    except ValueError as error:
        raise StoreError(str(error)) from None


def _named(dsn: str, schema: str | None) -> str:
    try:
        import psycopg
    except ImportError as error:
        raise StoreError("a trace in PostgreSQL needs psycopg: pip install 'callboard[postgres]'") from error
    try:
        return name_of(dsn, schema)
    except psycopg.Error:
        # The error's own words quote the DSN, and with it a password.
        raise StoreError("this is no DSN of PostgreSQL, such as postgresql://user@host/database") from None
