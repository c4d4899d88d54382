"""What a report of a repricing says beside its sums: calls of unknown cost, and calls with estimated usage."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from .database import Database
from .insert import SqlValue
from .moments import iso_day
from .queries import CallFilter
from .reprice_runs import RepriceReport
from .unknown import usage_unknown

REPRICE_COUNTS = (
    "ALTER TABLE reprice_run ADD COLUMN estimated INTEGER",
    "ALTER TABLE reprice_run ADD COLUMN unknown INTEGER",
)

_Column: TypeAlias = Literal["model", "day", "session_id"]

_WHICH = {
    "estimated": "c.usage_source = 'estimated'",
    "unknown": f"c.usage_source IS NULL AND {usage_unknown('c')}",
}
"""Each with the condition of an index, or all calls would be read."""


class _Counts(NamedTuple):
    estimated: int = 0
    unknown: int = 0


async def with_counts(
    database: Database, report: RepriceReport, where: CallFilter, last_call: int
) -> RepriceReport:
    """The report with both counts, as a whole and line by line; of the calls up to `last_call`."""
    by_model = await _counts(database, where, last_call, "model")
    by_day = await _counts(database, where, last_call, "day")
    by_session = await _counts(database, where, last_call, "session_id") if report.sessions else {}
    none = _Counts()

    def counted(line: msgspec.Struct, counts: _Counts) -> msgspec.Struct:
        return msgspec.structs.replace(line, **counts._asdict())

    return msgspec.structs.replace(
        report,
        estimated=sum(counts.estimated for counts in by_model.values()),
        unknown=sum(counts.unknown for counts in by_model.values()),
        models=tuple(counted(line, by_model.get(line.model, none)) for line in report.models),
        days=tuple(counted(line, by_day.get(line.day, none)) for line in report.days),
        sessions=tuple(counted(line, by_session.get(line.session_id, none)) for line in report.sessions),
    )


async def _counts(database: Database, where: CallFilter, last_call: int, column: _Column) -> dict[str, _Counts]:
    """By that column, as reports name its values."""
    found: dict[str, _Counts] = {}
    condition, values = where.condition()
    parameters: list[SqlValue] = [last_call, *values]
    for name, which in _WHICH.items():
        rows = await database.read(
            f"""
            SELECT coalesce(c.{column}, ''), count(*)
              FROM calls AS c
             WHERE {which} AND c.id <= ? AND ({condition})
             GROUP BY 1
            """,
            parameters,
        )
        for value, count in rows:
            key = iso_day(int(value)) if column == "day" else str(value)
            found[key] = found.get(key, _Counts())._replace(**{name: int(count)})
    return found
