"""SQL that somebody typed: it may only read, for so long and so much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from callboard.bus.errors import StoreError

from ..reports import SqlResult
from ..sql.connection import SqlValue
from .late_events import WholeTrace
from .schema.migrations import check


async def select(path: Path, sql: str, parameters: Sequence[SqlValue], *, limit: int, seconds: float) -> SqlResult:
    """Run one statement on a connection of its own that can't write. It sees the events of dead processes, too.

    Args:
        path: The trace file.
        sql: The statement.
        parameters: The values of its parameters.
        limit: The largest number of rows.
        seconds: The time that the statement may take.

    Raises:
        StoreError: The statement does anything but read, is no SQL, or takes too long.
        ValueError: A parameter or a limit is impossible.
    """
    if limit < 0 or seconds <= 0:
        raise ValueError("limit must not be negative, and seconds must be positive")
    database = WholeTrace(path)
    await database.open(check)
    try:
        columns, rows = await database.select(sql, parameters, limit=limit + 1, seconds=seconds)
    except TimeoutError:
        raise StoreError(
            f"{path}: the statement took longer than {seconds:g} s; narrow it, or allow it more time"
        ) from None
    finally:
        await database.close()
    return SqlResult(tuple(columns), tuple(rows[:limit]), len(rows) > limit)
