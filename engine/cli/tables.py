"""The two tables: calls with what they used and cost, and what a repricing changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from tracestore import CallRow, RepriceReport, SessionRow

from .events import seconds
from .money import difference, percent, usd

if TYPE_CHECKING:
    from rich.table import Table

    from .reprice_page import Line


class CallSummary(msgspec.Struct, frozen=True):
    """A call with all its attempts. last: the latest. nano_usd: of all that have a cost; None if none has."""

    last: CallRow
    attempts: int
    input_tokens: int
    output_tokens: int
    nano_usd: int | None


def summarise(rows: Iterable[CallRow]) -> list[CallSummary]:
    """Attempts, the newest first, as calls in the same order."""
    attempts: dict[str, list[CallRow]] = {}
    for row in rows:
        attempts.setdefault(row.request_id, []).append(row)
    return [_summary(group) for group in attempts.values()]


def _summary(group: Sequence[CallRow]) -> CallSummary:
    last = max(group, key=lambda row: row.attempt)
    usages = [row.usage for row in group if row.usage is not None]
    costs = [row.cost.nano_usd for row in group if row.cost is not None and row.cost.nano_usd is not None]
    return CallSummary(
        last,
        last.attempt,
        sum(usage.total_input_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        sum(costs) if costs else None,
    )


def calls_table(calls: Sequence[CallSummary], *, when: bool = True) -> Table:
    """One line for each call. when: with the time and the id of each, for a file of many; else numbered."""
    table = plain_table()
    if when:
        table.add_column("time", no_wrap=True)
        table.add_column("call", no_wrap=True)
        table.add_column("status", no_wrap=True)
    else:
        table.add_column("call", justify="right")
    table.add_column("model", overflow="fold")
    for heading in ("attempts", "first token", "in", "out", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
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


def sessions_table(rows: Iterable[SessionRow]) -> Table:
    """One line for each session; its messages are those that are stored."""
    table = plain_table()
    table.add_column("last", no_wrap=True)
    table.add_column("session", overflow="fold")
    table.add_column("model", overflow="fold")
    for heading in ("turns", "calls", "in", "out", "cost", "messages"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("resume", no_wrap=True)
    for row in rows:
        table.add_row(
            moment_text(row.last_us),
            row.session_id if row.name is None else f"{row.session_id}\n{row.name}",
            row.model or "-",
            f"{row.turns:,}",
            f"{row.calls:,}",
            f"{row.total_input_tokens:,}",
            f"{row.output_tokens:,}",
            sum_text(row.calls, row.unpriced, row.cost_nano_usd),
            f"{row.messages:,}" if row.messages else "-",
            "yes" if row.resumable else "-",
        )
    return table


def reprice_table(report: RepriceReport, by: str = "model") -> Table:
    """One line for each model, day or session, and the sums below."""
    from .reprice_page import lines, total

    rows = lines(report, by)
    table = plain_table(footer=len(rows) > 1)
    everything = total(report)
    table.add_column(by, "all", overflow="fold")
    table.add_column("calls", f"{report.calls:,}", justify="right")
    for heading, sums in zip(("before", "after", "difference", ""), _line_change(everything), strict=True):
        table.add_column(heading, sums, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, f"{row.calls:,}", *_line_change(row))
    return table


def _line_change(line: Line) -> tuple[str, str, str, str]:
    return _change(line.calls, (line.unpriced_before, line.before), (line.unpriced, line.after))


def _change(calls: int, before: tuple[int, int], after: tuple[int, int]) -> tuple[str, str, str, str]:
    """Before, after, the difference and the per cent; before, after: how many calls are unpriced, and the sum.

    A difference is told only between sums over the same calls.
    """
    shown = [sum_text(calls, *side) for side in (before, after)]
    if before[0] or after[0]:
        return (shown[0], shown[1], "", "")
    return (shown[0], shown[1], difference(before[1], after[1]), percent(before[1], after[1]))


def sum_text(calls: int, unpriced: int, nano_usd: int) -> str:
    """A sum over so many calls, with how many of them are in no sum."""
    if calls and unpriced == calls:
        return "unpriced"
    return f"{usd(nano_usd)} + {unpriced} unpriced" if unpriced else usd(nano_usd)


def plain_table(*, footer: bool = False) -> Table:
    """A table without lines; footer: with a line of sums below."""
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE if footer else box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_footer=footer,
        pad_edge=False,
        show_edge=False,
        header_style="dim",
        footer_style="bold",
    )


def _cost(call: CallSummary) -> str:
    if call.nano_usd is not None:
        return usd(call.nano_usd)
    return "-" if call.last.usage is None else "unpriced"


def rate(part: float | None) -> str:
    """A part of a whole in per cent; a dash if there is no whole."""
    return "-" if part is None else f"{part * 100:.1f}%"


def moment_text(ts_us: int | None) -> str:
    """Local time; with its date unless that is today."""
    if ts_us is None:
        return "-"
    moment = datetime.fromtimestamp(ts_us // 1_000_000).astimezone()
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")
