"""`callboard cost`, `stats` and `errors`: what recorded calls cost, how fast they were, and how they failed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.bus.values.cost_sum import CostSum
from callboard.tracestore import CostRow, ErrorRow, Percentiles, StatisticsRow, Store, cache_savings
from callboard.tracestore.filters import DIMENSIONS
from callboard.tracestore.home import home_folder
from callboard.tracestore.prices.home import price_table

from .common.figures import moment_text, plural, rate, seconds, tell_beside, usd
from .common.options import add_filters, call_filter, from_trace, price_version
from .common.screen import make_console
from .common.table import FittingTable, add_format, write, write_records

if TYPE_CHECKING:
    from rich.console import Console


_MAY_GO = {"calls": 3, "in": 4, "out": 5, "cached": 6, "at call time": 1, "estimated": 2}
_FIGURES = tuple(name for name in CostRow.__struct_fields__ if name not in ("key", "by"))
_SHORT = {"session": "session_id", "turn": "turn_id", "class": "error_class", "served": "served_model"}


def add_cost(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("cost", help="Sum up costs by model, day, session or tag")
    add_by(parser)
    add_filters(parser)
    parser.add_argument(
        "--under", metavar="VERSION", help="the costs under this price version (default: the current)"
    )
    add_format(parser, "for each group")
    parser.set_defaults(run=run_cost)


def add_by(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        type=dimensions,
        default=("model",),
        metavar="A,B",
        help=f"group by these (default model): {', '.join((*_SHORT, *DIMENSIONS))}, tag:KEY; or 'total'",
    )


def dimensions(text: str) -> tuple[str, ...]:
    if text == "total":
        return ()
    names = tuple(_SHORT.get(name, name) for name in text.split(",") if name)
    for name in names:
        if name not in DIMENSIONS and not (name.startswith("tag:") and len(name) > 4):
            raise argparse.ArgumentTypeError(
                f"{name!r} is nothing to group by; there are {', '.join((*_SHORT, *DIMENSIONS))} and tag:KEY"
            )
    return names


def run_cost(arguments: argparse.Namespace) -> int:
    by: tuple[str, ...] = arguments.by
    rows = from_trace(arguments, partial(_read, arguments))
    if arguments.format != "table":
        write_records(arguments.format, (*by, *_FIGURES, "cache_hit_rate"), map(_cost_record, rows))
        return 0
    _show_costs(rows, by)
    return 0


async def _read(arguments: argparse.Namespace, store: Store) -> list[CostRow]:
    by: tuple[str, ...] = arguments.by
    under = await price_version(store, arguments.under)
    rows = await store.costs(call_filter(arguments), by, under=under)
    if "day" in by:  # days are read in their order; within one the dearest comes first
        rows.sort(key=lambda row: row.key[by.index("day")])
    return rows


def _cost_record(row: CostRow) -> dict[str, Any]:
    figures = {name: getattr(row, name) for name in _FIGURES}
    return {**dict(zip(row.by, row.key, strict=True)), **figures, "cache_hit_rate": row.cache_hit_rate}


def _show_costs(rows: Sequence[CostRow], by: Sequence[str]) -> None:
    console = make_console()
    calls = sum(row.calls for row in rows)
    if not calls:
        console.print("No such calls.")
        return
    total_now, total_then = reduce(add, map(_now, rows)), reduce(add, map(_then, rows))
    some = [name for name in ("unknown", "estimated") if getattr(total_now, name)]
    many = len(rows) > 1
    table = FittingTable(footer=many)
    totals = ("all", *[""] * (len(by) - 1)) if by else ()
    for name, total in zip(by, totals, strict=True):
        table.add_column(name, total, folds=True)
    sums = (
        ("calls", f"{calls:,}"),
        ("in", f"{sum(row.total_input_tokens for row in rows):,}"),
        ("cached", ""),
        ("out", f"{sum(row.output_tokens for row in rows):,}"),
        ("cost", _amount(total_now)),
        ("at call time", _amount(total_then)),
        ("unpriced", _count(total_now.unpriced)),
        *((name, _count(getattr(total_now, name))) for name in some),
    )
    for heading, total in sums:
        table.add_column(heading, total, justify="right", may_go=_MAY_GO.get(heading, 0))
    for row in rows:
        table.add_row(
            *(key or "-" for key in row.key),
            f"{row.calls:,}",
            f"{row.total_input_tokens:,}",
            rate(row.cache_hit_rate),
            f"{row.output_tokens:,}",
            _amount(_now(row)),
            _amount(_then(row)),
            *(_count(getattr(row, name)) for name in ("unpriced", *some)),
        )
    console.print(table)
    if not total_now.complete or total_now.estimated:
        console.print()
    tell_beside(console, total_now)


def _now(row: CostRow) -> CostSum:
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)


def _then(row: CostRow) -> CostSum:
    return CostSum(row.at_call_time_nano_usd, row.calls, row.estimated, row.at_call_time_unpriced, row.unknown)


def _count(calls: int) -> str:
    return f"{calls:,}" if calls else ""


def _amount(total: CostSum) -> str:
    """A sum as text. A sum of calls without any known cost is shown as unknown, and not as zero."""
    if total.nano_usd or total.complete:
        return usd(total.nano_usd)
    return "unpriced" if total.unpriced else "unknown"


# -- stats and errors


def add_stats(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("stats", help="Show latency, speed, cache hits and outcomes")
    add_by(parser)
    add_filters(parser)
    add_format(parser, "for each group")
    parser.set_defaults(run=run_stats)


def add_errors(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("errors", help="Count failed attempts by error and model")
    add_filters(parser)
    add_format(parser, "for each class and model")
    parser.set_defaults(run=run_errors)


def run_stats(arguments: argparse.Namespace) -> int:
    by: tuple[str, ...] = arguments.by
    rows = from_trace(arguments, lambda store: store.statistics(call_filter(arguments), by))
    if arguments.format != "table":
        write_records(arguments.format, (*by, *_COLUMNS), (_statistics_record(by, row) for row in rows))
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


def _statistics_record(by: Sequence[str], row: StatisticsRow) -> dict[str, Any]:
    values = msgspec.to_builtins(row)
    del values["key"]
    return {**dict(zip(by, row.key, strict=True)), **values, "cache_hit_rate": row.cache_hit_rate}


def _times(found: Percentiles) -> tuple[str, str, str]:
    p50, p90, p99 = (seconds(None if value is None else int(value)) for value in (found.p50, found.p90, found.p99))
    return p50, p90, p99


def run_errors(arguments: argparse.Namespace) -> int:
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
