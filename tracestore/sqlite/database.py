"""One SQLite file, one connection, one batch per transaction.

- **A transaction happens as a whole or not at all.** aiosqlite's thread runs it as one function, one transaction
  after the other. A cancelled caller still waits for its end. Every write starts ``IMMEDIATE``.
- **Two writers do not corrupt the file.** SQLite before 3.51.3 (3.50.7, 3.44.6) can lose rows when two connections
  write a WAL file at the same instant. With these versions, each write of any process holds an exclusive lock on
  ``<file>.lock``.
- **The interpreter always ends.** aiosqlite's thread is not a daemon, so a daemon thread waits for the main thread
  to end, and then stops open connections.
- **A file on read-only media is assumed not to change.** If a process writes such a file, reading fails.
- **Only the owner can access the file** (mode 0600). A symbolic link is refused, and a file that isn't Callboard's
  is never changed.

Every failure is a `StoreError` that names the file. A temporary failure is a `StoreUnavailable`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from callboard.bus.errors import StoreError, StoreUnavailable
from callboard.bus.log import Log

from ..sql.connection import Row, SqlValue, Unstorable, shielded
from .files import FileLock, create_private, has_log, is_immutable, is_made_for_log, refuse_foreign, refuse_missing
from .statements import (
    BUSY_TIMEOUT_MS,
    SQLITE,
    Statements,
    connection_type,
    in_thread,
    needs_file_lock,
    translated,
    uri,
)

if TYPE_CHECKING:
    import aiosqlite


__all__ = ["APPLICATION_ID", "Database", "Durability", "Row", "Statements", "Unstorable"]

_T = TypeVar("_T")
Durability: TypeAlias = Literal["normal", "full"]
"""``full``: a commit survives a loss of power. ``normal``: a commit survives a crash of the program."""

APPLICATION_ID = 0x43414C42
"""``CALB``, in the header of every trace file."""

_CACHED_STATEMENTS = 256
REWRITTEN_BYTES = 64 * 1024 * 1024
"""The maximum size of a file that a deletion rewrites. It takes about half a second and as much memory."""

_WAL_LIMIT_BYTES = 64 * 1024 * 1024

_log = Log("tracestore.database")


class Database:
    """One SQLite file, through one connection. A database belongs to one event loop."""

    dialect = SQLITE

    def __init__(self, path: Path | str, *, durability: Durability = "normal", readonly: bool = False) -> None:
        if durability not in ("normal", "full"):
            raise ValueError(f"durability must be 'normal' or 'full', not {durability!r}")
        self.path = Path(path)
        self.readonly = readonly
        self._durability = durability
        self._connection: aiosqlite.Connection | None = None
        self._file_lock: FileLock | None = None
        self._file: tuple[int, int] | None = None
        self.immutable = False  # whether the file is opened as one that never changes
        self._copy: Path | None = None  # a temporary copy that is read instead of the file

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._connection is not None

    @property
    def is_moved(self) -> bool:
        """Whether the path no longer leads to the open file, because the file was moved, replaced or deleted."""
        return self._connection is not None and self._file != _identity(self.path)

    async def open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        """Open the file. If that fails, not a byte of the file is changed."""
        if self._connection is not None:
            return
        try:
            if self.readonly:
                refuse_missing(self.path)
            else:
                create_private(self.path)
            refuse_foreign(self.path)
            await shielded(self._open(prepare))
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror or error}") from error

    async def _open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        import aiosqlite

        if not self.readonly:
            self._file_lock = FileLock(self.path) if needs_file_lock() else None
        self.immutable = self._copy is None and self.readonly and is_immutable(self.path)
        connection = aiosqlite.connect(
            uri(
                self._copy or self.path,
                "ro" if self.readonly else "rw",
                immutable=self.immutable or self._copy is not None,
            ),
            uri=True,
            isolation_level=None,
            factory=connection_type(),
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            with translated(self.path):
                await connection
            self._connection = connection
            self._file = _identity(self.path)
            stop_at_exit(connection)
            await self._read(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            if not self.readonly:
                await self._locked(_make_shrinkable)
            await prepare(self)
            if not self.readonly:
                await self._configure()
        except BaseException:
            await self._close()
            raise

    async def _configure(self) -> None:
        ((mode,),) = await self._locked(lambda statements: statements.run("PRAGMA journal_mode = WAL"))
        synchronous = "FULL" if self._durability == "full" else "NORMAL"
        if mode != "wal":
            # There is no shared memory, for example on a network share. Without a WAL, the file is safe only with
            # FULL.
            _log.warning("no_wal", file=str(self.path), journal_mode=mode)
            synchronous = "FULL"
        await self.read(f"PRAGMA synchronous = {synchronous}")
        await self.read(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        # Checkpointing every 16 MiB instead of every 4 writes the pages that every batch touches less often.
        await self.read("PRAGMA wal_autocheckpoint = 4000")
        await self.read("PRAGMA cache_size = -16384")
        await self.read("PRAGMA temp_store = MEMORY")

    async def close(self) -> None:
        """Finish the work in progress and close the file. Closing twice is harmless."""
        await shielded(self._close())

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        lock, self._file_lock = self._file_lock, None
        try:
            if connection is not None:
                if lock is not None:
                    # When the last connection closes, SQLite checkpoints. A checkpoint writes, so it needs the
                    # lock.
                    with contextlib.suppress(StoreError):
                        await lock.patiently(lambda: in_thread(connection, lambda _: lock.try_acquire()))
                with translated(self.path):
                    await connection.close()
        finally:
            if lock is not None:
                lock.close()

    async def read(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        return await self._read(sql, parameters)

    async def _read(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        with translated(self.path):
            return await in_thread(self._open_connection(), lambda statements: statements.run(sql, parameters))

    async def journal_mode(self) -> str:
        """SQLite's name of the journal mode. If the file is not open, it is read from the file's header."""
        if self.immutable:
            return "wal" if is_made_for_log(self.path) else "delete"
        ((mode,),) = await self.read("PRAGMA journal_mode")
        return str(mode)

    async def quick_check(self, seconds: float) -> list[str]:
        """The faults that SQLite finds in the file. Raises TimeoutError if the check takes too long."""
        import sqlite3

        with translated(self.path):
            try:
                rows = await self._within(seconds, lambda statements: statements.run("PRAGMA quick_check"))
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    return [str(error)]  # The damage is so bad that SQLite can't locate it.
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise TimeoutError(f"{self.path}: not checked within {seconds:g} s") from None
                raise
        return [str(message) for (message,) in rows if message != "ok"]

    async def select(
        self, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float
    ) -> tuple[list[str], list[Row]]:
        """The columns and first rows of a user's statement, which may only read.

        Use this on a separate connection that was opened `readonly`. From then on, the connection refuses all
        other work. Raises StoreError for any other statement, and TimeoutError if the statement takes too long.
        """
        import sqlite3

        with translated(self.path):
            try:
                return await self._within(seconds, lambda statements: statements.first(sql, parameters, limit))
            except (sqlite3.Error, sqlite3.Warning) as error:
                match getattr(error, "sqlite_errorcode", None):
                    case sqlite3.SQLITE_INTERRUPT:
                        raise TimeoutError(f"{self.path}: not read within {seconds:g} s") from None
                    case sqlite3.SQLITE_AUTH:
                        raise StoreError(f"{self.path}: only reading is allowed: SELECT, WITH, EXPLAIN") from None
                    # the statement is not SQL, is more than one statement, lacks parameters, or names the file
                    # itself
                    case _:
                        raise StoreError(f"{self.path}: {error}") from error

    async def _within(self, seconds: float, work: Callable[[Statements], _T]) -> _T:
        """Run `work` within a time limit that includes the wait for the thread. SQLite interrupts it then."""
        deadline = time.monotonic() + seconds

        def bounded(statements: Statements) -> _T:
            with statements.interrupted_at(deadline):
                return work(statements)

        return await shielded(in_thread(self._open_connection(), bounded))

    async def vacuum(self) -> None:
        """Rewrite the file without gaps, so that it can later return free pages. Writers wait meanwhile."""

        def work(statements: Statements) -> None:
            statements.run("PRAGMA auto_vacuum = INCREMENTAL")
            statements.run("VACUUM")

        if self.readonly:
            raise StoreError(f"{self.path} was opened for reading only")
        await shielded(self._locked(work))

    async def clear_gaps(self) -> None:
        """Rewrite the file without gaps and empty the write-ahead log, because both contain deleted bytes.

        When a row grows, SQLite moves others to another page and leaves their bytes at the old place. Only a
        rewrite removes them. Larger files than `REWRITTEN_BYTES` are not rewritten, because writers would wait too
        long. If a reader prevents it, a later checkpoint empties the log.
        """
        ((size,),) = await self.read("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        if size <= REWRITTEN_BYTES:
            try:
                await self.vacuum()
            except StoreError as error:
                _log.warning("gaps_not_cleared", file=str(self.path), error=str(error))
        with contextlib.suppress(StoreError):
            await shielded(self._locked(lambda statements: statements.run("PRAGMA wal_checkpoint(TRUNCATE)")))

    async def give_back(self, pages: int) -> None:
        """Return at most `pages` free pages to the disk, if the file's format supports this."""

        def work(statements: Statements) -> None:
            statements.script(f"PRAGMA incremental_vacuum({pages:d})")

        await shielded(self._locked(work))

    async def look(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in the connection's thread, without interruption. It may write only to temporary tables."""
        with translated(self.path):
            return await shielded(in_thread(self._open_connection(), work))

    async def write(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in the connection's thread, in one IMMEDIATE transaction, and return what it returns.

        The transaction is committed when `work` returns and rolled back when it raises. A caller that is cancelled
        still waits for the end of the transaction. Raises StoreError if the file can't be written, locked or
        opened.
        """
        if self.readonly:
            raise StoreError(f"{self.path} was opened for reading only")

        def transaction(statements: Statements) -> _T:
            with statements.transaction():
                return work(statements)

        return await shielded(self._locked(transaction))

    async def _locked(self, work: Callable[[Statements], _T]) -> _T:
        lock = self._file_lock
        with translated(self.path):
            if lock is None:
                return await in_thread(self._open_connection(), work)
            done: list[_T] = []

            def under_lock(statements: Statements) -> bool:
                if not lock.try_acquire():
                    return False
                try:
                    done.append(work(statements))
                finally:
                    lock.release()
                return True

            await lock.patiently(lambda: in_thread(self._open_connection(), under_lock))
            return done[0]

    def _open_connection(self) -> aiosqlite.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is not open: call open() first")
        if self.immutable and has_log(self.path):
            raise StoreUnavailable(f"{self.path} has been written since it was opened. Open it again")
        return self._connection


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file at a path; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_shrinkable(statements: Statements) -> None:
    """Let a new file return free pages to the disk. This adds one page for each 800 pages."""
    ((pages,),) = statements.run("PRAGMA page_count")
    if not pages:
        statements.run("PRAGMA auto_vacuum = INCREMENTAL")


# --- The end of the interpreter ---
#
# aiosqlite's thread is not a daemon, so an open connection would keep the process alive forever. One daemon thread
# per process waits for the main thread and the host's non-daemon threads to end. Then it stops the connections
# that are still open.


_open_connections: weakref.WeakKeyDictionary[aiosqlite.Connection, threading.Thread] = weakref.WeakKeyDictionary()
_reaper: threading.Thread | None = None
_reaper_lock = threading.Lock()


def stop_at_exit(connection: aiosqlite.Connection) -> None:
    """Stop a connection of the calling thread that is still open when the interpreter ends."""
    global _reaper
    with _reaper_lock:
        _open_connections[connection] = threading.current_thread()
        if _reaper is None or not _reaper.is_alive():
            _reaper = threading.Thread(target=_reap, name="callboard-sqlite-reaper", daemon=True)
            _reaper.start()


def _reap() -> None:
    global _reaper
    threading.main_thread().join()
    while True:
        with _reaper_lock:
            idle = [
                (_outlives_main(owner), id(connection), connection, owner)
                for connection, owner in _open_connections.items()
            ]
            if not idle:
                _reaper = None
                return
        # A host's non-daemon thread may still be closing its engine. The main thread has ended, so connections of
        # the main thread are stopped first.
        for wait, _, connection, owner in sorted(idle):
            if wait:
                owner.join()
            connection.stop()
            with _reaper_lock:
                _open_connections.pop(connection, None)


def _outlives_main(owner: threading.Thread) -> bool:
    return not owner.daemon and owner is not threading.main_thread()
