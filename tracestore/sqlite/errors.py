"""What SQLite raises, as what the store raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from callboard.bus.errors import StoreError, StoreUnavailable


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Whatever SQLite says of the file at `path` is a StoreError; if it may pass, a StoreUnavailable."""
    import sqlite3

    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
            raise StoreUnavailable(f"{path}: {error}", reopen=False) from error
        if code in _of_the_file():
            raise StoreUnavailable(f"{path}: {error}") from error
        raise StoreError(f"{path}: {error}") from error


def _of_the_file() -> tuple[int, ...]:
    """SQLite's codes for a file that the connection can't use, and perhaps another one could."""
    import sqlite3

    return (
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN),
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_PROTOCOL),
    )
