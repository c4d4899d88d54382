"""Rows as text that a server's COPY takes: CSV with control characters in the place of commas and quotes.

A row is made by Python's ``%`` in one go, where that is possible: every value between quotes, NULL as ``None``,
which the server is told to take for NULL in quotes, too. Where a text has a quote in it, or is the word ``None``,
all rows are made value by value instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..sql.connection import SqlValue

_BETWEEN = "\x1f"
QUOTE = "\x02"
"""The sign on both sides of a value. In the value it is doubled."""
_END = "\n"
_NULL = "\x1e"
_OPTIONS = f"FORMAT csv, DELIMITER '{_BETWEEN}', QUOTE '{QUOTE}'"


class Lines(msgspec.Struct, frozen=True):
    """Rows of one table, but for the number of the run that each belongs to. The server has its own numbers."""

    columns: tuple[str, ...]
    """The columns, but for the run and those that are NULL in all rows."""
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
        if len(before) == 1:
            (start,) = before.values()
            text = start + start.join(self.rows)
        else:
            text = "".join([before[run] + row for run, row in zip(self.runs, self.rows, strict=True)])
        return text.encode("utf-8", "surrogatepass")  # the server refuses half a surrogate pair


def lines_of(
    names: tuple[str, ...],
    runs: Sequence[int],
    columns: Sequence[Sequence[SqlValue]],
    *,
    may_have_quotes: bool = True,
) -> Lines:
    """Rows as text.

    Args:
        names: The names of the columns.
        runs: Of each row the number of its run in the file.
        columns: The values, column by column.
        may_have_quotes: Whether `QUOTE` may be in a text, which takes a look at each.
    """
    some = [place for place, column in enumerate(columns) if column.count(None) < len(column)] or [0]
    names, columns = tuple(names[place] for place in some), [columns[place] for place in some]
    pattern = f"{QUOTE}{f'{QUOTE}{_BETWEEN}{QUOTE}'.join(['%s'] * len(names))}{QUOTE}{_END}"
    rows = [pattern % row for row in zip(*columns, strict=True)]
    quotes = 2 * len(names) * len(rows)
    has_quotes = may_have_quotes and "".join(rows).count(QUOTE) > quotes
    if not has_quotes and not any("None" in column for column in columns):
        return Lines(names, f"{_OPTIONS}, NULL 'None', FORCE_NULL ({', '.join(names)})", runs, rows)
    return Lines(names, f"{_OPTIONS}, NULL '{_NULL}'", runs, [_line(row) for row in zip(*columns, strict=True)])


def _line(row: Iterable[SqlValue]) -> str:
    return _BETWEEN.join(map(_value, row)) + _END


def _value(value: SqlValue) -> str:
    return _NULL if value is None else f"{QUOTE}{str(value).replace(QUOTE, QUOTE * 2)}{QUOTE}"
