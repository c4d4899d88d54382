"""What a repricing changed, line by line: the same for the table, the page and the rows for programs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from bus.cost_sum import CostSum
from tracestore import RepriceReport

By: TypeAlias = Literal["model", "day", "session"]


class Line(msgspec.Struct, frozen=True):
    """A row of a comparison; amounts in nano-USD.

    unpriced_before, unpriced: so many of its calls have no cost, before and after; they are in no amount.
    estimated: so many have usage that was estimated. unknown: so many more have no usage that is known.
    """

    name: str
    calls: int
    unpriced_before: int
    before: int
    unpriced: int
    after: int
    estimated: int = 0
    unknown: int = 0

    @property
    def sum_before(self) -> CostSum:
        """What its calls cost before."""
        return self._sum(self.before, self.unpriced_before)

    @property
    def sum(self) -> CostSum:
        """What its calls cost after."""
        return self._sum(self.after, self.unpriced)

    def _sum(self, nano_usd: int, unpriced: int) -> CostSum:
        return CostSum(nano_usd, self.calls + self.unknown, self.estimated, unpriced, self.unknown)

    @property
    def comparable(self) -> bool:
        """A difference means something only between sums over the same calls."""
        return self.unpriced == self.unpriced_before == 0


def lines(report: RepriceReport, by: By) -> list[Line]:
    """The report by ``model``, ``day`` or ``session``."""
    match by:
        case "model":
            return [_line(row.model, row) for row in report.models]
        case "day":
            return [_line(row.day, row) for row in report.days]
        case "session":
            return [_line(row.session_id or "(no session)", row) for row in report.sessions]


def _line(name: str, row: msgspec.Struct) -> Line:
    parts = ("calls", "unpriced_before", "before_nano_usd", "unpriced", "after_nano_usd", "estimated", "unknown")
    return Line(name, *(getattr(row, part) for part in parts))


def total(report: RepriceReport) -> Line:
    """All calls of the report."""
    return Line(
        "all",
        report.calls,
        report.unpriced_before,
        report.sum_before_nano_usd,
        report.unpriced,
        report.sum_after_nano_usd,
        report.estimated,
        report.unknown,
    )


def columns(by: By) -> list[str]:
    """The fields of `records`."""
    amounts = ("unpriced_before", "before_nano_usd", "unpriced", "after_nano_usd", "difference_nano_usd")
    return [by, "calls", *amounts, "estimated", "unknown"]


def records(report: RepriceReport, by: By) -> list[dict[str, Any]]:
    """The lines for a program; difference_nano_usd is None where the two sums aren't over the same calls."""
    return [
        {
            by: line.name,
            "calls": line.calls,
            "unpriced_before": line.unpriced_before,
            "before_nano_usd": line.before,
            "unpriced": line.unpriced,
            "after_nano_usd": line.after,
            "difference_nano_usd": line.after - line.before if line.comparable else None,
            "estimated": line.estimated,
            "unknown": line.unknown,
        }
        for line in lines(report, by)
    ]
