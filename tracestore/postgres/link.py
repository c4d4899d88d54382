"""One connection with its thread, made when it is needed, made anew when it broke, and cut when it hangs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from callboard.bus.log import Log

from .connection import connect
from .statements import Statements
from .thread import WorkThread

if TYPE_CHECKING:
    import psycopg

_T = TypeVar("_T")

WRITERS_LOCK = 0x43414C42_57524954
"""The advisory lock (``CALBWRIT``) of whoever writes. It is held to the end of the transaction."""

_SLOW_SECONDS = 1.0
"""The time that a failed attempt to connect has taken if the server doesn't answer, rather than refuse."""

_ASKED_AGAIN = 3.0
"""After how many times that time a server that doesn't answer is asked again; after how many seconds, if it didn't
answer work."""

_NO_ANSWER = "the server does not answer"

_log = Log("tracestore.postgres")


class Reach:
    """Whether a server can be reached, so that not everybody waits for one that doesn't answer.

    A server that refuses is asked again each time. Where connecting has taken its time and failed, the next ones
    fail at once with the same error, for a while. So do those after work that the server did not answer.
    """

    def __init__(self) -> None:
        self._failed: psycopg.Error | None = None
        self._ask_at = 0.0

    def connection(self, make: Callable[[], psycopg.Connection]) -> psycopg.Connection:
        """What `make` makes. Raises psycopg's errors."""
        import psycopg

        begun = time.monotonic()
        if self._failed is not None and begun < self._ask_at:
            raise psycopg.OperationalError(str(self._failed))
        try:
            made = make()
        except psycopg.Error as error:
            took = time.monotonic() - begun
            self._failed = error if took >= _SLOW_SECONDS else None
            self._ask_at = time.monotonic() + _ASKED_AGAIN * took
            raise
        self._failed = None
        return made

    def hangs(self) -> None:
        """The server has not answered in time."""
        import psycopg

        self._failed = psycopg.OperationalError(_NO_ANSWER)
        self._ask_at = time.monotonic() + _ASKED_AGAIN


class Link:
    """One connection. Errors are psycopg's, and whoever calls translates them.

    Args:
        dsn: The database.
        schema: The schema of the tables.
        name: The name of the thread.
        reach: What is known of whether the server can be reached, shared by the links of one database.
    """

    def __init__(self, dsn: str, schema: str, name: str, reach: Reach) -> None:
        self._dsn = dsn
        self._schema = schema
        self._reach = reach
        self._thread = WorkThread(name)
        self._connection: psycopg.Connection | None = None
        self._types: dict[str, dict[str, str]] = {}
        self._changing = threading.Lock()  # of the connection: held to close it, and to cut it
        self._is_cut = False  # the work under way; only another one connects anew
        self.waiting = 0
        """Functions that wait for their turn, or have it."""

    async def statement(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work`, which is one statement that only reads. On a connection that broke it is tried once more."""
        return await self._run(lambda: self._twice(lambda connection: work(self._statements(connection))))

    async def snapshot(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work`, which writes to nothing but temporary tables, on one state of the database."""

        def transaction(connection: psycopg.Connection) -> Callable[[], _T]:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            return lambda: self._to_its_end(connection, work)

        return await self._run(lambda: self._twice(transaction)())

    async def transaction(
        self, work: Callable[[Statements], _T], stage: Callable[[Statements], None] | None = None
    ) -> _T:
        """Run `work` in a transaction that no other writer's overlaps, and commit it.

        Args:
            work: The work.
            stage: Fills temporary tables in the same transaction, while others may write still. It may run twice.
        """

        def begun(connection: psycopg.Connection) -> psycopg.Connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            with self._undone(connection):
                if stage is not None:
                    stage(self._statements(connection))
                connection.execute(f"SELECT pg_advisory_xact_lock({WRITERS_LOCK})")
            return connection

        return await self._run(lambda: self._to_its_end(self._twice(begun), work))

    async def brief(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in a transaction that those of writers may overlap, and commit it."""

        def begun(connection: psycopg.Connection) -> psycopg.Connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            return connection

        return await self._run(lambda: self._to_its_end(self._twice(begun), work))

    async def alone(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Run `work` with the connection itself, outside of a transaction."""
        return await self._run(lambda: self._twice(work))

    async def close(self) -> None:
        """Close the connection after what is waiting. It may be used again, and connects anew then."""
        if self._connection is not None or self.waiting:
            await self._run(self._close)
        self._thread.stop()

    def cut(self) -> None:
        """Let the work under way fail, whatever it waits for. To be called in the event loop.

        A server that hangs answers neither a statement nor the wish to cancel it. So the connection is shut down
        beneath the statement. An attempt to connect ends by its own time limit.
        """
        with self._changing:
            self._is_cut = True
            if self._connection is not None and not self._connection.closed:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def give_up(self) -> None:
        """Let the work under way fail, as the server has not answered in time. It is asked again later."""
        self._reach.hangs()
        self.cut()

    async def _run(self, work: Callable[[], _T]) -> _T:
        self.waiting += 1
        try:
            return await self._thread.run(lambda: self._uncut(work))
        finally:
            self.waiting -= 1

    # -- In the thread

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
            self._close()  # a primary that became a standby: a DSN of several hosts leads to the next one
            raise
        return result

    def _twice(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Run `work` on the connection, and if that proves to be broken, on another one."""
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
        """Undo the transaction when the work inside raises. A connection that can't even do that is closed."""
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
