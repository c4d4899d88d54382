"""Calls one by one: the newest first, or page by page in the order in which they were stored."""

from __future__ import annotations

import msgspec

from callboard.bus.values.messages import RoutingDecision

from ...filters import CallFilter
from ...rows import CallRow
from ..connection import Dialect, Row, Sql, at_most
from .columns import USAGE_COLUMNS, cost_columns, cost_of, tags_of, usage_of
from .current_costs import NOW_NANO, with_cost
from .where import condition

_SEVERAL = {"call_id", "usage", "at_call_time", "cost"}
"""The fields of a row that no column has under the same name."""

_NAMES = tuple(name for name in CallRow.__struct_fields__ if name not in _SEVERAL)
_COLUMNS = ("id", *_NAMES, *USAGE_COLUMNS, *cost_columns("cost"), *cost_columns("now"))
_USAGE_AT = 1 + len(_NAMES)
_COST_AT = _USAGE_AT + len(USAGE_COLUMNS)
_NOW_AT = _COST_AT + len(cost_columns("cost"))

_warnings = msgspec.json.Decoder(tuple[str, ...])
_routing = msgspec.json.Decoder(RoutingDecision)


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
    named = dict(zip(_NAMES, row[1:_USAGE_AT], strict=True))
    named["tags"] = tags_of(named["tags"])
    named["warnings"] = _warnings.decode(named["warnings"]) if named["warnings"] else ()
    named["routing"] = _routing.decode(named["routing"]) if named["routing"] else None
    for flag in ("streamed", "will_retry"):
        named[flag] = None if named[flag] is None else bool(named[flag])
    named["retry_count"] = named["retry_count"] or 0
    named["resent"] = bool(named["resent"])
    named["operation"] = named["operation"] or "chat"
    return CallRow(
        call_id=row[0],
        usage=usage_of(row[_USAGE_AT:_COST_AT]),
        at_call_time=cost_of(row[_COST_AT:_NOW_AT]),
        cost=cost_of(row[_NOW_AT:]),
        **named,
    )
