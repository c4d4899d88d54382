"""`callboard cost`: what stored calls used and cost, summed by whatever one likes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import anyio

from bus import ConfigurationError
from tracestore import CostRow, TraceStore
from tracestore.dimensions import DIMENSIONS

from .events import plural
from .filters import add_filters, call_filter, chosen_file
from .fitting import FittingTable
from .money import usd
from .output import add_format, write_records
from .screen import make_console
from .tables import rate

_MAY_GO = {"calls": 2, "in": 3, "out": 4, "cached": 5, "at call time": 1}
_SHORT = {"session": "session_id", "turn": "turn_id", "class": "error_class", "served": "served_model"}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("cost", help="what calls cost, by model, day, session, tag and more")
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
    rows = anyio.run(_read, arguments)
    if arguments.format != "table":
        fields = (*CostRow.__struct_fields__[1:], "cache_hit_rate")
        write_records(arguments.format, (*by, *fields), (_record(by, row) for row in rows))
        return 0
    show(rows, by)
    return 0


async def _read(arguments: argparse.Namespace) -> list[CostRow]:
    async with TraceStore.open_readonly(chosen_file(arguments)) as store:
        under: str | None = arguments.under
        if under is not None:
            known = [table.version for table in await store.price_tables()]
            fitting = [version for version in known if version.startswith(under)]
            if len(fitting) != 1:
                raise ConfigurationError(
                    f"--under {under}: {'several' if fitting else 'no'} price versions begin so; "
                    f"the file knows {', '.join(known) or 'none'}"
                )
            under = fitting[0]
        rows = await store.costs(call_filter(arguments), arguments.by, under=under)
    by: tuple[str, ...] = arguments.by
    if "day" in by:  # days are read in their order; within one the dearest comes first
        rows.sort(key=lambda row: row.key[by.index("day")])
    return rows


def _record(by: Sequence[str], row: CostRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in CostRow.__struct_fields__[1:]}
    return {**dict(zip(by, row.key, strict=True)), **values, "cache_hit_rate": row.cache_hit_rate}


def show(rows: Sequence[CostRow], by: Sequence[str]) -> None:
    console = make_console()
    calls = sum(row.calls for row in rows)
    if not calls:
        console.print("No such calls.")
        return
    unpriced = sum(row.unpriced for row in rows)
    unpriced_then = sum(row.at_call_time_unpriced for row in rows)
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
        ("cost", _amount(unpriced, sum(row.cost_nano_usd for row in rows))),
        ("at call time", _amount(unpriced_then, sum(row.at_call_time_nano_usd for row in rows))),
        ("unpriced", f"{unpriced:,}" if unpriced else ""),
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
            _amount(row.unpriced, row.cost_nano_usd),
            _amount(row.at_call_time_unpriced, row.at_call_time_nano_usd),
            f"{row.unpriced:,}" if row.unpriced else "",
        )
    console.print(table)
    if unpriced:
        console.print(f"\n{plural(unpriced, 'call')} without a price, and in no sum.", style="yellow")
    estimated = sum(row.estimated for row in rows)
    if estimated:
        console.print(f"{plural(estimated, 'call')} counted by estimate.", style="dim")


def _amount(unpriced: int, nano_usd: int) -> str:
    """A sum; nothing but calls without a price is not nothing."""
    return "unpriced" if unpriced and not nano_usd else usd(nano_usd)
