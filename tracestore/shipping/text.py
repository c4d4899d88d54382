"""Rows as text that a server's COPY takes: CSV with control characters in the place of commas and quotes.

All values stand between quotes, and NULL as one more control character, which the server is told to take for NULL
in quotes, too. So rows are made by joining texts, whatever is in them. Where a text has one of those characters in
it, the rows are made value by value instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from ..sql.connection import SqlValue

_BETWEEN = "\x1f"
QUOTE = "\x02"
"""The sign on both sides of a value. In the value it is doubled."""
_NULL = "\x1e"
_END = "\n"
_ROWS_AT_ONCE = 250
"""Rows of usual size are what psycopg passes on in one go then."""

_OPTIONS = f"FORMAT csv, DELIMITER '{_BETWEEN}', QUOTE '{QUOTE}', NULL '{_NULL}'"


class Lines(msgspec.Struct, frozen=True):
    """Rows of one table, but for the number of the run that each belongs to. The server has its own numbers."""

    columns: tuple[str, ...]
    """The columns, but for the run and those that are NULL in all rows."""
    options: str
    """The options of COPY with which the text is to be read."""
    runs: Sequence[int]
    """Of each row the number of its run in the file."""
    rows: list[str]
    """Of each row the text of the other values, but for what stands at the begin and at the end of all rows."""
    begin: str
    """What stands between the number of the run and the text of a row."""
    end: str
    """What stands behind the text of a row."""

    def parts(self, runs: Mapping[int, int]) -> Iterator[bytes]:
        """The text of all rows, some at a time, each with the server's number of its run before it. It is UTF-8.

        A text of all rows would be some megabytes, which the system would have to make room for each time.

        Args:
            runs: The server's numbers of the runs, by their numbers in the file.
        """
        before = {number: f"{there}{self.begin}" for number, there in runs.items()}
        for place in range(0, len(self.rows), _ROWS_AT_ONCE):
            rows = self.rows[place : place + _ROWS_AT_ONCE]
            if len(before) > 1:
                runs_of = self.runs[place : place + _ROWS_AT_ONCE]
                text = "".join([before[run] + row + self.end for run, row in zip(runs_of, rows, strict=True)])
            else:
                (begin,) = before.values()
                text = f"{begin}{f'{self.end}{begin}'.join(rows)}{self.end}"
            yield text.encode("utf-8", "surrogatepass")  # the server refuses half a surrogate pair


def lines_of(names: Sequence[str], runs: Sequence[int], columns: Sequence[Sequence[SqlValue]]) -> Lines:
    """Rows as text.

    Args:
        names: The names of the columns.
        runs: Of each row the number of its run in the file.
        columns: The values, column by column.
    """
    missing = {name: column.count(None) for name, column in zip(names, columns, strict=True)}
    some = [place for place, name in enumerate(names) if missing[name] < len(runs)] or [0]
    names, columns = tuple(names[place] for place in some), [columns[place] for place in some]
    with_nulls = [name for name in names if missing[name]]
    options = f"{_OPTIONS}, FORCE_NULL ({', '.join(with_nulls)})" if with_nulls else _OPTIONS
    try:
        texts = [_texts(column, missing[name]) for name, column in zip(names, columns, strict=True)]
        rows = list(map(f"{QUOTE}{_BETWEEN}{QUOTE}".join, zip(*texts, strict=True)))
        return Lines(names, options, runs, rows, f"{_BETWEEN}{QUOTE}", f"{QUOTE}{_END}")
    except (TypeError, _SignInText):  # a column has values of several types
        return Lines(names, _OPTIONS, runs, list(map(_row, zip(*columns, strict=True))), _BETWEEN, _END)


class _SignInText(Exception):
    """A text has one of our signs in it."""


def _texts(column: Sequence[SqlValue], missing: int) -> Sequence[str]:
    """The values of a column as text. In a column of several types, values that are no text may be left.

    Raises:
        _SignInText: A sign that stands between values or for NULL is in a text.
        TypeError: The column has values of several types.
    """
    if isinstance(next((value for value in column if value is not None), ""), int):
        encoded = msgspec.json.encode(column).decode()  # many times as fast as str
        if '"' in encoded or encoded.count("null") != missing:
            raise TypeError("not all of them are whole numbers")
        texts = encoded[1:-1].split(",")
        return [_NULL if text == "null" else text for text in texts] if missing else texts
    if missing:
        if _NULL in column:
            raise _SignInText
        column = [_NULL if value is None else value for value in column]
    if QUOTE in "".join(column):  # type: ignore[arg-type]
        raise _SignInText
    return column  # type: ignore[return-value]


def _row(values: Iterable[SqlValue]) -> str:
    return _BETWEEN.join(map(_value, values))


def _value(value: SqlValue) -> str:
    return _NULL if value is None else f"{QUOTE}{str(value).replace(QUOTE, QUOTE * 2)}{QUOTE}"
