"""A `CallFilter` in SQL: with parameters, never with values in the text."""

from __future__ import annotations

from ...calls import CallFilter
from ...timestamps import to_us
from ..connection import Dialect, Sql, SqlValue
from .current_costs import CURRENT_NANO
from .unknown import usage_unknown

_EQUAL = ("provider", "session_id", "request_id", "status", "turn_id", "error_class", "key")
"""Fields of a filter that a column of the same name must equal."""


def condition(where: CallFilter, dialect: Dialect, cost: str = CURRENT_NANO) -> Sql:
    """A condition on ``calls AS c``.

    Args:
        where: The filter.
        dialect: The dialect of the database.
        cost: An expression for a call's nano-USD. Without one, the condition looks the current cost up.
    """
    parts: list[str] = ["TRUE"]
    values: list[SqlValue] = []

    def add(sql: str, *parameters: SqlValue) -> None:
        parts.append(sql)
        values.extend(parameters)

    if where.since is not None:
        add("c.ts_us >= ?", to_us(where.since))
    if where.until is not None:
        add("c.ts_us < ?", to_us(where.until))
    for name in _EQUAL:
        value = getattr(where, name)
        if value is not None:
            add(f"c.{name} = ?", value)
    if where.model is not None:
        add(*_of_model(where.model, dialect))
    if where.operation is not None:
        add("coalesce(c.operation, 'chat') = ?", where.operation)
    if where.unpriced:
        add(f"c.usage_source IS NOT NULL AND {cost} IS NULL")
    if where.unknown:
        add(usage_unknown("c"))
    if where.min_cost_nano_usd is not None:
        add(f"{cost} >= ?", where.min_cost_nano_usd)
    for key, text in (where.tags or {}).items():
        add("c.id IN (SELECT t.call_id FROM call_tags AS t WHERE t.key = ? AND t.value = ?)", key, text)
    return " AND ".join(parts), values


def _of_model(model: str, dialect: Dialect) -> tuple[str, SqlValue] | tuple[str, SqlValue, SqlValue]:
    name = model.removesuffix("*")
    column = "c.model" if ":" in name else dialect.behind("c.model", ":")
    if name == model:
        return f"{column} = ?", name
    return f"substr({column}, 1, CAST(? AS INTEGER)) = ?", len(name), name
