"""`callboard traces`: the calls of a trace file, the newest first."""

from __future__ import annotations

import argparse
from functools import reduce
from operator import add
from pathlib import Path

import anyio

from tracestore import CallFilter, CallRow, TraceStore

from ..common.filters import add_filters, call_filter, chosen_file, positive
from ..common.money import sum_text
from ..common.output import add_format, write
from ..common.screen import make_console
from ..common.tables import CallSummary, calls_table, summarise
from .events import plural

ATTEMPTS_PER_CALL = 4
"""How many attempts are read for each call that is wanted; more than calls have, but for outages."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("traces", help="the calls of a trace file, with tokens, times and costs")
    add_filters(parser)
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most N calls (default 50)")
    add_format(parser, "for each attempt")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    path = chosen_file(arguments)
    rows = anyio.run(_read, path, call_filter(arguments), arguments.limit)
    if arguments.format != "table":
        write(arguments.format, CallRow, rows[: arguments.limit])
        return 0
    show(path, summarise(rows)[: arguments.limit], limited=arguments.limit)
    return 0


async def _read(path: Path, where: CallFilter, limit: int) -> list[CallRow]:
    async with TraceStore.open_readonly(path) as store:
        rows = await store.calls(where, limit * ATTEMPTS_PER_CALL)
    # Asked for failed calls, nobody means the attempts after which the call went on.
    return [row for row in rows if where.status is None or not row.will_retry]


def show(path: Path, calls: list[CallSummary], *, limited: int) -> None:
    console = make_console()
    if not calls:
        console.print(f"No such calls in {path}.", soft_wrap=True)
        return
    console.print(calls_table(calls))
    more = "; there may be more, see --limit" if len(calls) == limited else ""
    total = sum_text(reduce(add, (call.sum for call in calls)))
    console.print(f"\n{plural(len(calls), 'call')}, {total}, from {path}{more}", style="dim")
