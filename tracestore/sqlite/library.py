"""The SQLite that Python was built with, and how it is told which file to open."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import quote

BUSY_TIMEOUT_MS = 5_000
"""How long SQLite itself waits for a lock that another connection holds."""


def uri(path: Path, mode: Literal["ro", "rw"], *, immutable: bool = False) -> str:
    """The URI of a file that exists, to be opened with ``uri=True``.

    Args:
        path: The file.
        mode: ``ro`` only reads.
        immutable: Whether nobody writes the file, so that nothing lies beside it.
    """
    return f"file:{quote(str(path.absolute()))}?mode={mode}{'&immutable=1' if immutable else ''}"


def sqlite_version() -> str:
    """Of the library that Python was built with."""
    import sqlite3

    return sqlite3.sqlite_version


def needs_file_lock() -> bool:
    """Whether this SQLite can corrupt a WAL file that two connections write."""
    import sqlite3

    version = sqlite3.sqlite_version_info
    return not (version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45))
