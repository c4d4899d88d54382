"""The two tables: calls with what they used and cost, and what a repricing changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import msgspec

from bus.values.cost_sum import CostSum
from tracestore import CallRow, RepriceReport, SessionRow
from tracestore.timestamps import iso_moment

from ..look.events import plural, seconds
from ..reprice.lines import By, Line, lines, total
from .fitting import FittingTable
from .money import difference, percent, sum_text, usd

if TYPE_CHECKING:
    from rich.console import Console


class CallSummary(msgspec.Struct, frozen=True):
    """A call with all its attempts. last: the latest. sum: what they cost together."""

    last: CallRow
    attempts: int
    input_tokens: int
    output_tokens: int
    sum: CostSum


def summarise(rows: Iterable[CallRow]) -> list[CallSummary]:
    """Attempts, the newest first, as calls in the same order."""
    attempts: dict[str, list[CallRow]] = {}
    for row in rows:
        attempts.setdefault(row.request_id, []).append(row)
    return [_summary(group) for group in attempts.values()]


def _summary(group: Sequence[CallRow]) -> CallSummary:
    last = max(group, key=lambda row: row.attempt)
    usages = [row.usage for row in group if row.usage is not None]
    return CallSummary(
        last,
        last.attempt,
        sum(usage.total_input_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        reduce(add, (row.sum for row in group)),
    )


def calls_table(calls: Sequence[CallSummary], *, when: bool = True) -> FittingTable:
    """One line for each call. when: with the time and the id of each, for a file of many; else numbered."""
    table = FittingTable()
    if when:
        table.add_column("time")
        table.add_column("call", may_go=3)
        table.add_column("status")
    else:
        table.add_column("call", justify="right")
    table.add_column("model", folds=True)
    for heading, may_go in (("attempts", 4), ("first token", 5), ("in", 1), ("out", 2), ("cost", 0)):
        table.add_column(heading, justify="right", may_go=may_go)
    for number, call in enumerate(calls, 1):
        row = call.last
        head = [moment_text(row.started_us), f"…{row.request_id[-6:]}", row.status] if when else [str(number)]
        table.add_row(
            *head,
            row.model,
            str(call.attempts),
            seconds(row.first_token_ms),
            f"{call.input_tokens:,}",
            f"{call.output_tokens:,}",
            _cost(call),
        )
    return table


def sessions_table(rows: Iterable[SessionRow]) -> FittingTable:
    """One line for each session; its messages are those that are stored."""
    table = FittingTable()
    table.add_column("last")
    table.add_column("session")  # whole: it is what one copies
    table.add_column("model", folds=True, may_go=1)
    numbers = (("turns", 2), ("calls", 3), ("in", 4), ("out", 5), ("cost", 0), ("messages", 6))
    for heading, may_go in numbers:
        table.add_column(heading, justify="right", may_go=may_go)
    table.add_column("resume")
    for row in rows:
        table.add_row(
            moment_text(row.last_us),
            row.session_id if row.name is None else (row.session_id, row.name),
            row.model or "-",
            f"{row.turns:,}",
            f"{row.calls:,}",
            f"{row.total_input_tokens:,}",
            f"{row.output_tokens:,}",
            sum_text(session_sum(row)),
            f"{row.messages:,}" if row.messages else "-",
            "yes" if row.resumable else "-",
        )
    return table


def reprice_table(report: RepriceReport, by: By = "model") -> FittingTable:
    """One line for each model, day or session, and the sums below.

    The sums are over the calls with a cost before and after; a last column counts the others, if there are any.
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


def session_sum(row: SessionRow) -> CostSum:
    """What a session cost, as a sum."""
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)


def _cost(call: CallSummary) -> str:
    nothing = call.sum.complete and call.last.usage is None and not call.sum.nano_usd
    return "-" if nothing else sum_text(call.sum)


def tell_beside(console: Console, total: CostSum, unpriced: str = "without a price") -> None:
    """What a sum doesn't have, and what in it is an estimate, one line each. unpriced: in other words."""
    if total.unpriced:
        console.print(f"{plural(total.unpriced, 'call')} {unpriced}, and in no sum.", style="yellow")
    if total.unknown:
        console.print(
            f"{plural(total.unknown, 'call')} of unknown cost, and in no sum: cut off before any usage was known, "
            "or without an end.",
            style="yellow",
            soft_wrap=True,
        )
    if total.estimated:
        console.print(f"{plural(total.estimated, 'call')} counted by estimate.", style="dim")


def rate(part: float | None) -> str:
    """A part of a whole in per cent; a dash if there is no whole."""
    return "-" if part is None else f"{part * 100:.1f}%"


def moment_text(ts_us: int | None) -> str:
    """Local time; with its date unless that is today."""
    if ts_us is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(ts_us // 1_000_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return iso_moment(ts_us)  # of a clock that was set to nonsense
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")
