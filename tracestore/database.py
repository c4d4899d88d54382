"""The only module that touches SQLite: one file, one connection, one batch per transaction.

What it guarantees, and how:

* **A transaction happens as a whole or not at all, whoever is cancelled.** aiosqlite runs every statement in a
  thread; a cancelled `await` leaves the statement running. So a transaction is a task of its own, and whoever
  asked for it waits for that task to end even while being cancelled.
* **One statement at a time.** A connection has one transaction state, so all work queues on one fair lock.
* **Writers never wait on each other inside SQLite with a stale snapshot:** every write begins ``IMMEDIATE``.
* **No corruption by two writers.** SQLite before 3.51.3 (3.50.7, 3.44.6) can lose committed rows when two
  connections write and checkpoint a WAL file at the same instant. On those versions each write transaction, of
  any process, runs under an exclusive lock on ``<file>.lock``.
* **The interpreter always ends.** aiosqlite's thread is no daemon: a connection left open would keep the process
  alive for ever. One daemon thread per process waits for the main thread to end and stops what is still open.
* **The file is its owner's alone** (0600, in a 0700 folder if we make it), never reached through a symlink, and
  never touched unless it is ours.

Every failure is a `StoreError` that names the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import anyio

from bus.errors import StoreError
from bus.log import Log

if TYPE_CHECKING:
    import aiosqlite

_T = TypeVar("_T")
Durability: TypeAlias = Literal["normal", "full"]
SqlValue: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Any, ...]  # what sqlite3 gives; each reader knows its own columns

APPLICATION_ID = 0x43414C42
"""``CALB``, in the header of every trace file."""

_MAGIC = b"SQLite format 3\0"
_BUSY_TIMEOUT_MS = 5_000
_LOCK_TIMEOUT_SECONDS = 10.0
_PROGRESS_STEPS = 10_000
_WAL_LIMIT_BYTES = 64 * 1024 * 1024

_log = Log("tracestore.database")


class Statements:
    """What a transaction may do. Handed to the function given to `Database.write`; not to be kept after it."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def run(self, sql: str, parameters: Sequence[SqlValue] | dict[str, SqlValue] = ()) -> list[Row]:
        """Execute one statement and return all its rows."""
        return list(await self._connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    async def run_many(self, sql: str, rows: Iterable[Sequence[SqlValue]]) -> None:
        """Execute one statement for each of `rows`."""
        cursor = await self._connection.executemany(sql, rows)
        await cursor.close()


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
        self._turn = anyio.Lock()
        self._file_lock: _FileLock | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        """Open the file; `prepare` checks and migrates it before anything else is done to it.

        Raises StoreError if the file can't be used. Then it, and every byte in it, is as it was.
        """
        if self._connection is not None:
            return
        try:
            if self.readonly:
                _refuse_missing(self.path)
            else:
                _create_private(self.path)
            _refuse_foreign(self.path)
            await _uninterrupted(self._open(prepare))
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error

    async def _open(self, prepare: Callable[[Database], Awaitable[None]]) -> None:
        import aiosqlite

        if not self.readonly:
            self._file_lock = _FileLock(self.path) if needs_file_lock() else None
        mode = "ro" if self.readonly else "rw"
        connection = aiosqlite.connect(
            f"file:{quote(str(self.path.absolute()))}?mode={mode}", uri=True, isolation_level=None
        )
        try:
            with self._translated():
                await connection
            self._connection = connection
            _stop_at_exit(connection)
            await self.read(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
            await prepare(self)
            if not self.readonly:
                await self._configure()
        except BaseException:
            await self._close()
            raise

    async def _configure(self) -> None:
        async with self._locked_file():
            ((mode,),) = await self.read("PRAGMA journal_mode = WAL")
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
        try:
            if connection is not None:
                # The last connection checkpoints as it closes, which is a write like any other.
                async with self._turn, self._locked_file(required=False):
                    with self._translated():
                        await connection.close()
        finally:
            if self._file_lock is not None:
                self._file_lock.close()
                self._file_lock = None

    async def read(self, sql: str, parameters: Sequence[SqlValue] | dict[str, SqlValue] = ()) -> list[Row]:
        """All rows of one statement that writes nothing."""
        async with self._turn:
            with self._translated():
                return await Statements(self._open_connection()).run(sql, parameters)

    async def quick_check(self, seconds: float) -> list[str]:
        """What SQLite finds wrong with the file. Raises TimeoutError when it could not finish in time."""
        return await _uninterrupted(self._quick_check(seconds))

    async def _quick_check(self, seconds: float) -> list[str]:
        import sqlite3

        deadline = time.monotonic() + seconds

        def too_late() -> bool:  # called by SQLite in aiosqlite's thread; true interrupts the statement
            return time.monotonic() > deadline

        async with self._turn:
            connection = self._open_connection()
            with self._translated():
                await connection.set_progress_handler(too_late, _PROGRESS_STEPS)
                try:
                    rows = await Statements(connection).run("PRAGMA quick_check")
                except sqlite3.DatabaseError as error:
                    if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                        return [str(error)]  # so badly damaged that it can't say where
                    if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                        raise TimeoutError(f"{self.path}: not checked within {seconds:g} s") from None
                    raise
                finally:
                    await connection.set_progress_handler(None, 0)  # type: ignore[arg-type]
        return [str(said) for (said,) in rows if said != "ok"]

    async def look(self, work: Callable[[Statements], Awaitable[_T]]) -> _T:
        """Run `work`, which writes to nothing but temporary tables, with nobody else in between."""
        return await _uninterrupted(self._look(work))

    async def _look(self, work: Callable[[Statements], Awaitable[_T]]) -> _T:
        async with self._turn:
            with self._translated():
                return await work(Statements(self._open_connection()))

    async def write(self, work: Callable[[Statements], Awaitable[_T]]) -> _T:
        """Run `work` in one IMMEDIATE transaction and return what it returns.

        The transaction is committed when `work` returns and rolled back when it raises. A caller that is
        cancelled still waits for it to end. Raises StoreError if the file can't be written, locked or opened.
        """
        if self.readonly:
            raise StoreError(f"{self.path} was opened for reading only")
        return await _uninterrupted(self._transaction(work))

    async def _transaction(self, work: Callable[[Statements], Awaitable[_T]]) -> _T:
        async with self._turn, self._locked_file():
            connection = self._open_connection()
            with self._translated():
                statements = Statements(connection)
                await statements.run("BEGIN IMMEDIATE")
                try:
                    result = await work(statements)
                    await statements.run("COMMIT")
                    return result
                except BaseException:
                    # When the disk is full SQLite has rolled back by itself, and a second ROLLBACK would raise.
                    if connection.in_transaction:
                        await statements.run("ROLLBACK")
                    raise

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
            raise StoreError(f"{self.path}: {error}") from error

    @contextlib.asynccontextmanager
    async def _locked_file(self, *, required: bool = True) -> AsyncIterator[None]:
        lock = self._file_lock
        if lock is None:
            yield
            return
        try:
            await lock.acquire()
        except StoreError:
            if required:
                raise
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


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


# -- Files


def _create_private(path: Path) -> None:
    """Make the file, empty, if it isn't there: readable by its owner alone from its first moment on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _refuse_irregular(path)


def _refuse_missing(path: Path) -> None:
    if not os.path.lexists(path):
        raise StoreError(f"there is no trace file at {path}")
    _refuse_irregular(path)


def _refuse_irregular(path: Path) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise StoreError(f"{path} is a symbolic link; give the path of the trace file itself")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is not a regular file; give the path of a trace file")


def _refuse_foreign(path: Path) -> None:
    """Refuse what is no SQLite file before SQLite sees it."""
    with open(path, "rb") as file:
        head = file.read(len(_MAGIC))
    if head and head != _MAGIC:
        raise StoreError(f"{path} is not a database; give another path, or move that file away")


def open_private(path: Path, flags: int) -> int:
    """Open a file beside the database, made with mode 0600 and never through a symlink."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)


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


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock on an open file at once, or return False. It ends with the descriptor."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows has no flock; there one process per file is the rule
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give back what `try_lock` took."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - see try_lock
        return
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class _FileLock:
    """The lock that all writers of one file share. Held for a transaction at a time, some milliseconds."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = open_private(self._path, os.O_RDWR)

    async def acquire(self) -> None:
        # Trying costs a microsecond and is nearly always enough; only a contended lock is waited for.
        pause = 0.001
        with anyio.move_on_after(_LOCK_TIMEOUT_SECONDS):
            while not try_lock(self._descriptor):
                await anyio.sleep(pause)
                pause = min(pause * 1.5, 0.02)
            return
        raise StoreError(
            f"{self._path} has been locked by another process for {_LOCK_TIMEOUT_SECONDS:.0f} s; "
            "is it stopped or repricing?"
        )

    def release(self) -> None:
        unlock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


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
