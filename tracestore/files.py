"""The database's file and those beside it: private, never reached through a symlink, locked by one at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from bus.errors import StoreError

_MAGIC = b"SQLite format 3\0"
_LOCK_TIMEOUT_SECONDS = 10.0


def create_private(path: Path) -> None:
    """Make the file, empty, if it isn't there: readable by its owner alone from its first moment on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        refuse_irregular(path)


def refuse_missing(path: Path) -> None:
    if not os.path.lexists(path):
        raise StoreError(f"there is no trace file at {path}")
    refuse_irregular(path)


def refuse_irregular(path: Path) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise StoreError(f"{path} is a symbolic link; give the path of the trace file itself")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is not a regular file; give the path of a trace file")


def refuse_foreign(path: Path) -> None:
    """Refuse what is no SQLite file before SQLite sees it."""
    with open(path, "rb") as file:
        head = file.read(len(_MAGIC))
    if head and head != _MAGIC:
        raise StoreError(f"{path} is not a database; give another path, or move that file away")


def open_private(path: Path, flags: int) -> int:
    """Open a file beside the database, made with mode 0600 and never through a symlink."""
    return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)


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


class FileLock:
    """The lock that all writers of one file share. Held for a transaction at a time, some milliseconds."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = open_private(self._path, os.O_RDWR)

    def try_acquire(self) -> bool:
        """Take it at once, or return False."""
        return try_lock(self._descriptor)

    async def patiently(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Make the attempt again until it says that it got the lock. Raises StoreError after some seconds."""
        # Trying costs a microsecond and is nearly always enough; only a contended lock is waited for.
        if await attempt():
            return
        pause, deadline = 0.001, anyio.current_time() + _LOCK_TIMEOUT_SECONDS
        while anyio.current_time() < deadline:
            await anyio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
            if await attempt():
                return
        raise StoreError(
            f"{self._path} has been locked by another process for {_LOCK_TIMEOUT_SECONDS:.0f} s; "
            "is it stopped or repricing?"
        )

    def release(self) -> None:
        unlock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
