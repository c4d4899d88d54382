"""The files next to a database. They are private, locked by one process at a time, and never symbolic links."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from hashlib import sha256
from pathlib import Path

import anyio

from callboard.bus.errors import StoreError, StoreUnavailable

_MAGIC = b"SQLite format 3\0"
_LOG_FORMAT_AT = 18
_LOCK_TIMEOUT_SECONDS = 10.0

_TURN_SECONDS = 0.1
"""Seconds between two attempts to take a lock that may be held for minutes."""


def create_private(path: Path) -> None:
    """Create an empty file if there is none. From its creation on, only the owner can read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        refuse_irregular(path)


def refuse_missing(path: Path) -> None:
    if not os.path.lexists(path):
        raise StoreError(f"no trace file at {path}")
    refuse_irregular(path)


def refuse_irregular(path: Path) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise StoreError(f"{path} is a symbolic link. Use the path of the trace file itself")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is not a regular file. Use the path of a trace file")


def is_immutable(path: Path) -> bool:
    """Whether a file was closed by its writer and is in a folder without write access, as on read-only media.

    SQLite needs a file of shared memory to read a database that has a write-ahead log. A file that no process uses
    has no log, so it needs no shared memory.
    """
    if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-shm").exists():
        return False
    if has_log(path):
        raise StoreUnavailable(
            f"{path} was not closed by its writer, and its folder can't be written: copy the file and "
            f"{path.name}-wal to a writable folder, and read them there",
            reopen=False,
        )
    return True


def has_log(path: Path) -> bool:
    """Whether a database has a non-empty write-ahead log: a process writes it, or died while writing."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except OSError:
        return False


def is_made_for_log(path: Path) -> bool:
    """Whether a database's header enables a write-ahead log."""
    with open(path, "rb") as file:
        head = file.read(_LOG_FORMAT_AT + 1)
    return head[_LOG_FORMAT_AT:] == b"\2"


def refuse_foreign(path: Path) -> None:
    """Refuse a file of another format before SQLite opens it."""
    with open(path, "rb") as file:
        head = file.read(len(_MAGIC))
    if head and head != _MAGIC:
        raise StoreError(f"{path} is not a database. Use another path, or move that file away")


class HeldFile:
    """An open file that may have an exclusive lock. `close` or the end of the process releases the lock.

    A forked child closes its copies when it starts. Otherwise its copies would keep the locks of a dead parent.
    """

    def __init__(self, path: Path, flags: int) -> None:
        """Open a file, never through a symlink. A new file has mode 0600."""
        self.descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
        _locked_files.add(self)

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock without waiting, or return False."""
        try:
            import fcntl
        except ImportError:  # pragma: no cover - Windows has no flock; there one process per file is the rule
            return True
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - see try_lock
            return
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        except OSError:
            return False

    def close(self) -> None:
        """Close the file, which releases its lock. Closing twice is harmless."""
        if self in _locked_files:
            _locked_files.remove(self)
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


_locked_files: set[HeldFile] = set()


def _close_all() -> None:
    for file in list(_locked_files):
        file.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_all)


class FileLock:
    """The lock that all writers of one file share. It is held for one transaction at a time, some milliseconds."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file = HeldFile(self._path, os.O_RDWR | os.O_CREAT)

    def try_acquire(self) -> bool:
        return self._file.try_lock()

    async def patiently(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Repeat the attempt until it takes the lock. Raises StoreError after some seconds."""
        # An attempt takes a microsecond and nearly always succeeds. Only a contended lock needs a wait.
        if await attempt():
            return
        pause, deadline = 0.001, anyio.current_time() + _LOCK_TIMEOUT_SECONDS
        while anyio.current_time() < deadline:
            await anyio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
            if await attempt():
                return
        raise StoreUnavailable(
            f"{self._path} has been locked by another process for {_LOCK_TIMEOUT_SECONDS:.0f} s. Is that "
            f"process stopped or repricing?",
            reopen=False,
        )

    def release(self) -> None:
        self._file.unlock()

    def close(self) -> None:
        self._file.close()


# --- Named locks ---

_NAMED = "lock-"


@contextlib.asynccontextmanager
async def named_lock(database: Path, name: str) -> AsyncIterator[None]:
    """Wait for a named lock, and hold it. The lock's file exists only while the lock is held."""
    path = database.with_name(f"{database.name}.{_NAMED}{sha256(name.encode()).hexdigest()[:16]}")
    try:
        while (file := _locked(path)) is None:  # noqa: ASYNC110 - no event comes from another process's lock
            await anyio.sleep(_TURN_SECONDS)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        remove_quietly(path)
        file.close()


def _locked(path: Path) -> HeldFile | None:
    """Lock and return the file; None if another process holds the lock or has just removed the file."""
    file = HeldFile(path, os.O_RDWR | os.O_CREAT)
    locked = False
    try:
        locked = file.try_lock() and file.is_at(path)
    finally:
        if not locked:
            file.close()
    return file if locked else None


def remove_named_locks(database: Path) -> None:
    """Remove the files of unused locks with dead holders."""
    for path in database.parent.glob(f"{escaped(f'{database.name}.{_NAMED}')}*"):
        with contextlib.suppress(OSError):
            if (file := _locked(path)) is not None:
                remove_quietly(path)
                file.close()


# --- Locks of runs ---


class RunLock:
    """The lock of one run, on a file with the run's name. It is held while the run is in progress.

    The file appears under its name with the lock already held, so the lock of a running process is never free.
    """

    def __init__(self, database: Path, run_id: str) -> None:
        """Create the file and take the lock. Raises StoreError, also if the run is already in progress."""
        self._path = run_lock_path(database, run_id)
        unborn = self._path.with_name(f"{database.name}.new-run-{run_id}")
        try:
            self._file = HeldFile(unborn, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreUnavailable(f"{unborn}: {error.strerror or error}") from error
        try:
            with free_run_lock(database, run_id) as predecessor:
                if predecessor is None or not self._file.try_lock():
                    raise StoreError(f"run {run_id} is already being written to {database}")
                os.replace(unborn, self._path)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise StoreUnavailable(f"{self._path}: {error.strerror or error}") from error
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the file still exists under its name. If not, other processes can't see the lock."""
        return self._file.is_at(self._path)

    def close(self) -> None:
        """Release the lock. The file is not deleted."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file and release the lock, because the run has ended."""
        remove_quietly(self._path)
        self._file.close()


@contextlib.contextmanager
def free_run_lock(database: Path, run_id: str) -> Iterator[Path | None]:
    """Hold the lock of a stopped run, and yield its file. Yields None if it is in progress or can't be locked.

    A run without a lock file is not in progress: the file exists from before the first write until the run's end.
    """
    path = run_lock_path(database, run_id)
    try:
        file = HeldFile(path, os.O_RDWR)
    except FileNotFoundError:
        yield path
        return
    except OSError:
        yield None
        return
    try:
        yield path if file.try_lock() else None
    finally:
        file.close()


def run_lock_path(database: Path, run_id: str) -> Path:
    return database.with_name(f"{database.name}.run-{run_id}")


def run_locks(database: Path) -> list[str]:
    """The runs that have a lock file, locked or not."""
    prefix = f"{database.name}.run-"
    return sorted(path.name.removeprefix(prefix) for path in database.parent.glob(f"{escaped(prefix)}*"))


def remove_quietly(path: Path) -> None:
    """Delete an unneeded file. In a read-only folder, the file is left."""
    with contextlib.suppress(OSError):
        path.unlink()


def escaped(name: str) -> str:
    """Convert a name to a glob pattern that matches only this name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
