"""Many rows with few statements.

For every statement sqlite3 gives up the GIL and takes it back. Beside an event loop that works, each of those
costs more than ten rows do, and can take milliseconds. So there are statements for 1, 2, 4 ... 64 rows, and where
a few rows are missing for one, the last row is given again. The ON CONFLICT clause makes that harmless.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ..sql.connection import Insert, SqlValue

_ROWS_AT_ONCE = 64


def statements_for(insert: Insert, values: list[SqlValue]) -> Iterator[tuple[str, list[SqlValue]]]:
    """The statements to execute, with their parameters, for rows whose values follow one another in `values`."""
    width = len(insert.columns)
    begin, rows = 0, len(values) // width
    while rows:
        size = min(_ROWS_AT_ONCE, 1 << (rows - 1).bit_length())
        if size - rows > size // 4:
            size //= 2
        parameters = values[begin : begin + size * width]
        if size > rows:
            parameters += values[-width:] * (size - rows)
        yield _statement(insert, size), parameters
        begin += size * width
        rows = max(0, rows - size)


@functools.cache
def _statement(insert: Insert, rows: int) -> str:
    row = f"({', '.join('?' * len(insert.columns))})"
    into = f"INSERT INTO {insert.table} ({', '.join(insert.columns)})"
    return f"{into} VALUES {', '.join([row] * rows)} {insert.conflict}"
