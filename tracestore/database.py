"""The only module that touches SQLite: one file, one connection, one batch per transaction.

What it guarantees, and how:

* **A transaction happens as a whole or not at all, whoever is cancelled.** It is one function, from BEGIN to
  COMMIT or ROLLBACK, that aiosqlite's thread runs in one go: a cancelled `await` doesn't stop it half-way. Whoever
  asked for it waits for it to end even while being cancelled.
* **One transaction at a time.** The connection's thread takes one function after the other, in the order in which
  they came; nobody's statement gets in between. One trip to that thread costs more than many a statement.
* **Writers never wait on each other inside SQLite with a stale snapshot:** every write begins ``IMMEDIATE``.
* **No corruption by two writers.** SQLite before 3.51.3 (3.50.7, 3.44.6) can lose committed rows when two
  connections write and checkpoint a WAL file at the same instant. On those versions each write transaction, of
  any process, runs under an exclusive lock on ``<file>.lock``. The thread takes it and gives it back; while
  another process has it, the thread is free for readers, and the event loop asks again.
* **The interpreter always ends.** aiosqlite's thread is no daemon: a connection left open would keep the process
  alive for ever. One daemon thread per process waits for the main thread to end and stops what is still open.
* **The file is its owner's alone** (0600, in a 0700 folder if we make it), never reached through a symlink, and
  never touched unless it is ours.

Every failure is a `StoreError` that names the file; one that may pass is a `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import anyio

from bus.errors import StoreError, StoreUnavailable
from bus.log import Log

from .files import FileLock, create_private, refuse_foreign, refuse_missing
from .insert import Insert, SqlValue

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite

_T = TypeVar("_T")
Durability: TypeAlias = Literal["normal", "full"]
Row: TypeAlias = tuple[Any, ...]  # what sqlite3 gives; each reader knows its own columns

APPLICATION_ID = 0x43414C42
"""``CALB``, in the header of every trace file."""

_BUSY_TIMEOUT_MS = 5_000
_PROGRESS_STEPS = 10_000
_CACHED_STATEMENTS = 256
_WAL_LIMIT_BYTES = 64 * 1024 * 1024

_VALUE_LIMIT_BYTES = 16 * 1024 * 1024

_log = Log("tracestore.database")


class Unstorable(ValueError):
    """A value is to blame, not the file: writing it again would fail again."""


@contextlib.contextmanager
def _unstorable() -> Iterator[None]:
    import sqlite3

    try:
        yield
    except (UnicodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise Unstorable(str(error)) from error  # no text, beyond 64 bits, or of no type that SQLite knows
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise Unstorable(str(error)) from error  # missing, of another type than the column's, or too large


def _may_read(action: int, first: str | None, second: str | None, *rest: str | None) -> int:
    """SQLite's question whether a statement may do something: it may read, but open or load no other file."""
    import sqlite3

    match action:
        case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_READ | sqlite3.SQLITE_RECURSIVE:
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_FUNCTION if second != "load_extension":
            return sqlite3.SQLITE_OK
        case sqlite3.SQLITE_PRAGMA if first in _READING_PRAGMAS:
            return sqlite3.SQLITE_OK
        case _:
            return sqlite3.SQLITE_DENY


_READING_PRAGMAS = ("table_info", "table_xinfo", "table_list", "index_list", "index_info")


class Statements:
    """What a function may do in the connection's thread. Handed to it; not to be kept, nor used elsewhere."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        """Execute one statement and return all its rows."""
        return self._connection.execute(sql, parameters).fetchall()

    def first(self, sql: str, parameters: Sequence[SqlValue], limit: int) -> tuple[list[str], list[Row]]:
        """The columns and the first rows of one statement, which may only read, and no value beyond 16 MiB."""
        import sqlite3

        self._connection.set_authorizer(_may_read)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT_BYTES)
        cursor = self._connection.execute(sql, parameters)
        return [column[0] for column in cursor.description or ()], cursor.fetchmany(limit)

    def change(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> int:
        """Execute one INSERT, UPDATE or DELETE and return how many rows it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def script(self, sql: str) -> None:
        """Execute statements outside of a transaction, to their ends: `run` stops at a row without columns."""
        self._connection.executescript(sql)

    def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`. Raises Unstorable for a value that the table doesn't take."""
        with _unstorable():
            self._connection.executemany(sql, rows)

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        """Insert rows; `values` are theirs, one row after the other. Raises Unstorable like `run_many`."""
        with _unstorable():
            for sql, parameters in insert.statements(values):
                self._connection.execute(sql, parameters)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done inside, as a whole, or undo it when it raises."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # When the disk is full SQLite has rolled back by itself, and a second ROLLBACK would raise.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def interrupted_when(self, due: Callable[[], bool]) -> Iterator[None]:
        """Interrupt whatever statement inside is running when `due()` is found true."""
        self._connection.set_progress_handler(due, _PROGRESS_STEPS)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)


class Database:
    """One SQLite file, through one connection. Belongs to one event loop.

    path: of the file; made on `open()` unless `readonly`. durability: ``normal`` survives the death of the process
    (kill -9 included); ``full`` survives the loss of power as well, at the price of one fsync per transaction.
    """

    def __init__(self, path: Path | str, *, durability: Durability = "normal", readonly: bool = False) -> None:
        if durability not in ("normal", "full"):
            raise ValueError(f"durability must be 'normal' or 'full', not {durability!r}")
        self.path = Path(path)
        self.readonly = readonly
        self._durability = durability
        self._connection: aiosqlite.Connection | None = None
        self._file_lock: FileLock | None = None
        self._file: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def is_moved(self) -> bool:
        """Whether what is open isn't the file at the path any more: somebody moved, replaced or deleted it."""
        return self._connection is not None and self._file != _identity(self.path)

    async def open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        """Open the file; `prepare` checks and migrates it before anything else is done to it.

        Raises StoreError if the file can't be used. Then it, and every byte in it, is as it was.
        """
        if self._connection is not None:
            return
        try:
            if self.readonly:
                refuse_missing(self.path)
            else:
                create_private(self.path)
            refuse_foreign(self.path)
            await _uninterrupted(self._open(prepare))
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror or error}") from error

    async def _open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        import aiosqlite

        if not self.readonly:
            self._file_lock = FileLock(self.path) if needs_file_lock() else None
        mode = "ro" if self.readonly else "rw"
        connection = aiosqlite.connect(
            f"file:{quote(str(self.path.absolute()))}?mode={mode}",
            uri=True,
            isolation_level=None,
            factory=_connection_type(),
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            with self._translated():
                await connection
            self._connection = connection
            self._file = _identity(self.path)
            _stop_at_exit(connection)
            await self.read(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
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
            # Shared memory is missing, as on a network share. Without a WAL only FULL keeps the file whole.
            _log.warning("no_wal", file=str(self.path), journal_mode=mode)
            synchronous = "FULL"
        await self.read(f"PRAGMA synchronous = {synchronous}")
        await self.read(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        # Checkpointing every 16 MiB instead of every 4 writes the pages that every batch touches less often.
        await self.read("PRAGMA wal_autocheckpoint = 4000")
        await self.read("PRAGMA cache_size = -16384")
        await self.read("PRAGMA temp_store = MEMORY")

    async def close(self) -> None:
        """Finish what is under way and close the file. Closing twice is harmless."""
        await _uninterrupted(self._close())

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        lock, self._file_lock = self._file_lock, None
        try:
            if connection is not None:
                if lock is not None:
                    # The last connection checkpoints as it closes, which is a write like any other.
                    with contextlib.suppress(StoreError):
                        await lock.patiently(lambda: _in_thread(connection, lambda _: lock.try_acquire()))
                with self._translated():
                    await connection.close()
        finally:
            if lock is not None:
                lock.close()

    async def read(self, sql: str, parameters: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[Row]:
        """All rows of one statement that writes nothing."""
        with self._translated():
            return await _in_thread(self._open_connection(), lambda statements: statements.run(sql, parameters))

    async def quick_check(self, seconds: float) -> list[str]:
        """What SQLite finds wrong with the file. Raises TimeoutError when it could not finish in time."""
        import sqlite3

        def too_late() -> bool:  # called by SQLite now and then; true interrupts the statement
            return time.monotonic() > deadline

        def work(statements: Statements) -> list[Row]:
            with statements.interrupted_when(too_late):
                return statements.run("PRAGMA quick_check")

        deadline = time.monotonic() + seconds
        with self._translated():
            try:
                rows = await _uninterrupted(_in_thread(self._open_connection(), work))
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    return [str(error)]  # so badly damaged that it can't say where
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    raise TimeoutError(f"{self.path}: not checked within {seconds:g} s") from None
                raise
        return [str(said) for (said,) in rows if said != "ok"]

    async def select(
        self, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float
    ) -> tuple[list[str], list[Row]]:
        """The columns and first rows of a statement from outside, which may do nothing but read.

        For a connection of its own, opened `readonly`: from then on it refuses everything else. Raises StoreError
        for any other statement, TimeoutError when it could not finish in time.
        """
        import sqlite3

        def too_late() -> bool:
            return time.monotonic() > deadline

        def work(statements: Statements) -> tuple[list[str], list[Row]]:
            with statements.interrupted_when(too_late):
                return statements.first(sql, parameters, limit)

        deadline = time.monotonic() + seconds
        with self._translated():
            try:
                return await _uninterrupted(_in_thread(self._open_connection(), work))
            except (sqlite3.Error, sqlite3.Warning) as error:
                match getattr(error, "sqlite_errorcode", None):
                    case sqlite3.SQLITE_INTERRUPT:
                        raise TimeoutError(f"{self.path}: not read within {seconds:g} s") from None
                    case sqlite3.SQLITE_AUTH:
                        raise StoreError(f"{self.path}: only reading is allowed: SELECT, WITH, EXPLAIN") from None
                    case _:  # no SQL, more than one statement, too few parameters, or the file itself
                        raise StoreError(f"{self.path}: {error}") from error

    async def vacuum(self) -> None:
        """Rewrite the file without gaps, so that it can also be shrunk later. Writers wait until it is done."""

        def work(statements: Statements) -> None:
            statements.run("PRAGMA auto_vacuum = INCREMENTAL")
            statements.run("VACUUM")

        if self.readonly:
            raise StoreError(f"{self.path} was opened for reading only")
        await _uninterrupted(self._locked(work))

    async def give_back(self, pages: int) -> None:
        """Give up to so many free pages back to the disk, if the file was made for that."""

        def work(statements: Statements) -> None:
            statements.script(f"PRAGMA incremental_vacuum({pages:d})")

        await _uninterrupted(self._locked(work))

    async def look(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work`, which writes to nothing but temporary tables, in the connection's thread, in one go."""
        with self._translated():
            return await _uninterrupted(_in_thread(self._open_connection(), work))

    async def write(self, work: Callable[[Statements], _T]) -> _T:
        """Run `work` in the connection's thread, in one IMMEDIATE transaction, and return what it returns.

        The transaction is committed when `work` returns and rolled back when it raises. A caller that is
        cancelled still waits for it to end. Raises StoreError if the file can't be written, locked or opened.
        """
        if self.readonly:
            raise StoreError(f"{self.path} was opened for reading only")

        def transaction(statements: Statements) -> _T:
            with statements.transaction():
                return work(statements)

        return await _uninterrupted(self._locked(transaction))

    async def _locked(self, work: Callable[[Statements], _T]) -> _T:
        lock = self._file_lock
        with self._translated():
            if lock is None:
                return await _in_thread(self._open_connection(), work)
            done: list[_T] = []

            def under_lock(statements: Statements) -> bool:
                if not lock.try_acquire():
                    return False
                try:
                    done.append(work(statements))
                finally:
                    lock.release()
                return True

            await lock.patiently(lambda: _in_thread(self._open_connection(), under_lock))
            return done[0]

    def _open_connection(self) -> aiosqlite.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is not open: call open() first")
        return self._connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
                raise StoreUnavailable(f"{self.path}: {error}", reopen=False) from error
            if code in _of_the_file():
                raise StoreUnavailable(f"{self.path}: {error}") from error
            raise StoreError(f"{self.path}: {error}") from error


def _of_the_file() -> tuple[int, ...]:
    """SQLite's codes for a file that the connection can't use, and perhaps another one could."""
    import sqlite3

    return (
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL),
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at a path; None if none does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_shrinkable(statements: Statements) -> None:
    """A new file is made so that it can give free pages back; that costs one page in eight hundred."""
    ((pages,),) = statements.run("PRAGMA page_count")
    if not pages:
        statements.run("PRAGMA auto_vacuum = INCREMENTAL")


def copy_snapshot(source: Path, target: Path, step_pages: int, told: Callable[[int, int], object]) -> None:
    """Copy a database as it is at this moment into a file that exists and is empty. Blocks; call it in a thread.

    Holds one read transaction from beginning to end: writers go on, and nothing they do makes it begin again.
    told: pages copied and pages in all, after each step; what it raises ends the copy. Raises StoreError.
    """
    import sqlite3

    def uri(path: Path, mode: str) -> str:
        return f"file:{quote(str(path.absolute()))}?mode={mode}"

    def progress(_status: int, remaining: int, total: int) -> None:
        told(total - remaining, total)

    try:
        with (
            contextlib.closing(sqlite3.connect(uri(source, "ro"), uri=True, isolation_level=None)) as original,
            contextlib.closing(sqlite3.connect(uri(target, "rw"), uri=True, isolation_level=None)) as copy,
        ):
            original.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            original.execute("BEGIN")
            original.execute("SELECT count(*) FROM sqlite_master").fetchall()
            original.backup(copy, pages=step_pages, progress=progress, sleep=0.01)
            original.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{source} could not be copied to {target}: {error}") from error


# -- The connection's thread


class _Script(str):
    """A script for SQLite that is a function; the text is for aiosqlite's log."""

    __slots__ = ("work",)

    work: Callable[[Statements], object]


@functools.cache
def _connection_type() -> type[sqlite3.Connection]:
    """A connection that runs a function as if it were a script.

    aiosqlite brings single statements to its thread, and has nothing public to bring a function there. But it says
    which class of connection is to be used, and calls that class's own methods in the thread: that is enough.
    """
    import sqlite3

    class Connection(sqlite3.Connection):
        def executescript(self, script: str, /) -> sqlite3.Cursor:
            if not isinstance(script, _Script):
                return super().executescript(script)
            script.work(Statements(self))
            return self.cursor()

    return Connection


async def _in_thread(connection: aiosqlite.Connection, work: Callable[[Statements], _T]) -> _T:
    """Run `work` in the connection's thread. When the caller is cancelled, `work` still runs to its end."""
    done: list[_T] = []
    script = _Script("work of the trace store")
    script.work = lambda statements: done.append(work(statements))
    await connection.executescript(script)
    return done[0]


async def _uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, whatever cancels the caller; then let the cancellation through."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    # The scope keeps anyio's cancellation out, the shield asyncio's own `task.cancel()`, which passes the scope.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                interrupted = error
            except BaseException:
                break
    if interrupted is not None and not task.cancelled():
        if task.exception() is not None:
            _log.warning("failed_while_cancelled", error=repr(task.exception()))
        raise interrupted
    return task.result()


# -- Several processes


def sqlite_version() -> str:
    """Of the library that Python was built with."""
    import sqlite3

    return sqlite3.sqlite_version


def needs_file_lock() -> bool:
    """Whether this SQLite can corrupt a WAL file that two connections write."""
    import sqlite3

    version = sqlite3.sqlite_version_info
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))


# -- The end of the interpreter

_open_connections: weakref.WeakKeyDictionary[aiosqlite.Connection, threading.Thread] = weakref.WeakKeyDictionary()
_reaper: threading.Thread | None = None
_reaper_lock = threading.Lock()


def _stop_at_exit(connection: aiosqlite.Connection) -> None:
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
            left = [
                (_outlives_main(owner), id(connection), connection, owner)
                for connection, owner in _open_connections.items()
            ]
            if not left:
                _reaper = None
                return
        # A host's own, non-daemon thread may still be shutting its engine down; the interpreter waits for it too.
        # What belonged to the main thread has nobody left, and goes first.
        for wait, _, connection, owner in sorted(left):
            if wait:
                owner.join()
            connection.stop()
            with _reaper_lock:
                _open_connections.pop(connection, None)


def _outlives_main(owner: threading.Thread) -> bool:
    return not owner.daemon and owner is not threading.main_thread()
