"""Calls one by one: the newest first, or page by page in the order in which they were stored."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec

from ...calls import COLUMNS, CallFilter, CallRow, Column
from ..connection import Dialect, Row, Sql, at_most
from .columns import USAGE_COLUMNS, cost_columns, cost_of, usage_of
from .current_costs import NOW_NANO, with_cost
from .where import condition

_COLUMNS = ("id", *COLUMNS, *USAGE_COLUMNS, *cost_columns("cost"), *cost_columns("now"))
_USAGE_AT = 1 + len(COLUMNS)
_COST_AT = _USAGE_AT + len(USAGE_COLUMNS)
_NOW_AT = _COST_AT + len(cost_columns("cost"))


def _reader(column: Column) -> Callable[[Any], object] | None:
    """What makes a value of its column in Python; None if it is the same there."""
    unset = column.default
    if column.kind == "json":
        decode = msgspec.json.Decoder(column.type).decode
        return lambda text: decode(text) if text else copy(unset)
    if column.kind == "bool":
        return lambda number: unset if number is None else bool(number)
    return None if unset is None else lambda value: unset if value is None else value


_READERS = [(name, read) for name, column in COLUMNS.items() if (read := _reader(column)) is not None]


def calls_query(where: CallFilter | None, under: str | None, limit: int | None, dialect: Dialect) -> Sql:
    """The query for calls, the newest first."""
    priced, values = with_cost(under, *condition(where or CallFilter(), dialect, NOW_NANO))
    limited, most = at_most(limit)
    sql = f"""
        WITH priced AS ({priced})
        SELECT {", ".join(_COLUMNS)}
          FROM priced
         ORDER BY ts_us DESC, id DESC
         {limited}
    """
    return sql, [*values, *most]


def calls_after_query(
    where: CallFilter | None, under: str | None, after_id: int, limit: int, dialect: Dialect
) -> Sql:
    """The query for calls in the order of `call_id`, which is that of their storing."""
    which, values = condition(where or CallFilter(), dialect)
    page = f"{which} AND c.id > ? ORDER BY c.id LIMIT ?"
    priced, values = with_cost(under, page, [*values, after_id, limit])
    return f"WITH priced AS ({priced}) SELECT {', '.join(_COLUMNS)} FROM priced ORDER BY id", values


def call_row(row: Row) -> CallRow:
    """A row of `calls_query` as a CallRow."""
    named: dict[str, Any] = dict(zip(COLUMNS, row[1:_USAGE_AT], strict=True))
    for name, read in _READERS:
        named[name] = read(named[name])
    return CallRow(
        call_id=row[0],
        usage=usage_of(row[_USAGE_AT:_COST_AT]),
        at_call_time=cost_of(row[_COST_AT:_NOW_AT]),
        cost=cost_of(row[_NOW_AT:]),
        **named,
    )
