"""`callboard traces`: the calls of a trace file, the newest first."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import get_args

import anyio
import msgspec

from tracestore import CallFilter, CallRow, TraceStore
from tracestore.queries import CallStatus

from .events import plural
from .money import usd
from .places import default_trace
from .screen import make_console
from .tables import CallSummary, calls_table, summarise

ATTEMPTS_PER_CALL = 4
"""How many attempts are read for each call that is wanted; more than calls have, but for outages."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("traces", help="the calls of a trace file, with tokens, times and costs")
    add_filters(parser)
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="at most N calls (default 50)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each attempt")
    parser.set_defaults(run=run)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The options that `traces` and `reprice` share: which file, and which of its calls."""
    parser.add_argument(
        "--db", type=Path, metavar="PATH", help="trace file (default: $CALLBOARD_HOME/trace.db, else the demo's)"
    )
    parser.add_argument("--session", metavar="ID", help="only of this session")
    parser.add_argument("--model", metavar="M", help="only this model: provider:name or name, '*' at the end")
    parser.add_argument("--provider", metavar="P", help="only of this provider")
    parser.add_argument("--status", choices=get_args(CallStatus), help="only calls that ended so")
    parser.add_argument("--since", type=moment, metavar="TIME", help="from this day or time on (ISO 8601)")
    parser.add_argument("--until", type=moment, metavar="TIME", help="before this day or time (ISO 8601)")


def call_filter(arguments: argparse.Namespace) -> CallFilter:
    return CallFilter(
        since=arguments.since,
        until=arguments.until,
        provider=arguments.provider,
        model=arguments.model,
        session_id=arguments.session,
        status=arguments.status,
    )


def chosen_file(arguments: argparse.Namespace) -> Path:
    """The file that was named, else the default one."""
    named: Path | None = arguments.db
    if named is not None:
        return named
    return default_trace()


def run(arguments: argparse.Namespace) -> int:
    """Raises CallboardError."""
    path = chosen_file(arguments)
    rows = anyio.run(_read, path, call_filter(arguments), arguments.limit)
    if arguments.json:
        for row in rows[: arguments.limit]:
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
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
    known = [call.nano_usd for call in calls if call.nano_usd is not None]
    more = "; there may be more, see --limit" if len(calls) == limited else ""
    total = usd(sum(known)) if known else "cost unknown"
    console.print(f"\n{plural(len(calls), 'call')}, {total}, from {path}{more}", style="dim", soft_wrap=True)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def moment(text: str) -> datetime:
    """A day or a time; local, if it says no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no day or time such as 2026-07-01 or 2026-07-01T12:00"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()
