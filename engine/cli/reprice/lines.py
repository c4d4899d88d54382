"""What a repricing changed, line by line: the same for the table, the page and the rows for programs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from callboard.bus.values.cost_sum import CostSum
from callboard.tracestore import RepriceReport, RepriceSums

from ..common.money import usd

By: TypeAlias = Literal["model", "day", "session"]

_FIELDS = (
    *("calls", "compared", "before_nano_usd", "after_nano_usd", "difference_nano_usd"),
    *("newly_priced", "newly_priced_nano_usd", "no_longer_priced", "no_longer_priced_nano_usd"),
    *("unpriced_before", "unpriced", "estimated", "unknown"),
)


class Line(msgspec.Struct, frozen=True):
    """A row of a comparison."""

    name: str
    """The model, day or session."""
    sums: RepriceSums
    """The sums of its calls. `before` and `after` are in nano-USD, over the calls that have a cost on both
    sides."""

    @property
    def calls(self) -> int:
        return self.sums.calls

    @property
    def before(self) -> int:
        return self.sums.before_nano_usd

    @property
    def after(self) -> int:
        return self.sums.after_nano_usd

    @property
    def sum(self) -> CostSum:
        """What all its calls cost after."""
        sums = self.sums
        calls = sums.calls + sums.unknown
        return CostSum(sums.all_after_nano_usd, calls, sums.estimated, sums.unpriced, sums.unknown)

    @property
    def comparable(self) -> bool:
        """Whether there is anything to compare: a call with a cost before and after."""
        return self.sums.compared > 0 or self.calls == 0

    @property
    def beside(self) -> tuple[str, ...]:
        """The calls that are in neither sum, in words."""
        sums = self.sums
        never = sums.unpriced - sums.no_longer_priced
        said = (
            (sums.no_longer_priced, f"no longer priced ({usd(sums.no_longer_priced_nano_usd)} before)"),
            (sums.newly_priced, f"newly priced ({usd(sums.newly_priced_nano_usd)})"),
            (never, "unpriced"),
            (sums.unknown, "unknown"),
        )
        return tuple(f"{count:,} {words}" for count, words in said if count)


def lines(report: RepriceReport, by: By) -> list[Line]:
    """The report by ``model``, ``day`` or ``session``."""
    match by:
        case "model":
            return [Line(row.model, row) for row in report.models]
        case "day":
            return [Line(row.day, row) for row in report.days]
        case "session":
            return [Line(row.session_id or "(no session)", row) for row in report.sessions]


def total(report: RepriceReport) -> Line:
    """All calls of the report."""
    return Line("all", report.total)


def columns(by: By) -> list[str]:
    """The fields of `records`."""
    return [by, *_FIELDS]


def records(report: RepriceReport, by: By) -> list[dict[str, Any]]:
    """The lines for a program.

    before_nano_usd and after_nano_usd are sums over the `compared` calls, which have a cost on both sides. Without
    such calls the difference is None.
    """
    return [_record(by, line) for line in lines(report, by)]


def _record(by: By, line: Line) -> dict[str, Any]:
    difference = line.after - line.before if line.comparable else None
    found = {name: getattr(line.sums, name) for name in _FIELDS if name != "difference_nano_usd"}
    return {by: line.name, **{name: found.get(name, difference) for name in _FIELDS}}
