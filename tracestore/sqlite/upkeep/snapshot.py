"""A copy of a database while others write to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from callboard.bus.errors import StoreError

from ..library import BUSY_TIMEOUT_MS, uri

if TYPE_CHECKING:
    import sqlite3


def copy_snapshot(
    source: Path, target: Path, step_pages: int, told: Callable[[int, int], object], *, immutable: bool = False
) -> None:
    """Copy a database, as it is at this moment, into an empty file. The function blocks; call it in a thread.

    It holds one read transaction from beginning to end. Other writers go on, and no write makes it begin again.

    Args:
        source: The database.
        target: An empty file that exists.
        step_pages: The number of pages in one step.
        told: Called after each step with the number of copied pages and of all pages. If it raises, the copy ends.
        immutable: Whether nobody can write to the source, as for `uri`.

    Raises:
        StoreError: The database can't be copied.
    """
    import sqlite3

    def progress(_status: int, remaining: int, total: int) -> None:
        told(total - remaining, total)

    try:
        with (
            contextlib.closing(_connected(uri(source, "ro", immutable=immutable))) as original,
            contextlib.closing(_connected(uri(target, "rw"))) as copy,
        ):
            original.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            original.execute("BEGIN")
            original.execute("SELECT count(*) FROM sqlite_master").fetchall()
            original.backup(copy, pages=step_pages, progress=progress, sleep=0.01)
            original.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{source} could not be copied to {target}: {error}") from error


def _connected(to: str) -> sqlite3.Connection:
    import sqlite3

    return sqlite3.connect(to, uri=True, isolation_level=None)
