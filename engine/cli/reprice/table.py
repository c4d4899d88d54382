"""The table of a repricing: costs before and after."""

from __future__ import annotations

from callboard.tracestore import RepriceReport

from ..common.fitting import FittingTable
from ..common.money import difference, percent, usd
from .lines import By, Line, lines, total


def reprice_table(report: RepriceReport, by: By = "model") -> FittingTable:
    """One line for each model, day or session, and the sums below.

    The sums are over the calls with a cost before and after. A last column counts the other calls, if there are
    any.
    """
    rows = lines(report, by)
    table = FittingTable(footer=len(rows) > 1)
    everything = total(report)
    table.add_column(by, "all", folds=True)
    table.add_column("calls", f"{report.calls:,}", justify="right", may_go=1)
    for heading, sums in zip(("before", "after", "difference", ""), _change(everything), strict=True):
        table.add_column(heading, sums, justify="right", may_go=0 if heading else 2)
    if everything.beside:
        table.add_column("beside these", ", ".join(everything.beside), folds=True)
    for row in rows:
        beside = [", ".join(row.beside)] if everything.beside else []
        table.add_row(row.name, f"{row.calls:,}", *_change(row), *beside)
    return table


def _change(line: Line) -> tuple[str, str, str, str]:
    """Before, after, the difference and the per cent."""
    if not line.comparable:
        return ("-", "-", "", "")
    before, after = line.before, line.after
    return (usd(before), usd(after), difference(before, after), percent(before, after))
