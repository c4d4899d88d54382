"""`callboard import`: import calls that other programs recorded into the trace."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from callboard.bus import ConfigurationError
from callboard.tracestore import Store
from callboard.tracestore.home import home_folder

from ..current_prices import load_prices
from ..imports.importer import ImportedModel, Importer, ImportReport
from ..imports.source import source_names
from ..stores import TracePlace, store_to_read, store_to_write
from .command_line import FAILED
from .options import TRACE_NAME, add_trace, moment, named_trace, short
from .screen import make_console
from .table import Column as Shown
from .table import FittingTable, Format, add_format, figure, plural, usd, write_records
from .upkeep import show_progress

_LISTED = 20
"""The maximum number of unreadable parts that are shown."""
_MODEL = ("model", *ImportedModel.__struct_fields__)


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Import the calls that another program recorded, with their tokens, times, projects and sessions. Each is "
        "priced at its own time. A call is imported once, no matter how often its file is read. Contents stay "
        "out, unless you use --content."
    )
    parser.add_argument("source", metavar="SOURCE", help=f"the program: {', '.join(source_names())}")
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files, folders, or LiteLLM's database as postgresql://… (default: where the program keeps them)",
    )
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="leave out calls before this day or time, or 24h or 7d ago"
    )
    parser.add_argument("--watch", action="store_true", help="continue with new calls until interrupted")
    parser.add_argument("--content", action="store_true", help="store the messages, too")
    parser.add_argument("--dry-run", action="store_true", help="only report")
    add_trace(parser, "$CALLBOARD_HOME/trace.db")
    add_format(parser, "for each model")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.watch and arguments.dry_run:
        raise ConfigurationError("use --watch or --dry-run, not both")
    named = named_trace(arguments)
    place: TracePlace = home_folder() / TRACE_NAME if named is None else named
    report = anyio.run(_import, place, arguments)
    _show(report, arguments.format, place)
    return FAILED if report.unread and not report.files else 0


async def _import(place: TracePlace, arguments: argparse.Namespace) -> ImportReport:
    async with _opened(place, dry_run=arguments.dry_run) as store:
        importer = Importer(
            store,
            arguments.source,
            arguments.paths or None,
            prices=load_prices(None),
            since=arguments.since,
            content=arguments.content,
            dry_run=arguments.dry_run,
            progress=_progress,
        )
        report = await importer.run()
        if arguments.watch:
            _show(report, arguments.format, place)
            await importer.watch(changed=_print_change)
        return report


@asynccontextmanager
async def _opened(place: TracePlace, *, dry_run: bool) -> AsyncIterator[Store | None]:
    """The store of a trace; None for a dry run without a trace."""
    if not dry_run:
        async with store_to_write(place) as store:
            yield store
    elif isinstance(place, Path) and not place.exists():
        yield None
    else:
        async with store_to_read(place) as reader:
            yield reader


def _progress(report: ImportReport) -> None:
    show_progress(f"{report.bytes_read / 1e6:,.0f} MB, {plural(report.new, 'new call')}")


def _print_change(report: ImportReport) -> None:
    cost = usd(sum(each.nano_usd for each in report.models.values()))
    corrected = f", {report.corrected:,} corrected" if report.corrected else ""
    make_console().print(f"{plural(report.new, 'new call')}{corrected}, {cost}", soft_wrap=True)


def _show(report: ImportReport, form: Format, place: TracePlace) -> None:
    models = sorted(report.models.items(), key=lambda each: (-each[1].nano_usd, each[0]))
    if form != "table":
        records: list[Any] = [{"model": model, **msgspec.to_builtins(total)} for model, total in models]
        write_records(form, _MODEL, records)
        return
    console = make_console()
    unchanged = f" ({report.unchanged:,} unchanged)" if report.unchanged else ""
    console.print(f"{plural(report.files, 'file')}{unchanged} of {report.source}.", soft_wrap=True)
    would = "would be new" if report.dry_run else "new"
    skipped = f", {report.skipped:,} too old" if report.skipped else ""
    console.print(
        f"Calls: {report.new:,} {would}, {report.known:,} known, {report.corrected:,} corrected{skipped}. "
        f"Unread: {report.unread:,}.",
        soft_wrap=True,
    )
    if models:
        console.print()
        console.print(FittingTable(_columns(models), models))
    for fault in report.faults[:_LISTED]:
        line = f" line {fault.line}" if fault.line else ""
        console.print(f"{fault.path}{line}: {fault.why}", style="yellow", soft_wrap=True)
    if report.unread > _LISTED:
        console.print(f"and {report.unread - _LISTED:,} more", style="yellow")
    if not report.dry_run and report.changed:
        where = f" --db {short(place)}" if isinstance(place, Path) and place != home_folder() / TRACE_NAME else ""
        console.print(f"\nNext: callboard cost --by day,model --source {report.source}{where}", style="dim")


def _columns(models: list[tuple[str, ImportedModel]]) -> list[Shown[tuple[str, ImportedModel]]]:
    total = ImportedModel()
    for _, each in models:
        for name in ImportedModel.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(each, name))
    columns: list[Shown[tuple[str, ImportedModel]]] = [
        Shown("model", lambda row: row[0], folds=True, footer="all"),
        figure("calls", lambda row: f"{row[1].calls:,}", footer=f"{total.calls:,}"),
        figure("in", lambda row: f"{row[1].input_tokens:,}", may_go=2, footer=f"{total.input_tokens:,}"),
        figure("out", lambda row: f"{row[1].output_tokens:,}", may_go=3, footer=f"{total.output_tokens:,}"),
        figure("cost", lambda row: _cost(row[1]), footer=_cost(total)),
    ]
    if total.unpriced:
        columns.append(figure("unpriced", lambda row: f"{row[1].unpriced or '':}", footer=f"{total.unpriced:,}"))
    return columns


def _cost(total: ImportedModel) -> str:
    return "unpriced" if total.unpriced == total.calls and total.calls else usd(total.nano_usd)
