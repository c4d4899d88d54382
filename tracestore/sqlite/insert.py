"""Many rows with few statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

SqlValue: TypeAlias = str | int | float | bytes | None

_ROWS_AT_ONCE = 64


class Insert:
    """An INSERT of any number of rows, with few statements: that is a matter of threads more than of SQLite.

    For every statement sqlite3 gives up the GIL and takes it back. Beside an event loop that works, each of those
    costs more than ten rows do, and can take milliseconds. So there are statements for 1, 2, 4 ... 64 rows, and
    where a few rows are missing for one, the last row is given again.

    conflict: the ON CONFLICT clause, which must make it harmless that a row is inserted twice.
    """

    def __init__(self, table: str, columns: Sequence[str], conflict: str) -> None:
        self.width = len(columns)
        self._into = f"INSERT INTO {table} ({', '.join(columns)}) VALUES "
        self._row = f"({', '.join('?' * self.width)})"
        self._conflict = conflict
        self._sql: dict[int, str] = {}

    def statements(self, values: list[SqlValue]) -> Iterator[tuple[str, list[SqlValue]]]:
        """What to execute, each with its parameters, for rows whose values follow one another in `values`."""
        width = self.width
        begin, rows = 0, len(values) // width
        while rows:
            size = min(_ROWS_AT_ONCE, 1 << (rows - 1).bit_length())
            if size - rows > size // 4:
                size //= 2
            parameters = values[begin : begin + size * width]
            if size > rows:
                parameters += values[-width:] * (size - rows)
            yield self._statement(size), parameters
            begin += size * width
            rows = max(0, rows - size)

    def _statement(self, rows: int) -> str:
        sql = self._sql.get(rows)
        if sql is None:
            sql = self._sql[rows] = f"{self._into}{', '.join([self._row] * rows)} {self._conflict}"
        return sql
