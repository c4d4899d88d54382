"""The facts that the file system and SQLite's library report about a trace file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from .sqlite.statements import needs_file_lock, sqlite_version

__all__ = ["FileFacts", "file_facts", "sqlite_version"]


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the file system reports about a trace file at one time."""

    path: Path
    exists: bool
    size: int
    """The size of the file in bytes."""
    folder: Path
    """The nearest existing folder above the file."""
    writable: bool
    """Whether this process can write the file."""
    open_to_others: tuple[Path, ...]
    """The files of the trace that other users than the owner can read."""
    free_bytes: int
    """The free space of the disk in bytes."""
    sqlite_version: str
    file_lock: bool
    """Whether writers lock ``<file>.lock`` around each transaction, for the reason in `locking`."""
    locking: str
    """How writers lock the file, as text."""


def file_facts(path: Path) -> FileFacts:
    """Examine the file and its folder. Nothing is opened or created."""
    import shutil  # lazy: it imports five compression libraries

    folder = next((parent for parent in path.parents if parent.exists()), path.parent)
    beside = [path.with_name(path.name + ending) for ending in ("", "-wal", "-shm", ".lock")]
    exists = os.path.lexists(path)
    writable = os.access(folder, os.W_OK | os.X_OK) and (not exists or os.access(path, os.W_OK))
    return FileFacts(
        path=path,
        exists=exists,
        size=path.lstat().st_size if exists else 0,
        folder=folder,
        writable=writable,
        open_to_others=tuple(
            file
            for file in beside
            if os.name == "posix" and file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077
        ),
        free_bytes=shutil.disk_usage(folder).free,
        sqlite_version=sqlite_version(),
        file_lock=needs_file_lock(),
        locking=_locking(path),
    )


def _locking(path: Path) -> str:
    version = sqlite_version()
    if needs_file_lock():
        return (
            f"SQLite {version} can lose rows when two connections write a WAL file concurrently (fixed "
            f"in 3.51.3, 3.50.7 and 3.44.6), so writers take turns on {path.name}.lock"
        )
    return f"SQLite {version} needs no lock file: concurrent writers are safe"
