"""`callboard reprice`: what the calls of a trace file cost under other prices, and back again."""

from __future__ import annotations

import argparse
from pathlib import Path

import anyio

from bus import ConfigurationError, StoreError
from tracestore import PriceTable, RepriceReport, TraceStore

from .events import plural
from .filters import add_filters, call_filter, chosen_file
from .places import command_name, short
from .screen import make_console
from .tables import reprice_table

AT_CALL_TIME = "call-time"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "reprice",
        help="what stored calls cost under other prices",
        description="Works out what stored calls cost under a price table, and makes that their current cost. "
        "Events and the costs at call time stay as they are, so it can be undone.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prices", type=Path, metavar="FILE", help="price file; its newest table is taken")
    source.add_argument(
        "--use",
        metavar="VERSION",
        help=f"go back to the costs of an earlier version, or with '{AT_CALL_TIME}' to those at call time",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", metavar="V", help="the file's table with this version, or its beginning")
    which.add_argument("--label", metavar="L", help="the file's table with this in its label")
    parser.add_argument("--dry-run", action="store_true", help="only report")
    parser.add_argument(
        "--as-model", metavar="M", help="as if this provider:name had served all calls; only a report"
    )
    add_filters(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    path = chosen_file(arguments)
    if arguments.use is not None:
        return _use(path, arguments.use)
    table = choose_table(arguments.prices, arguments.version, arguments.label)
    report = anyio.run(_reprice, path, table, arguments)
    show(report, path)
    return 0


def choose_table(prices: Path, version: str | None, label: str | None) -> PriceTable:
    """The one table of a price file that is meant. Raises ConfigurationError, naming those that there are."""
    tables = PriceTable.all_from_yaml(prices)
    fitting = [
        table
        for table in tables
        if (version is None or table.version.startswith(version))
        and (label is None or label.casefold() in table.label.casefold())
    ]
    if version is None and label is None:
        return tables[-1]
    if len(fitting) == 1:
        return fitting[0]
    wanted = f"version {version!r}" if version is not None else f"label {label!r}"
    there = ", ".join(f"{table.version} ({table.label})" for table in tables)
    found = "no table has" if not fitting else "several tables have"
    raise ConfigurationError(f"{prices}: {found} {wanted}; there are {there}")


async def _reprice(path: Path, table: PriceTable, arguments: argparse.Namespace) -> RepriceReport:
    only_look = arguments.dry_run or arguments.as_model is not None
    async with _open(path, readonly=only_look) as store:
        return await store.reprice(
            table, where=call_filter(arguments), dry_run=arguments.dry_run, as_model=arguments.as_model
        )


def _open(path: Path, *, readonly: bool) -> TraceStore:
    """A file that exists: repricing is no reason to make one. Raises StoreError."""
    if readonly:
        return TraceStore.open_readonly(path)
    if not path.exists():
        raise StoreError(f"there is no trace file at {path}")
    return TraceStore(path)


def show(report: RepriceReport, path: Path) -> None:
    console = make_console()
    console.print(f"{_title(report)}\n", style="bold", soft_wrap=True)
    if not report.calls:
        console.print(f"No calls with token counts fit, in {path}.", soft_wrap=True)
        return
    console.print(reprice_table(report))
    console.print()
    if report.unpriced:
        console.print(
            f"{plural(report.unpriced, 'call')} without a price in this table, and in no sum.", style="yellow"
        )
    if report.dry_run:
        console.print("Nothing was changed.", style="dim")
    else:
        back = report.previous_version or AT_CALL_TIME
        command = f"{command_name()} reprice --use {back} --db {short(path)}"
        console.print(f"To go back: {command}", style="dim", soft_wrap=True)


def _title(report: RepriceReport) -> str:
    prices = f"{report.label or 'prices'} ({report.version})"
    return f"As if on {report.as_model}, under {prices}" if report.as_model else f"Under {prices}"


def _use(path: Path, version: str) -> int:
    anyio.run(_use_prices, path, None if version == AT_CALL_TIME else version)
    named = "at call time" if version == AT_CALL_TIME else f"under price version {version}"
    make_console().print(f"The current costs are those {named} again.", soft_wrap=True)
    return 0


async def _use_prices(path: Path, version: str | None) -> None:
    async with _open(path, readonly=False) as store:
        await store.use_prices(version)
