"""`callboard traces`: the calls of a trace file, the newest first."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

import msgspec

from callboard.bus.values.cost_sum import CostSum
from callboard.tracestore import CallRow

from ...store_address import TracePlace
from ..common.arguments import add_filters, call_filter, chosen_trace, positive
from ..common.fitting import FittingTable
from ..common.money import sum_text
from ..common.output import add_format, write
from ..common.reading import from_trace
from ..common.screen import make_console
from ..common.words import moment_text, plural, seconds

ATTEMPTS_PER_CALL = 4
"""The number of attempts that are read for each call that is wanted. Calls have fewer attempts, except during
outages."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("traces", help="Show recorded calls with tokens, latency and cost")
    add_filters(parser)
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most N calls (default 50)")
    add_format(parser, "for each attempt")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    where, limit = call_filter(arguments), arguments.limit
    rows = from_trace(arguments, lambda store: store.calls(where, limit * ATTEMPTS_PER_CALL))
    # Asked for failed calls, nobody means the attempts after which the call went on.
    rows = [row for row in rows if where.status is None or not row.will_retry]
    if arguments.format != "table":
        write(arguments.format, CallRow, rows[: arguments.limit])
        return 0
    show(chosen_trace(arguments), summarise(rows)[: arguments.limit], limited=arguments.limit)
    return 0


def show(trace: TracePlace, calls: list[CallSummary], *, limited: int) -> None:
    console = make_console()
    if not calls:
        console.print(f"No such calls in {trace}.", soft_wrap=True)
        return
    console.print(calls_table(calls))
    more = "; there may be more, see --limit" if len(calls) == limited else ""
    total = sum_text(reduce(add, (call.sum for call in calls)))
    console.print(f"\n{plural(len(calls), 'call')}, {total}, from {trace}{more}", style="dim")


class CallSummary(msgspec.Struct, frozen=True):
    """A call with all its attempts."""

    last: CallRow
    """The latest attempt."""
    attempts: int
    """The number of attempts."""
    input_tokens: int
    """The input tokens of all attempts."""
    output_tokens: int
    """The output tokens of all attempts."""
    sum: CostSum
    """The cost of all attempts together."""


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
    """One line for each call.

    Args:
        calls: The calls.
        when: Whether to show the time and the id of each call, for a file of many. Otherwise calls are numbered.
    """
    table = FittingTable()
    if when:
        table.add_column("time")
        table.add_column("call", may_go=3)
        table.add_column("status")
    else:
        table.add_column("call", justify="right")
    table.add_column("model", folds=True)
    keyed = any(call.last.key is not None for call in calls)
    if keyed:
        table.add_column("key", may_go=1)
    for heading, may_go in (("attempts", 4), ("first token", 5), ("in", 1), ("out", 2), ("cost", 0)):
        table.add_column(heading, justify="right", may_go=may_go)
    for number, call in enumerate(calls, 1):
        row = call.last
        head = [moment_text(row.started_us), f"…{row.request_id[-6:]}", row.status] if when else [str(number)]
        table.add_row(
            *head,
            row.model,
            *((row.key or "-",) if keyed else ()),
            str(call.attempts),
            seconds(row.first_token_ms),
            f"{call.input_tokens:,}",
            f"{call.output_tokens:,}",
            _cost(call),
        )
    return table


def _cost(call: CallSummary) -> str:
    nothing = call.sum.complete and call.last.usage is None and not call.sum.nano_usd
    return "-" if nothing else sum_text(call.sum)
