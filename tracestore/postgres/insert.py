"""Many rows in one statement: each column goes over as an array, whatever the number of rows.

The text of such a statement never changes, so the server prepares it once. An INSERT that updates what is there
can't touch a row twice, so rows of the same key go into statements of their own, in their order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..sql.connection import Insert, SqlValue

_UPDATED_KEY = re.compile(r"\s*ON CONFLICT \(([^)]*)\) DO UPDATE")


def statements_for(
    insert: Insert, values: list[SqlValue], types: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """The statements to execute, with their parameters, for rows whose values follow one another in `values`.

    Args:
        insert: The INSERT.
        values: The values, row after row.
        types: The types of the table's columns.
    """
    if not values:
        return
    width = len(insert.columns)
    of_columns = tuple(types[name] for name in insert.columns)
    sql = _statement(insert, of_columns)
    for rows in _rounds(insert, values):
        columns = [values[at::width] for at in range(width)] if rows is None else _picked(values, rows, width)
        yield sql, [_array(column, type_) for column, type_ in zip(columns, of_columns, strict=True)]


def _picked(values: list[SqlValue], rows: Sequence[int], width: int) -> list[list[SqlValue]]:
    return [[values[row * width + at] for row in rows] for at in range(width)]


def _rounds(insert: Insert, values: list[SqlValue]) -> Iterable[Sequence[int] | None]:
    """The rows of each statement by their places; None stands for all of them."""
    key = _updated_key(insert)
    if not key:
        return (None,)
    width = len(insert.columns)
    names = list(zip(*(values[at::width] for at in key), strict=True))
    if len(set(names)) == len(names):
        return (None,)
    rounds: list[list[int]] = []
    seen: dict[tuple[SqlValue, ...], int] = {}
    for place, name in enumerate(names):
        number = seen[name] = seen.get(name, -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds


@functools.cache
def _updated_key(insert: Insert) -> tuple[int, ...]:
    found = _UPDATED_KEY.match(insert.conflict)
    return () if found is None else tuple(insert.columns.index(name.strip()) for name in found[1].split(","))


@functools.cache
def _statement(insert: Insert, types: tuple[str, ...]) -> str:
    arrays = ", ".join(f"CAST(%s AS {type_}[])" for type_ in types)
    columns = ", ".join(insert.columns)
    return f"INSERT INTO {insert.table} ({columns}) SELECT * FROM unnest({arrays}) {insert.conflict}"


def _array(values: list[SqlValue], type_: str) -> str:
    """An array as PostgreSQL reads it. That is several times as fast as psycopg's own way."""
    if type_ == "text":
        parts = ["NULL" if value is None else _quoted(value) for value in values]
    else:
        parts = ["NULL" if value is None else str(value) for value in values]
    return f"{{{','.join(parts)}}}"


def _quoted(value: SqlValue) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
