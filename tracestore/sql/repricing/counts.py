"""What a report of a repricing says beside its sums: calls of unknown cost, and calls with estimated usage."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ...queries import CallFilter
from ...reports import RepriceReport
from ...sqlite.database import Statements
from ...timestamps import iso_day
from ..calls.unknown import usage_unknown

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


class Beside(NamedTuple):
    """What is beside the sums of a report. by_model, by_day, by_session: as reports name them.

    in_flight: calls without an end that may match the filter once they have one.
    """

    by_model: dict[str, _Counts]
    by_day: dict[str, _Counts]
    by_session: dict[str, _Counts]
    in_flight: int

    @property
    def estimated(self) -> int:
        return sum(counts.estimated for counts in self.by_model.values())

    @property
    def unknown(self) -> int:
        return sum(counts.unknown for counts in self.by_model.values())


def count_beside(statements: Statements, where: CallFilter, *, by_session: bool) -> Beside:
    """Count what is beside the sums, before the costs of the run are the current ones."""
    return Beside(
        _counts(statements, where, "model"),
        _counts(statements, where, "day"),
        _counts(statements, where, "session_id") if by_session else {},
        _in_flight(statements, where),
    )


def with_counts(report: RepriceReport, beside: Beside) -> RepriceReport:
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


def _counts(statements: Statements, where: CallFilter, column: _Column) -> dict[str, _Counts]:
    """By that column, as reports name its values."""
    found: dict[str, _Counts] = {}
    condition, values = where.condition()
    for name, which in _WHICH.items():
        rows = statements.run(
            f"""
            SELECT coalesce(c.{column}, ''), count(*)
              FROM calls AS c
             WHERE {which} AND ({condition})
             GROUP BY 1
            """,
            values,
        )
        for value, count in rows:
            key = iso_day(int(value)) if column == "day" else str(value)
            found[key] = found.get(key, _Counts())._replace(**{name: int(count)})
    return found


def _in_flight(statements: Statements, where: CallFilter) -> int:
    """Whatever a filter says of how a call ended is open as long as it hasn't."""
    begun = msgspec.structs.replace(
        where, status=None, error_class=None, unpriced=False, unknown=False, min_cost_nano_usd=None
    )
    condition, values = begun.condition()
    ((count,),) = statements.run(
        f"SELECT count(*) FROM calls AS c WHERE c.status = 'started' AND {condition}", values
    )
    return int(count)
