"""`callboard stats` and `callboard errors`: how fast calls were, and how they failed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.tracestore import ErrorRow, Percentiles, StatisticsRow, Store, cache_savings
from callboard.tracestore.home import home_folder
from callboard.tracestore.prices.home import price_table

from ..common.arguments import add_filters, call_filter
from ..common.fitting import FittingTable
from ..common.money import usd
from ..common.output import add_format, write, write_records
from ..common.reading import from_trace
from ..common.screen import make_console
from ..common.words import moment_text, plural, rate, seconds
from .cost import add_by

if TYPE_CHECKING:
    from rich.console import Console


def add_stats_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("stats", help="Show latency, speed, cache hits and outcomes")
    add_by(parser)
    add_filters(parser)
    add_format(parser, "for each group")
    parser.set_defaults(run=run_stats)


def add_errors_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("errors", help="Count failed attempts by error and model")
    add_filters(parser)
    add_format(parser, "for each class and model")
    parser.set_defaults(run=run_errors)


def run_stats(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    by: tuple[str, ...] = arguments.by
    rows = from_trace(arguments, lambda store: store.statistics(call_filter(arguments), by))
    if arguments.format != "table":
        write_records(arguments.format, (*by, *_COLUMNS), (_record(by, row) for row in rows))
        return 0
    console = make_console()
    if not rows:
        console.print("No such calls.")
        return 0
    table = FittingTable()
    for name in by:
        table.add_column(name, folds=True)
    for heading, may_go in _HEADINGS:
        table.add_column(heading, justify="right", may_go=may_go)
    for row in rows:
        speed = row.tokens_per_second
        table.add_row(
            *(key or "-" for key in row.key),
            f"{row.attempts:,}",
            rate(row.failed / row.attempts) if row.failed else "",
            *_times(row.latency_ms),
            *_times(row.first_token_ms),
            "-" if speed.p50 is None else f"{speed.p50:,.1f}",
            rate(row.cache_hit_rate),
        )
    console.print(table)
    _tell_counts(console, rows)
    if any(row.cached_input_tokens for row in rows):
        _tell_savings(console, arguments)
    refused = from_trace(arguments, lambda store: _refusals(store, arguments))
    if refused:
        console.print(
            f"{plural(refused, 'call')} refused by budgets, see `callboard replay --topic budget.refused`."
        )
    console.print(
        "\nTimes are of attempts: latency of completed ones, first token of all that had one. "
        "tok/s: output after the first token.",
        style="dim",
    )
    return 0


def _tell_savings(console: Console, arguments: argparse.Namespace) -> None:
    prices = price_table(home_folder())
    found = from_trace(arguments, lambda store: cache_savings(store, prices, call_filter(arguments)))
    beside = f"; {plural(found.unpriced, 'call')} without a price" if found.unpriced else ""
    console.print(
        f"\nPrompt caches saved {usd(found.saved_nano_usd)}: {found.cached_input_tokens:,} tokens were read from "
        f"them in {plural(found.calls, 'call')}{beside}.",
        style="dim",
    )


async def _refusals(store: Store, arguments: argparse.Namespace) -> int:
    """The number of calls that budgets refused in the time that is asked for."""
    where = call_filter(arguments)
    return len(await store.events(topic="budget.refused", since=where.since, until=where.until, limit=None))


def _tell_counts(console: Console, rows: Sequence[StatisticsRow]) -> None:
    """Whose tokens are in no sum, or in it by estimate."""
    estimated, unpriced, unknown = (
        sum(getattr(row, name) for row in rows) for name in ("estimated", "unpriced", "unknown")
    )
    told = ((unknown, "of unknown usage"), (estimated, "counted by estimate"), (unpriced, "without a price"))
    beside = ", ".join(f"{plural(count, 'attempt')} {what}" for count, what in told if count)
    if beside:
        console.print(f"\n{beside}.", style="yellow" if unknown else "dim")


_HEADINGS = (
    *(("attempts", 0), ("failed", 0), ("p50", 0), ("p90", 1), ("p99", 4)),
    *(("first token p50", 2), ("first p90", 6), ("first p99", 7), ("tok/s p50", 3), ("cached", 5)),
)
_COUNTS = StatisticsRow.__struct_fields__[1:13]
_COLUMNS = (
    *(*_COUNTS, "cache_hit_rate"),
    *(f"{name}.{part}" for name in StatisticsRow.__struct_fields__[13:] for part in Percentiles.__struct_fields__),
)


def _record(by: Sequence[str], row: StatisticsRow) -> dict[str, Any]:
    values = msgspec.to_builtins(row)
    del values["key"]
    return {**dict(zip(by, row.key, strict=True)), **values, "cache_hit_rate": row.cache_hit_rate}


def _times(found: Percentiles) -> tuple[str, str, str]:
    p50, p90, p99 = (seconds(None if value is None else int(value)) for value in (found.p50, found.p90, found.p99))
    return p50, p90, p99


def run_errors(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    rows = from_trace(arguments, lambda store: store.errors(call_filter(arguments)))
    if arguments.format != "table":
        write(arguments.format, ErrorRow, rows)
        return 0
    console = make_console()
    if not rows:
        console.print("No failed attempts.")
        return 0
    table = FittingTable()
    for heading in ("error", "model"):
        table.add_column(heading, folds=True)
    for heading, may_go in (("attempts", 0), ("final", 2), ("status", 3), ("last", 4)):
        table.add_column(heading, justify="right", may_go=may_go)
    table.add_column("latest message", folds=True, may_go=1)
    for row in rows:
        table.add_row(
            row.error_class,
            row.model,
            f"{row.attempts:,}",
            f"{row.ended:,}",
            "-" if row.provider_status is None else str(row.provider_status),
            moment_text(row.last_us),
            (row.error_message or "-")[:120],
        )
    console.print(table)
    ended = sum(row.ended for row in rows)
    total = plural(sum(row.attempts for row in rows), "failed attempt")
    console.print(f"\n{total}; {plural(ended, 'call')} ended so.", style="dim")
    return 0
