"""Rows of other programs' SQLite files, for imports. The files are only read.

Such a database may be in use, damaged or of an unexpected version. A missing column is left out. A row that is too
large is returned empty. Any other problem is an OSError, which an import reports and skips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import sqlite3

_LONGEST_VALUE = 16 * 1024 * 1024
_EIO = 5


def foreign_rows(
    path: Path, table: str, columns: Sequence[str], order: Sequence[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, one at a time. A row with a value above 16 MiB is empty.

    Raises OSError if the file can't be read as a database, or lacks the table. The text quotes no content.
    """
    import sqlite3

    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.text_factory = _text
            yield from _rows(connection, table, columns, order)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(_EIO, f"not readable as a database ({type(error).__name__})") from None


def _rows(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], order: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    import sqlite3

    existing = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    selected = [name for name in columns if name in existing]
    if not selected:
        raise OSError(_EIO, f"there is no table {table!r} with the expected columns")
    sorting = [name for name in order if name in existing]
    assert all(re.fullmatch(r"\w+", name) for name in (table, *selected, *sorting))
    by = f" ORDER BY {', '.join(sorting)}" if sorting else ""
    # Each row is read by its own statement, because an error in a row ends the statement.
    numbers = [number for (number,) in connection.execute(f"SELECT rowid FROM {table}{by}")]
    for number in numbers:
        try:
            rows = connection.execute(
                f"SELECT {', '.join(selected)} FROM {table} WHERE rowid = ?", (number,)
            ).fetchall()
        except sqlite3.DataError:
            yield {}
        else:
            yield from (dict(zip(selected, row, strict=True)) for row in rows)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
