"""`callboard reprice`: recalculate the costs of recorded calls with other prices, or undo that."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.tracestore import CallFilter, PriceTable, RepriceReport, RepriceRun
from callboard.tracestore.reports import OnProgress

from ..current_prices import load_prices
from ..stores import TracePlace, existing_store, store_to_read
from .command_line import INTERRUPTED
from .options import add_filters, call_filter, chosen_trace, command_name, failing_as, flag, from_trace, option_of
from .repricing_report import By, Origin, in_flight_text, page, reprice_table, total, write_lines
from .sanitize import note
from .screen import make_console, progress_bar
from .table import (
    Column,
    add_format,
    figure,
    moment_text,
    plural,
    print_incomplete,
    usd,
    write_rows,
)

AT_CALL_TIME = "call-time"
LATEST = -1


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Recalculate the cost of recorded calls with a price table, and make the result their current "
        "cost. Events and the costs at call time do not change, so you can undo it."
    )
    # This is written by hand, because argparse would not break the line within a group.
    parser.usage = (
        "%(prog)s\n       [--prices FILE | --use VERSION | --undo | --history | --resume [N]]\n       [OPTIONS]"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prices", type=Path, metavar="FILE", help="use the newest table of this price file")
    source.add_argument(
        "--use",
        metavar="VERSION",
        help=f"restore the costs of an earlier version, or with '{AT_CALL_TIME}' the costs at call time",
    )
    flag(source, "--undo", help="undo the latest repricing")
    flag(source, "--history", help="list all repricings of the trace, newest first")
    source.add_argument(
        "--resume",
        nargs="?",
        type=int,
        const=LATEST,
        metavar="N",
        help="continue an interrupted repricing (default: the latest)",
    )
    parser.add_argument(
        "--discount",
        type=discount,
        action="append",
        metavar="NAME=FACTOR",
        help="multiply prices by a factor, such as 'anthropic:*=0.8' (repeatable)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--version", metavar="V", help="use the table of the file with this version, or prefix of it"
    )
    which.add_argument("--label", metavar="L", help="use the table of the file with this text in its label")
    flag(parser, "--dry-run", help="only report")
    parser.add_argument(
        "--as-model", metavar="M", help="report the cost as if this provider:name had served all calls"
    )
    parser.add_argument(
        "--by",
        choices=("model", "day", "session"),
        default="model",
        help="group the comparison by this (default: model)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the comparison as an HTML page")
    add_filters(parser)
    add_format(parser, "for each model, day or session, or with --history for each repricing")
    parser.set_defaults(run=run)


def discount(text: str) -> tuple[str, str]:
    """Parse a factor such as anthropic:*=0.8. Returns its name and its number."""
    name, equals, factor = text.rpartition("=")
    if not (name and equals and factor):
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor such as anthropic:*=0.8")
    return name, factor


def run(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    trace = chosen_trace(arguments)
    if arguments.use is not None:
        return _use(trace, arguments)
    if arguments.undo:
        return _undo(trace, arguments)
    if arguments.history:
        return _history(trace, arguments)
    if arguments.html is not None:
        _check_place(arguments.html)
    try:
        with shown_progress() as progress:
            report, table, before = anyio.run(_reprice, trace, arguments, progress)
    except KeyboardInterrupt:
        if not _only_looks(arguments):
            command = f"{command_name()} reprice --resume {option_of(trace)}"
            note()
            note(f"callboard: interrupted; nothing has changed yet. To continue: {command}")
        return INTERRUPTED
    if arguments.format == "table":
        show(report, trace, arguments.by)
    else:
        write_lines(arguments.format, report, arguments.by)
    if arguments.html is not None:
        _write_page(arguments.html, report, table, before, arguments, trace)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    other = arguments.undo or arguments.history or arguments.use is not None or arguments.resume is not None
    if arguments.prices is None and not other and not arguments.discount and arguments.as_model is None:
        raise ConfigurationError(
            "nothing to reprice with. Use --prices FILE, --discount NAME=FACTOR, --as-model M, "
            "--use, --undo, --history or --resume"
        )
    if arguments.discount and other:
        raise ConfigurationError("--discount changes prices: use it alone or with --prices")
    if arguments.prices is None and (arguments.version is not None or arguments.label is not None):
        raise ConfigurationError("--version and --label choose a table of a price file: add --prices FILE")
    # Restoring stored costs computes nothing, so there is nothing to try.
    trial_option = "--dry-run" if arguments.dry_run else "--as-model" if arguments.as_model is not None else None
    chosen = "--undo" if arguments.undo else "--use" if arguments.use is not None else None
    if chosen is None and arguments.resume is not None:
        chosen = "--resume"
    if trial_option is not None and chosen is not None:
        raise ConfigurationError(
            f"{chosen} can't be combined with {trial_option}: only --prices can. Nothing was changed. To see "
            f"costs under earlier prices, use: callboard cost --under VERSION"
        )


def _only_looks(arguments: argparse.Namespace) -> bool:
    return bool(arguments.dry_run or arguments.as_model is not None)


@contextmanager
def shown_progress() -> Iterator[OnProgress | None]:
    """A progress bar on stderr, if stderr is a terminal. It is not shown for a trace of a single chunk."""
    with progress_bar() as bar:
        if bar is None:
            yield None
            return
        task = bar.add_task("repricing", total=None, visible=False)
        yield lambda done, last: bar.update(task, completed=done, total=last, visible=done < last)


def _check_place(file: Path) -> None:
    """Check that the report's page can be written, before anything is repriced. Raises ConfigurationError."""
    if file.is_dir():
        raise ConfigurationError(f"{file} is a folder; --html needs a file")
    if not file.absolute().parent.is_dir():
        raise ConfigurationError(f"{file}: no folder {file.parent}")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ConfigurationError(f"{file} can't be written. Nothing was repriced")


def _write_page(
    file: Path,
    report: RepriceReport,
    table: PriceTable,
    before: str,
    arguments: argparse.Namespace,
    trace: TracePlace,
) -> None:
    where = call_filter(arguments)
    chosen = "all calls" if where == CallFilter() else f"only {_in_words(where)}"
    text = page(report, table, Origin(before, chosen, trace.name, datetime.now(UTC)))
    with failing_as(ConfigurationError, file):
        write_private(file, text.encode("utf-8", "replace"))
    if arguments.format == "table":
        make_console().print(f"Written: {file}", style="dim", soft_wrap=True)


def _in_words(where: CallFilter) -> str:
    """Describe a filter as text; empty if the filter matches every call."""
    words = []
    for name, value in msgspec.to_builtins(where).items():
        match name, value:
            case "tags", dict():
                words += [f"tag {key}={tagged}" for key, tagged in value.items()]
            case "unpriced" | "unknown", _:
                words.append("unpriced calls" if name == "unpriced" else "calls of unknown cost")
            case "min_cost_nano_usd", int():
                words.append(f"calls of at least {usd(value)}")
            case _:
                words.append(f"{name.removesuffix('_id').replace('_', ' ')} {value}")
    return ", ".join(words)


def choose_table(prices: Path, version: str | None, label: str | None) -> PriceTable:
    """The selected table of a price file."""
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
    sought = f"version {version!r}" if version is not None else f"label {label!r}"
    there = ", ".join(f"{table.version} ({table.label})" for table in tables)
    found = "no table has" if not fitting else "several tables have"
    raise ConfigurationError(f"{prices}: {found} {sought}; it has {there}")


def _prices(arguments: argparse.Namespace) -> PriceTable:
    if arguments.prices is None:
        table = load_prices(None)
    else:
        table = choose_table(arguments.prices, arguments.version, arguments.label)
    return table.discounted(dict(arguments.discount)) if arguments.discount else table


async def _reprice(
    trace: TracePlace, arguments: argparse.Namespace, progress: OnProgress | None
) -> tuple[RepriceReport, PriceTable, str]:
    """Reprice. Returns the report, its price table, and a description of the previous prices."""
    async with store_to_read(trace) if _only_looks(arguments) else await existing_store(trace) as store:
        if arguments.resume is not None:
            number = None if arguments.resume == LATEST else arguments.resume
            report = await store.resume_reprice(number, progress=progress)
        else:
            report = await store.reprice(
                _prices(arguments),
                where=call_filter(arguments),
                dry_run=arguments.dry_run,
                as_model=arguments.as_model,
                by_session=arguments.by == "session" or arguments.html is not None,
                progress=progress,
            )
        tables = {table.version: table for table in await store.price_tables()}
    before = tables.get(report.previous_version or "")
    words = "the costs at call time" if before is None else f"{before.label}, version {before.version}"
    chosen = tables.get(report.version)
    if chosen is None:
        chosen = _prices(arguments)
    return report, chosen, words


def show(report: RepriceReport, trace: TracePlace, by: By = "model") -> None:
    console = make_console()
    prices = f"{report.label or 'prices'} ({report.version})"
    title = f"As if on {report.as_model}, under {prices}" if report.as_model else f"Under {prices}"
    console.print(f"{title}\n", style="bold", soft_wrap=True)
    if not report.calls:
        console.print(f"No matching calls with token counts in {trace}.", soft_wrap=True)
        return
    console.print(reprice_table(report, by))
    console.print()
    print_incomplete(console, total(report).sum, "without a price in this table")
    if report.newly_priced:
        text = f"{plural(report.newly_priced, 'call')} without a price until now, not included in sums."
        console.print(text, style="yellow", soft_wrap=True)
    if report.in_flight:
        console.print(in_flight_text(report), style="yellow", soft_wrap=True)
    if report.dry_run:
        console.print("Nothing was changed.", style="dim")
    else:
        command = f"{command_name()} reprice --undo {option_of(trace)}"
        console.print(f"To undo: {command}", style="dim", soft_wrap=True)


def _undo(trace: TracePlace, arguments: argparse.Namespace) -> int:
    async def undo() -> tuple[RepriceRun, str | None]:
        async with await existing_store(trace) as store:
            return await store.undo_reprice(), await store.current_version()

    run, before = anyio.run(undo)
    now = f"under price version {before}" if before else "at call time"
    name = run.label or run.version
    _print_note(f"Undone: repricing {run.id} ({name}). Restored the costs {now}.", arguments)
    return 0


def _history(trace: TracePlace, arguments: argparse.Namespace) -> int:
    runs = from_trace(arguments, lambda store: store.reprice_runs())
    return write_rows(
        arguments.format,
        RepriceRun,
        runs,
        [
            figure("no", lambda run: str(run.id)),
            Column("when", lambda run: moment_text(run.started_us), folds=True, may_go=3),
            Column("state", _state, folds=True),
            Column("prices", lambda run: run.label, folds=True),
            Column("version", lambda run: run.version, folds=True, may_go=4),
            Column("calls filter", lambda run: _in_words(run.where) or "all", folds=True, may_go=2),
            figure("calls", lambda run: "-" if run.calls is None else f"{run.calls:,}", may_go=1),
            figure("before", lambda run: _usd(run.sum_before_nano_usd), may_go=1),
            figure("after", lambda run: _usd(run.sum_after_nano_usd), may_go=1),
        ],
        empty=f"No repricing yet in {trace}.",
        whole=True,
    )


def _state(run: RepriceRun) -> str:
    return run.state if run.state != "interrupted" else f"interrupted at {run.done:,} of {run.last_call or 0:,}"


def _usd(nano_usd: int | None) -> str:
    return "-" if nano_usd is None else usd(nano_usd)


def _use(trace: TracePlace, arguments: argparse.Namespace) -> int:
    version: str | None = None if arguments.use == AT_CALL_TIME else arguments.use

    async def use() -> None:
        async with await existing_store(trace) as store:
            await store.use_prices(version)

    anyio.run(use)
    named = "at call time" if version is None else f"under price version {version}"
    _print_note(f"Restored the costs {named}.", arguments)
    return 0


def _print_note(what: str, arguments: argparse.Namespace) -> None:
    """Report the result on stdout, or on stderr if stdout has rows for a program."""
    if arguments.format == "table":
        make_console().print(what, soft_wrap=True)
    else:
        note(what)
