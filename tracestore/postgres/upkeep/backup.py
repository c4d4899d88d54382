"""What to do for a copy of a trace in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from callboard.bus.errors import StoreError

from ..database import Database


def refuse_backup(database: Database, path: Path | str) -> StoreError:
    """The error that says how PostgreSQL's own programs make a copy, without the password of the DSN."""
    return StoreError(
        f"{database.name}: a trace in PostgreSQL is copied by PostgreSQL's own programs, which no store runs:"
        f" pg_dump --format=custom --schema={database.schema} --file={path} DSN, and pg_restore to bring it back;"
        " a whole server by pg_basebackup"
    )
