"""One PostgreSQL database, for one event loop: a connection that writes, and connections that read.

- **One transaction writes at a time**, among all processes, under an advisory lock. So rows are numbered in commit
  order, a reader that continues from a number misses nothing, and there are no deadlocks.
- **A transaction happens as a whole or not at all.** A thread runs the transaction, and a cancelled caller waits
  for its end.
- **A hanging server blocks no caller forever.** Work of a cancelled caller gets a few more seconds, and other work
  may have a time limit. After that, the connection is cut.
- **A broken connection is replaced.** Reading, and work that has just started, is repeated. A transaction in
  progress raises StoreUnavailable. If the connection broke during COMMIT, the transaction may be committed, so
  writing the same rows twice must be harmless.
- **One `look` sees one state of the database**, with any number of statements.

Every failure is a `StoreError` that names the database. A temporary failure is a `StoreUnavailable`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ..reports import SqlResult
from ..sql.connection import Patience, Row, SqlValue, bounded, shielded
from .connection import Address, WorkThread, address_of, connect, error_text, name_of, translated_errors
from .statements import POSTGRES, Statements, translated

if TYPE_CHECKING:
    import psycopg


_T = TypeVar("_T")

SCHEMA = "callboard"
"""The schema of the tables, unless a store names another."""

EVER_US = (1 << 63) - 1
"""A time later than all others, in microseconds. The current time is not enough, because hosts' clocks differ."""

PATIENCE = Patience(cancelled=5.0)
"""Statements have no time limit, except after their caller was cancelled."""

_CLOSE_SECONDS = 5.0
"""Seconds to wait for the work in progress when a database is closed."""

_READERS = 2


class Database:
    """One database. Connections are made when they are needed."""

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
            raise ValueError(f"the schema is {schema}, but the address has {address.schema}")
        schema = address.schema or schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(
                f"the schema must have only lower-case letters, digits and underscores, not {schema!r}"
            )
        self.dsn = dsn
        self.schema = schema
        self.readonly = readonly
        self.pooled = address.pooled
        """Whether each transaction may use another connection to the server."""
        self.name = _named(dsn, None if schema == SCHEMA else schema)
        self._patience = patience
        reach = ServerReachability()
        self._writer = Link(dsn, schema, "callboard-postgres-writer", reach)
        self._readers = [
            self._writer if single else Link(dsn, schema, f"callboard-postgres-reader-{number}", reach)
            for number in range(1 if single else _READERS)
        ]
        self.is_open = False
        self.before_reading: Callable[[], Awaitable[None]] | None = None
        """A function that is called before each query; None for no call."""

    async def open(self) -> None:
        """Open the database for use. Raises StoreError if it can't be reached."""
        with translated_errors(self.name):
            link = self._readers[0]
            await self._bounded(link, link.statement(lambda statements: statements.run("SELECT 1")))
        self.is_open = True

    async def close(self) -> None:
        """Finish work in progress within a few seconds, and close the connections. Closing twice is harmless."""
        self.is_open = False
        for link in {id(link): link for link in (self._writer, *self._readers)}.values():
            await shielded(bounded(link.close(), Patience(work=_CLOSE_SECONDS), link.cut))

    async def read(self, sql: str, parameters: Sequence[SqlValue] = ()) -> list[Row]:
        link = await self._reader()
        with translated_errors(self.name):
            return await self._bounded(link, link.statement(lambda statements: statements.run(sql, parameters)))

    async def look(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` on one state of the database. It may only write to temporary tables."""
        link = await self._reader()
        with translated_errors(self.name):
            return await self._bounded(link, link.snapshot(work))

    async def write(
        self,
        work: Callable[[Statements], _T],
        stage: Callable[[Statements], None] | None = None,
        *,
        patience: Patience | None = None,
    ) -> _T:
        """Run `work` in one transaction. A caller that is cancelled still waits for the end of the transaction."""
        self._check_open()
        if self.readonly:
            raise StoreError(f"{self.name} was opened for reading only")
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.transaction(work, stage), patience)

    async def brief(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in a separate short transaction. This transaction and the writers of the trace don't wait for
        each other.

        `work` must not write to tables of the trace.
        """
        self._check_open()
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.transaction(work, overlaps=True))

    async def alone(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Run `work` with the writing connection itself, outside of a transaction."""
        self._check_open()
        with translated_errors(self.name):
            return await self._bounded(self._writer, self._writer.alone(work))

    async def _bounded(self, link: Link, work: Coroutine[Any, Any, _T], patience: Patience | None = None) -> _T:
        patience = patience or self._patience
        return await bounded(work, patience, link.cut if patience.work is None else link.give_up)

    async def _reader(self) -> Link:
        self._check_open()
        if self.before_reading is not None:
            await self.before_reading()
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
        # The error's own text quotes the DSN, which may contain a password.
        raise StoreError("this is not a PostgreSQL address, such as postgresql://user@host/database") from None


# --- One connection ---
#
# A connection has its own thread. It is opened when needed, replaced if it breaks, and cut if it hangs.


WRITERS_LOCK = 0x43414C42_57524954
"""The advisory lock (``CALBWRIT``) of writers. A writer holds it to the end of the transaction."""

_SLOW_SECONDS = 1.0
"""If a failed connection took at least this many seconds, the server did not answer. A refused connection fails
faster.
"""

_ASKED_AGAIN = 3.0
"""The wait before a server is tried again that did not answer. After a failed connection, the wait is its duration
times this factor. After unanswered work, the wait is this number of seconds.
"""

_NO_ANSWER = "the server does not answer"

_log = Log("tracestore.postgres")


class ServerReachability:
    """A record of whether a server is reachable, so that not every caller waits for a timeout.

    If the server refuses a connection, each call tries again. After a connection that failed slowly, new
    connections fail immediately with the same error for a while. The same applies after work that the server did
    not answer.
    """

    def __init__(self) -> None:
        self._failed: psycopg.Error | None = None
        self._ask_at = 0.0

    def connection(self, make: Callable[[], psycopg.Connection]) -> psycopg.Connection:
        """Return the result of `make`, or raise the last error while the server is treated as unreachable."""
        import psycopg

        started = time.monotonic()
        if self._failed is not None and started < self._ask_at:
            raise psycopg.OperationalError(str(self._failed))
        try:
            made = make()
        except psycopg.Error as error:
            took = time.monotonic() - started
            self._failed = error if took >= _SLOW_SECONDS else None
            self._ask_at = time.monotonic() + _ASKED_AGAIN * took
            raise
        self._failed = None
        return made

    def hangs(self) -> None:
        import psycopg

        self._failed = psycopg.OperationalError(_NO_ANSWER)
        self._ask_at = time.monotonic() + _ASKED_AGAIN


class Link:
    """One connection. Errors are psycopg's, and the caller translates them."""

    def __init__(self, dsn: str, schema: str, name: str, reach: ServerReachability) -> None:
        self._dsn = dsn
        self._schema = schema
        self._reach = reach
        self._thread = WorkThread(name)
        self._connection: psycopg.Connection | None = None
        self._types: dict[str, dict[str, str]] = {}
        self._changing = threading.Lock()  # held while the connection is closed or cut
        self._is_cut = False  # whether the work in progress was cut; later work connects again
        self.waiting = 0
        """The number of functions that wait or run."""

    async def statement(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work`, which is one statement that only reads. If the connection broke, `work` runs once more."""
        return await self._run(lambda: self._twice(lambda connection: work(self._statements(connection))))

    async def snapshot(self, work: Callable[[Statements], _T]) -> _T:
        def transaction(connection: psycopg.Connection) -> Callable[[], _T]:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            return lambda: self._to_its_end(connection, work)

        return await self._run(lambda: self._twice(transaction)())

    async def transaction(
        self,
        work: Callable[[Statements], _T],
        stage: Callable[[Statements], None] | None = None,
        *,
        overlaps: bool = False,
    ) -> _T:
        """Run `work` in a transaction, and commit it. Unless it `overlaps`, other writers wait meanwhile."""

        def started(connection: psycopg.Connection) -> psycopg.Connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            if not overlaps:
                with self._undone(connection):
                    if stage is not None:
                        stage(self._statements(connection))
                    connection.execute(f"SELECT pg_advisory_xact_lock({WRITERS_LOCK})")
            return connection

        return await self._run(lambda: self._to_its_end(self._twice(started), work))

    async def alone(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        return await self._run(lambda: self._twice(work))

    async def close(self) -> None:
        """Close the connection after the waiting work. The next work connects again."""
        if self._connection is not None or self.waiting:
            await self._run(self._close)
        self._thread.stop()

    def cut(self) -> None:
        """Make the work in progress fail. Call this in the event loop.

        A hanging server answers no statement and no request to cancel it. So the connection is shut down beneath
        the statement. An attempt to connect has its own time limit.
        """
        with self._changing:
            self._is_cut = True
            if self._connection is not None and not self._connection.closed:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def give_up(self) -> None:
        """Make the work in progress fail, because the server has not answered in time. It is retried later."""
        self._reach.hangs()
        self.cut()

    async def _run(self, work: Callable[[], _T]) -> _T:
        self.waiting += 1
        try:
            return await self._thread.run(lambda: self._uncut(work))
        finally:
            self.waiting -= 1

    # --- In the thread ---

    def _uncut(self, work: Callable[[], _T]) -> _T:
        import psycopg

        self._is_cut = False
        try:
            return work()
        except psycopg.OperationalError as error:
            if self._is_cut and error.sqlstate is None:
                raise psycopg.OperationalError(_NO_ANSWER) from error
            raise

    def _statements(self, connection: psycopg.Connection) -> Statements:
        return Statements(connection, self._types)

    def _to_its_end(self, connection: psycopg.Connection, work: Callable[[Statements], _T]) -> _T:
        import psycopg

        try:
            with self._undone(connection):
                result = work(self._statements(connection))
                connection.execute("COMMIT")
        except psycopg.errors.ReadOnlySqlTransaction:
            # The primary became a standby: with a DSN of several hosts, reconnecting finds the new primary.
            self._close()
            raise
        return result

    def _twice(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Run `work` on the connection. If the connection is broken, run it once more on a new one."""
        import psycopg

        if self._connection is not None:
            try:
                return work(self._connection)
            except psycopg.Error as error:
                if not self._is_broken():
                    raise
                _log.info("connection_lost", error=" ".join(str(error).split()))
        return work(self._connected())

    def _connected(self) -> psycopg.Connection:
        import psycopg

        self._close()
        if self._is_cut:
            raise psycopg.OperationalError(_NO_ANSWER)
        return self._reach.connection(lambda: connect(self._dsn, self._schema, self._made))

    def _made(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def _is_broken(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken

    def _close(self) -> None:
        with self._changing:
            connection, self._connection = self._connection, None
            self._types.clear()
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.close()

    @contextlib.contextmanager
    def _undone(self, connection: psycopg.Connection) -> Iterator[None]:
        """Roll back the transaction if the work inside raises. If the rollback fails, close the connection."""
        import psycopg

        try:
            yield
        except BaseException:
            try:
                if not connection.closed:
                    connection.execute("ROLLBACK")
            except psycopg.Error:
                self._close()
            raise


@asynccontextmanager
async def separate_connection(dsn: str, schema: str, *, readonly: bool = True) -> AsyncIterator[Database]:
    """A database over one connection of its own, which is closed after the block."""
    database = Database(dsn, schema=schema, readonly=readonly, single=True)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


# --- Free SQL statements ---
#
# These statements only read, within limits of time and rows.


async def select(
    database: Database, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float
) -> SqlResult:
    """Run one statement on a separate connection, in a read-only transaction that is undone.

    A statement could still call a function that writes. Only a role without write access prevents this; see the
    guide.
    """
    if limit < 0 or seconds <= 0:
        raise ValueError("limit must not be negative, and seconds must be positive")
    thread = WorkThread("callboard-postgres-sql")
    try:
        return await thread.run(lambda: _selected(database, sql, parameters, limit, seconds))
    finally:
        thread.stop()


def _selected(
    database: Database, sql: str, parameters: Sequence[SqlValue], limit: int, seconds: float
) -> SqlResult:
    import psycopg

    with translated_errors(database.name):
        connection = connect(database.dsn, database.schema)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(cast("Any", f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"))
            columns, rows = _rows(connection, sql, parameters, limit + 1)
        except psycopg.errors.QueryCanceled:
            raise StoreError(
                f"{database.name}: the statement took longer than {seconds:g} s. Narrow it, or allow more time"
            ) from None
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise StoreError(f"{database.name}: only reading is allowed: SELECT, WITH, EXPLAIN") from error
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            raise StoreError(f"{database.name}: {error_text(error)}") from error
        finally:
            connection.close()
    found = [tuple(map(_plain, row)) for row in rows]
    return SqlResult(tuple(columns), tuple(found[:limit]), len(found) > limit)


def _plain(value: Any) -> SqlValue:
    return value if value is None or isinstance(value, str | int | float | bytes) else str(value)


def _rows(
    connection: psycopg.Connection, sql: str, parameters: Sequence[SqlValue], limit: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    query = cast("Any", translated(sql) if parameters else sql)
    if sql.split(maxsplit=1)[:1] and sql.split(maxsplit=1)[0].lower() in ("explain", "show"):
        cursor: Any = connection.cursor(binary=True)  # the binary protocol allows only one statement
        cursor.execute(query, parameters or None, prepare=False)
        return [column.name for column in cursor.description or ()], cursor.fetchmany(limit)
    with connection.cursor(name="typed") as several:  # a server-side cursor accepts only a SELECT
        several.execute(query, parameters or None)
        return [column.name for column in several.description or ()], several.fetchmany(limit)
