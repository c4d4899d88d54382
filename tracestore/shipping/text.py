"""Rows as text that a server's COPY takes: CSV with control characters in the place of commas and quotes.

A row is made by Python's ``%`` in one go, where that is possible: every value between quotes, NULL as ``None``,
which the server is told to take for NULL in quotes, too. Where a text has a quote in it, or is the word ``None``,
all rows are made value by value instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..sql.connection import Row, SqlValue

_BETWEEN = "\x1f"
_QUOTE = "\x02"
_END = "\n"
_NULL = "\x1e"
_OPTIONS = f"FORMAT csv, DELIMITER '{_BETWEEN}', QUOTE '{_QUOTE}'"


class Lines(msgspec.Struct, frozen=True):
    """Rows of one table, but for the number of the run that each belongs to. The server has its own numbers."""

    columns: tuple[str, ...]
    """The columns, but for the run."""
    options: str
    """The options of COPY with which the text is to be read."""
    runs: Sequence[int]
    """Of each row the number of its run in the file."""
    rows: list[str]
    """Of each row the text of the other values."""

    def text(self, runs: Mapping[int, int]) -> bytes:
        """The text of all rows, each with the server's number of its run before it. It is UTF-8.

        Args:
            runs: The server's numbers of the runs, by their numbers in the file.
        """
        before = {number: f"{there}{_BETWEEN}" for number, there in runs.items()}
        text = "".join([before[run] + row for run, row in zip(self.runs, self.rows, strict=True)])
        return text.encode("utf-8", "surrogatepass")  # the server refuses half a surrogate pair


def lines_of(columns: tuple[str, ...], runs: Sequence[int], rows: Sequence[Row]) -> Lines:
    """Rows as text.

    Args:
        columns: The columns.
        runs: Of each row the number of its run in the file.
        rows: The values of the columns, as tuples.
    """
    pattern = f"{_QUOTE}{f'{_QUOTE}{_BETWEEN}{_QUOTE}'.join(['%s'] * len(columns))}{_QUOTE}{_END}"
    made = [pattern % row for row in rows]
    quotes = 2 * len(columns) * len(rows)
    if "".join(made).count(_QUOTE) == quotes and not any("None" in row for row in rows):
        return Lines(columns, f"{_OPTIONS}, NULL 'None', FORCE_NULL ({', '.join(columns)})", runs, made)
    return Lines(columns, f"{_OPTIONS}, NULL '{_NULL}'", runs, [_line(row) for row in rows])


def _line(row: Iterable[SqlValue]) -> str:
    return _BETWEEN.join(map(_value, row)) + _END


def _value(value: SqlValue) -> str:
    return _NULL if value is None else f"{_QUOTE}{str(value).replace(_QUOTE, _QUOTE * 2)}{_QUOTE}"
