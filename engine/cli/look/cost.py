"""`callboard cost`: what stored calls used and cost, summed by whatever one likes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

from callboard.bus.values.cost_sum import CostSum
from callboard.tracestore import CostRow, Store
from callboard.tracestore.filters import DIMENSIONS

from ..common.arguments import add_filters, call_filter
from ..common.fitting import FittingTable
from ..common.money import tell_beside, usd
from ..common.output import add_format, write_records
from ..common.reading import from_trace, price_version
from ..common.screen import make_console
from ..common.words import rate

_MAY_GO = {"calls": 3, "in": 4, "out": 5, "cached": 6, "at call time": 1, "estimated": 2}
_FIGURES = tuple(name for name in CostRow.__struct_fields__ if name not in ("key", "by"))
_SHORT = {"session": "session_id", "turn": "turn_id", "class": "error_class", "served": "served_model"}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("cost", help="Sum up costs by model, day, session or tag")
    add_by(parser)
    add_filters(parser)
    parser.add_argument(
        "--under", metavar="VERSION", help="the costs under this price version (default: the current)"
    )
    add_format(parser, "for each group")
    parser.set_defaults(run=run)


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


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    by: tuple[str, ...] = arguments.by
    rows = from_trace(arguments, partial(_read, arguments))
    if arguments.format != "table":
        write_records(arguments.format, (*by, *_FIGURES, "cache_hit_rate"), map(_record, rows))
        return 0
    show(rows, by)
    return 0


async def _read(arguments: argparse.Namespace, store: Store) -> list[CostRow]:
    by: tuple[str, ...] = arguments.by
    under = await price_version(store, arguments.under)
    rows = await store.costs(call_filter(arguments), by, under=under)
    if "day" in by:  # days are read in their order; within one the dearest comes first
        rows.sort(key=lambda row: row.key[by.index("day")])
    return rows


def _record(row: CostRow) -> dict[str, Any]:
    figures = {name: getattr(row, name) for name in _FIGURES}
    return {**dict(zip(row.by, row.key, strict=True)), **figures, "cache_hit_rate": row.cache_hit_rate}


def show(rows: Sequence[CostRow], by: Sequence[str]) -> None:
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
