"""The counts beside the sums of a repricing: calls of unknown cost, and calls with estimated usage."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...calls import CallFilter
from ...reports import RepriceReport
from ...timestamps import iso_day
from ..calls.unknown import usage_unknown
from ..calls.where import condition
from ..connection import Statements

_MODEL, _DAY, _SESSION = "coalesce(c.model, '')", "c.day + 0", "coalesce(c.session_id, '')"
"""Columns to group by; as expressions, or SQLite would walk the index on days and with that all calls."""

_WHICH = {
    "estimated": "c.usage_source = 'estimated'",
    "unknown": f"c.usage_source IS NULL AND {usage_unknown('c')}",
}
"""Conditions, each with that of an index: otherwise all calls would be read."""


class _Counts(NamedTuple):
    estimated: int = 0
    unknown: int = 0


class CountsBeside(NamedTuple):
    """The counts beside the sums of a report, by model, day and session as reports name them."""

    by_model: dict[str, _Counts]
    by_day: dict[str, _Counts]
    by_session: dict[str, _Counts]
    in_flight: int
    """Calls without an end that may match the filter once they have one."""

    @property
    def estimated(self) -> int:
        return sum(counts.estimated for counts in self.by_model.values())

    @property
    def unknown(self) -> int:
        return sum(counts.unknown for counts in self.by_model.values())


def count_beside(statements: Statements, where: CallFilter, *, by_session: bool) -> CountsBeside:
    """Count the calls beside the sums, before the costs of the run are the current ones."""
    return CountsBeside(
        _counts(statements, where, _MODEL),
        _counts(statements, where, _DAY),
        _counts(statements, where, _SESSION) if by_session else {},
        _in_flight(statements, where),
    )


def with_counts(report: RepriceReport, beside: CountsBeside) -> RepriceReport:
    """The report with these counts, as a whole and line by line."""
    none = _Counts()

    def counted(line: msgspec.Struct, counts: _Counts) -> msgspec.Struct:
        return msgspec.structs.replace(line, **counts._asdict())

    return msgspec.structs.replace(
        report,
        estimated=beside.estimated,
        unknown=beside.unknown,
        in_flight=beside.in_flight,
        models=tuple(counted(line, beside.by_model.get(line.model, none)) for line in report.models),
        days=tuple(counted(line, beside.by_day.get(line.day, none)) for line in report.days),
        sessions=tuple(counted(line, beside.by_session.get(line.session_id, none)) for line in report.sessions),
    )


def _counts(statements: Statements, where: CallFilter, column: str) -> dict[str, _Counts]:
    """The counts by a column, whose values are named as reports name them."""
    found: dict[str, _Counts] = {}
    which_calls, values = condition(where, statements.dialect)
    for name, which in _WHICH.items():
        rows = statements.run(
            f"""
            SELECT {column}, count(*)
              FROM calls AS c
             WHERE {which} AND ({which_calls})
             GROUP BY 1
            """,
            values,
        )
        for value, count in rows:
            key = iso_day(value) if column == _DAY else value
            found[key] = found.get(key, _Counts())._replace(**{name: int(count)})
    return found


def _in_flight(statements: Statements, where: CallFilter) -> int:
    """Calls without an end. The conditions of a filter on how a call ended don't count for them."""
    begun = msgspec.structs.replace(
        where, status=None, error_class=None, unpriced=False, unknown=False, min_cost_nano_usd=None
    )
    which, values = condition(begun, statements.dialect)
    ((count,),) = statements.run(f"SELECT count(*) FROM calls AS c WHERE c.status = 'started' AND {which}", values)
    return int(count)
