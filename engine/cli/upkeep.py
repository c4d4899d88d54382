"""`callboard import`, `prune`, `backup`, `upgrade` and `ship`: fill and maintain a trace."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from callboard.bus import ConfigurationError, StoreError
from callboard.tracestore import PruneReport, Store
from callboard.tracestore.home import home_folder

from ..current_prices import load_prices
from ..imports.importer import ImportedModel, Importer, ImportReport
from ..imports.source import source_names
from ..stores import StoreAddress, TracePlace, existing_store, store_to_read, store_to_write
from .command_line import FAILED
from .options import (
    OWN_TRACE,
    STORE_VARIABLE,
    TRACE_NAME,
    add_trace,
    chosen_trace,
    default_trace,
    flag,
    moment,
    named_trace,
    short,
    store_address,
    store_of_environment,
    trace_file,
)
from .screen import make_console
from .table import Column, FittingTable, Format, add_format, count, figure, plural, usd, write_records

_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def add_prune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Delete old calls, their data, and events. It works in small steps, so that other programs can "
        "write to the file. Calls in progress are kept. Try it with --dry-run first."
    )
    add_trace(parser)
    parser.add_argument(
        "--older-than", type=age, metavar="AGE", help="delete calls that ended longer ago, such as 90d, 12h or 8w"
    )
    parser.add_argument(
        "--max-size", type=size, metavar="SIZE", help="delete the oldest calls until the file is smaller: 500M, 2G"
    )
    flag(parser, "--vacuum", help="rewrite the file afterwards; other writers wait")
    flag(parser, "--dry-run", help="only count")
    parser.set_defaults(run=prune, draws=True)


def add_backup(parser: argparse.ArgumentParser) -> None:
    parser.description = "Copy the trace file in its current state. An existing file is never overwritten."
    parser.add_argument("path", type=Path, metavar="PATH", help="the path of the copy")
    add_trace(parser)
    parser.set_defaults(run=backup, draws=True)


def add_upgrade(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Upgrade a trace file of an older version. Every program that writes to the file does this "
        "automatically. The older version can't open the file afterwards. To keep a copy, run `callboard "
        "backup` first."
    )
    add_trace(parser)
    parser.set_defaults(run=upgrade, draws=True)


def prune(arguments: argparse.Namespace) -> int:
    if arguments.older_than is None and arguments.max_size is None and not arguments.vacuum:
        raise ConfigurationError("use --older-than AGE, --max-size SIZE, or only --vacuum")
    trace = chosen_trace(arguments)
    report = anyio.run(_prune, trace, arguments)
    console = make_console()
    for line in [*lines_of(report), *anyio.run(kept_back, trace)]:
        console.print(line, soft_wrap=True)
    return 0


async def kept_back(trace: TracePlace) -> list[str]:
    """The rows that are kept at any age, because a shared store does not have them yet."""
    if not isinstance(trace, Path):
        return []
    from callboard.tracestore.shipping.marks import backlogs

    return [
        f"Kept {plural(each.behind, 'event')} that {each.target} has not received yet. To drop them: "
        f"callboard ship --forget --db {short(trace)} --store URL"
        for each in await backlogs(trace)
        if each.behind
    ]


async def _prune(trace: TracePlace, arguments: argparse.Namespace) -> PruneReport:
    before = None if arguments.older_than is None else time.time_ns() // 1000 - arguments.older_than * 1_000_000
    if arguments.dry_run:
        async with store_to_read(trace) as reader:
            return await reader.prune(before=before, max_bytes=arguments.max_size, dry_run=True)
    async with await existing_store(trace) as store:
        return await store.prune(
            before=before,
            max_bytes=arguments.max_size,
            vacuum=arguments.vacuum,
            progress=lambda report: show_progress(f"{report.attempts:,} attempts, {report.events:,} events"),
        )


def lines_of(report: PruneReport) -> list[str]:
    counted = f"{plural(report.attempts, 'attempt')}, {plural(report.events, 'event')}"
    costs = f" and {plural(report.costs, 'cost')} of repricings" if report.costs else ""
    if report.dry_run:
        return [f"Would delete {counted}{costs}, of {_mb(report.bytes_before)}.", "Nothing was changed."]
    bodies_text = f", and {plural(report.bodies, 'stored text')}" if report.bodies else ""
    return [
        f"Deleted {counted}{costs}{bodies_text}.",
        f"In use: {_mb(report.bytes_before)} before, {_mb(report.bytes_after)} now; "
        f"the file has {_mb(report.file_bytes)}.",
    ]


def backup(arguments: argparse.Namespace) -> int:
    trace = chosen_trace(arguments)
    if not isinstance(trace, Path):
        tool = f"pg_dump --format=custom --file={short(arguments.path)} {shlex.quote(str(trace))}"
        raise ConfigurationError(f"to copy a trace on a server, use the tool of the server: {tool}")
    anyio.run(_backup, trace, arguments.path)
    make_console().print(f"Copied {short(trace)} to {short(arguments.path)}.", soft_wrap=True)
    return 0


async def _backup(trace: Path, target: Path) -> None:
    async with store_to_read(trace) as store:
        await store.backup(target, progress=lambda done, pages: show_progress(f"{done:,} of {pages:,} pages"))


def upgrade(arguments: argparse.Namespace) -> int:
    trace = chosen_trace(arguments)
    if not isinstance(trace, Path):
        raise ConfigurationError("the owner of a trace on a server upgrades it by opening it for writing")
    done = "is now" if anyio.run(_upgrade, trace) else "was already"
    make_console().print(f"{short(trace)} {done} up to date.", soft_wrap=True)
    return 0


async def _upgrade(trace: Path) -> bool:
    """Upgrade a trace file. Returns whether it had an older version."""
    with contextlib.suppress(StoreError):  # the next step reports all other problems of the store
        async with store_to_read(trace):
            return False
    async with await existing_store(trace):
        return True


def show_progress(text: str) -> None:
    """Show a line of progress on a terminal. The next line replaces it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}\r")
        sys.stderr.flush()


def _mb(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB"


def age(text: str) -> int:
    """Parse an age to seconds."""
    if (found := re.fullmatch(r"(\d{1,6})([hdw])", text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age such as 90d, 12h or 8w")
    return int(found[1]) * _UNITS[found[2]]


def size(text: str) -> int:
    """Parse a size to bytes."""
    if (found := re.fullmatch(r"(\d{1,12})([KMG]?)B?", text, re.IGNORECASE)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500M or 2G")
    return int(found[1]) * _SIZES[found[2].upper()]


# --- Importing ---

_LISTED = 20
"""The maximum number of unreadable parts that are shown."""
_MODEL = ("model", *ImportedModel.__struct_fields__)


def add_import(parser: argparse.ArgumentParser) -> None:
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
    flag(parser, "--watch", help="continue with new calls until interrupted")
    flag(parser, "--content", help="store the messages, too")
    flag(parser, "--dry-run", help="only report")
    add_trace(parser, OWN_TRACE)
    add_format(parser, "for each model")
    parser.set_defaults(run=run_import)


def run_import(arguments: argparse.Namespace) -> int:
    if arguments.watch and arguments.dry_run:
        raise ConfigurationError("use --watch or --dry-run, not both")
    named = named_trace(arguments)
    place: TracePlace = home_folder() / TRACE_NAME if named is None else named
    report = anyio.run(_import, place, arguments)
    _show_import(report, arguments.format, place)
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
            _show_import(report, arguments.format, place)
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


def _show_import(report: ImportReport, form: Format, place: TracePlace) -> None:
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
        console.print(FittingTable(_import_columns(models), models))
    for fault in report.faults[:_LISTED]:
        line = f" line {fault.line}" if fault.line else ""
        console.print(f"{fault.path}{line}: {fault.why}", style="yellow", soft_wrap=True)
    if report.unread > _LISTED:
        console.print(f"and {report.unread - _LISTED:,} more", style="yellow")
    if not report.dry_run and report.changed:
        where = f" --db {short(place)}" if isinstance(place, Path) and place != home_folder() / TRACE_NAME else ""
        console.print(f"\nNext: callboard cost --by day,model --source {report.source}{where}", style="dim")


def _import_columns(models: list[tuple[str, ImportedModel]]) -> list[Column[tuple[str, ImportedModel]]]:
    total = ImportedModel()
    for _, each in models:
        for name in ("calls", "unpriced", "nano_usd"):
            setattr(total, name, getattr(total, name) + getattr(each, name))
    columns: list[Column[tuple[str, ImportedModel]]] = [
        Column("model", lambda row: row[0], folds=True, footer="all"),
        count("calls", lambda row: row[1].calls, summed=models),
        count("in", lambda row: row[1].input_tokens, may_go=2, summed=models),
        count("out", lambda row: row[1].output_tokens, may_go=3, summed=models),
        figure("cost", lambda row: _import_cost(row[1]), footer=_import_cost(total)),
    ]
    if total.unpriced:
        columns.append(count("unpriced", lambda row: row[1].unpriced, summed=models, zero=""))
    return columns


def _import_cost(total: ImportedModel) -> str:
    return "unpriced" if total.unpriced == total.calls and total.calls else usd(total.nano_usd)


# --- Shipping ---


def add_ship(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy a trace file to a shared trace on a server, and continue with new events until "
        "interrupted. No event is copied twice. Files of crashed programs on this machine are copied, too."
    )
    parser.add_argument(
        "--db",
        type=trace_file,
        metavar="PATH",
        help="copy this trace file (default: $CALLBOARD_HOME/trace.db, else the demo's)",
    )
    parser.add_argument(
        "--store",
        type=store_address,
        metavar="URL",
        help=f"copy to this server, as postgresql://USER@HOST/DATABASE (default: ${STORE_VARIABLE})",
    )
    how = parser.add_mutually_exclusive_group()
    flag(how, "--once", help="exit when all events are copied")
    flag(
        how,
        "--forget",
        help="stop copying the file to this server, so that `prune` can delete events it has not received",
    )
    parser.set_defaults(run=ship, draws=True)


def ship(arguments: argparse.Namespace) -> int:
    trace: Path = arguments.db or default_trace()
    target = _target(arguments)
    if not trace.exists():
        raise StoreError(f"no trace file at {trace}. Choose another with --db")
    console = make_console()
    if arguments.forget:
        was_registered = _forget(trace, target)
        console.print(
            f"{trace} is no longer copied to {target}."
            if was_registered
            else f"{trace} was never copied to {target}. Nothing was changed.",
            soft_wrap=True,
        )
        return 0 if was_registered else 1
    if not arguments.once:
        console.print(f"{trace} -> {target}, until it is interrupted", soft_wrap=True)
    events = anyio.run(_ship, trace, target, arguments.once)
    console.print(f"{plural(events, 'event')} sent to {target}", soft_wrap=True)
    return 0


def _forget(trace: Path, target: StoreAddress) -> bool:
    """Record that a trace file is no longer shipped to a store. Returns whether it was ever shipped."""
    from callboard.tracestore.shipping.marks import RegisteredFiles, forget_mark
    from callboard.tracestore.shipping.shipper import receiver

    name = receiver(target.dsn).name
    RegisteredFiles(home_folder() / "shipping", trace, name, None).done()
    return forget_mark(trace, name)


async def _ship(trace: Path, target: StoreAddress, once: bool) -> int:
    """Ship a trace file, and files that dead processes left next to it."""
    from callboard.tracestore import TraceShipper
    from callboard.tracestore.shipping.marks import take_over

    prices = load_prices(None)
    shipper = TraceShipper(trace, target.dsn, prices=prices, adopts=home_folder() / "shipping")
    try:
        async with store_to_write(trace) as store:
            await take_over(store, prices)
        if not once:
            await shipper.run()
        return await shipper.ship()
    finally:
        await shipper.close()


def _target(arguments: argparse.Namespace) -> StoreAddress:
    target: StoreAddress | None = arguments.store or store_of_environment()
    if target is None:
        raise ConfigurationError(f"name the server with --store URL, or {STORE_VARIABLE}")
    return target
