"""`callboard cost`, `budget`, `stats` and `errors`: show the costs, speed and failures of recorded calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.bus.values.usage import CostSum
from callboard.tracestore import CostRow, ErrorRow, Percentiles, StatisticsRow, Store, cache_savings
from callboard.tracestore.call_columns import DIMENSIONS, IMPORTED
from callboard.tracestore.home import home_folder, price_table

from ..budgets.budget import Budget
from ..budgets.budgets import loader
from ..budgets.ledger import Account, AccountState, Ledger
from ..stores import server_store
from .options import add_filters, add_trace, call_filter, flag, from_trace, price_version
from .screen import make_console
from .table import (
    Column,
    FittingTable,
    add_format,
    count,
    figure,
    moment_text,
    plural,
    print_incomplete,
    rate,
    seconds,
    usd,
    with_usd,
    write_records,
    write_rows,
)

if TYPE_CHECKING:
    from rich.console import Console

    from callboard.tracestore.nodes import SliceRow


_FIGURES = tuple(name for name in CostRow.__struct_fields__ if name not in ("key", "by"))
_SHORT = {
    **{"session": "session_id", "turn": "turn_id", "class": "error_class", "served": "served_model"},
    **{"source": "origin", "project": "tag:project", "branch": "tag:branch"},
}


def add_cost(parser: argparse.ArgumentParser) -> None:
    add_by(parser)
    add_filters(parser)
    parser.add_argument(
        "--under", metavar="VERSION", help="show the costs under this price version (default: the current one)"
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
                f"{name!r} is not a group; use {', '.join((*_SHORT, *DIMENSIONS))} or tag:KEY"
            )
    return names


def run_cost(arguments: argparse.Namespace) -> int:
    by: tuple[str, ...] = arguments.by
    rows, imported = from_trace(arguments, partial(_read, arguments))
    if arguments.format != "table":
        write_records(arguments.format, (*by, *_FIGURES, "cache_hit_rate"), map(_cost_record, rows))
        return 0
    _show_costs(rows, by)
    for row in imported:
        text = f"Imported from {row.key[0]}: {plural(row.calls, 'call')}, {_amount(_now(row))}."
        make_console().print(text, style="dim")
    return 0


async def _read(arguments: argparse.Namespace, store: Store) -> tuple[list[CostRow], list[CostRow]]:
    """The sums. Unless they are grouped by source, also the imported part of each sum by source."""
    by: tuple[str, ...] = arguments.by
    under = await price_version(store, arguments.under)
    rows = await store.costs(call_filter(arguments), by, under=under)
    if "day" in by:  # days are in order; within a day, the most expensive group is first
        rows.sort(key=lambda row: row.key[by.index("day")])
    if arguments.format != "table" or arguments.source is not None or "origin" in by:
        return rows, []
    where = msgspec.structs.replace(call_filter(arguments), origin=IMPORTED)
    return rows, await store.costs(where, ("origin",), under=under)


def _cost_record(row: CostRow) -> dict[str, Any]:
    figures = {name: getattr(row, name) for name in _FIGURES}
    return {**dict(zip(row.by, row.key, strict=True)), **figures, "cache_hit_rate": row.cache_hit_rate}


def _show_costs(rows: Sequence[CostRow], by: Sequence[str]) -> None:
    console = make_console()
    if not any(row.calls for row in rows):
        console.print("No matching calls.")
        return
    total_now, total_then = reduce(add, map(_now, rows)), reduce(add, map(_then, rows))
    columns: list[Column[CostRow]] = [
        *_by_columns(by, "all"),
        count("calls", lambda row: row.calls, may_go=3, summed=rows),
        count("in", lambda row: row.total_input_tokens, may_go=4, summed=rows),
        figure("cached", lambda row: rate(row.cache_hit_rate), may_go=6),
        count("out", lambda row: row.output_tokens, may_go=5, summed=rows),
        figure("cost", lambda row: _amount(_now(row)), footer=_amount(total_now)),
        figure("at call time", lambda row: _amount(_then(row)), may_go=1, footer=_amount(total_then)),
        count("unpriced", lambda row: row.unpriced, summed=rows, zero=""),
    ]
    if total_now.unknown:
        columns.append(count("unknown", lambda row: row.unknown, summed=rows, zero=""))
    if total_now.estimated:
        columns.append(count("estimated", lambda row: row.estimated, may_go=2, summed=rows, zero=""))
    console.print(FittingTable(columns, rows))
    if not total_now.complete or total_now.estimated:
        console.print()
    print_incomplete(console, total_now)


def _by_columns(by: Sequence[str], total: str = "") -> list[Column[Any]]:
    """A column for each field by which rows are grouped."""

    def key(place: int, row: CostRow | StatisticsRow) -> str:
        return row.key[place] or "-"

    return [
        Column(name, partial(key, place), folds=True, footer="" if place else total)
        for place, name in enumerate(by)
    ]


def _now(row: CostRow) -> CostSum:
    return CostSum(row.cost_nano_usd, row.calls, row.estimated, row.unpriced, row.unknown)


def _then(row: CostRow) -> CostSum:
    return CostSum(row.at_call_time_nano_usd, row.calls, row.estimated, row.at_call_time_unpriced, row.unknown)


def _amount(total: CostSum) -> str:
    """A sum as text. If no call has a known cost, the sum is shown as unknown, not as zero."""
    if total.nano_usd or total.complete:
        return usd(total.nano_usd)
    return "unpriced" if total.unpriced else "unknown"


# --- Budgets ---
# The accounts of a budget, as a new engine would count them. In a cluster also the nodes' slices.


_UNLIMITED = 2**62
"""The tokens of a budget without a limit. It only counts."""


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-cost-usd", metavar="USD", help="set the limit in US dollars")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="set the limit in tokens")
    parser.add_argument(
        "--per",
        default="engine",
        help="apply the limit to each engine (the default), session, provider, model or tag:NAME",
    )
    parser.add_argument(
        "--of", metavar="VALUE", help="apply it only to this session, provider, model or tag value"
    )
    parser.add_argument(
        "--window", help="reset it each hour, day or month, or use a rolling window in seconds (default: none)"
    )
    parser.add_argument("--zone", default="UTC", help="set the time zone of the window, such as Europe/Zurich")
    flag(parser, "--current", help="count repriced calls at their current costs")
    add_trace(parser)
    add_format(parser, "for each account")
    parser.set_defaults(run=run_budget)


def run_budget(arguments: argparse.Namespace) -> int:
    states, slices = from_trace(arguments, partial(_accounts, _budget(arguments)))
    if arguments.format != "table":
        write_records(
            arguments.format, _ACCOUNT_FIELDS, (with_usd(_account_record(state, slices)) for state in states)
        )
        return 0
    _show_accounts(states)
    if slices:
        _show_slices(slices)
    return 0


def _budget(arguments: argparse.Namespace) -> Budget:
    limited = arguments.max_cost_usd is not None or arguments.max_tokens is not None
    window = arguments.window  # Budget validates the value
    try:
        return Budget(
            max_cost_usd=arguments.max_cost_usd,
            max_tokens=arguments.max_tokens if limited else _UNLIMITED,
            per=arguments.per,
            of=arguments.of,
            window=timedelta(seconds=float(window)) if window and window[0].isdigit() else window,
            zone=arguments.zone,
            follows_repricing=arguments.current,
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


async def _accounts(budget: Budget, store: Store) -> tuple[list[AccountState], list[SliceRow]]:
    now_us = SYSTEM_CLOCK.now_us()
    ledger = Ledger([budget])
    (await loader(store, "", _nothing)([budget], now_us)).count_in(ledger)
    states, slices = list(ledger.states(now_us)), await _slices(budget, store)
    uncounted = {each.value for each in slices}.difference(state.scope for state in states)
    states = [*states, *(Account(budget, value).state(now_us) for value in uncounted)]
    return sorted(states, key=lambda state: (-state.spent.money, state.scope)), slices


async def _slices(budget: Budget, store: Store) -> list[SliceRow]:
    """The grants of a cluster's nodes for this budget."""
    shared = server_store(store)
    if shared is None:
        return []
    from ..nodes.budgets import name_of

    name = name_of(budget)
    return [each for each in await shared.slices() if each.budget == name]


async def _nothing() -> None: ...


def _show_accounts(states: list[AccountState]) -> None:
    console = make_console()
    if not states:
        console.print("No calls count in this budget.")
        return
    limited = states[0].budget.max_nano_usd is not None
    columns: list[Column[AccountState]] = [
        Column(states[0].budget.per, lambda state: state.scope or "-", folds=True),
        count("calls", lambda state: state.calls),
        figure("spent", lambda state: usd(state.spent.money)),
        count("tokens", lambda state: state.spent.tokens),
        count("unknown", lambda state: state.unknown_calls, zero=""),
        figure("at most", lambda state: usd(state.unknown.money) if state.unknown_calls else ""),
        figure("left", lambda state: usd(state.left_nano_usd or 0) if limited else _tokens(state.left_tokens)),
    ]
    console.print(FittingTable(columns, states))
    console.print(
        "\nunknown: calls in progress in another process, or without an answer. They count at most with "
        "their reserved amount.",
        style="dim",
    )


def _show_slices(slices: list[SliceRow]) -> None:
    columns: list[Column[SliceRow]] = [
        Column("granted to", lambda each: each.name or each.node, folds=True),
        Column("of", lambda each: each.value or "-", folds=True),
        figure("at most", lambda each: usd(each.nano_usd)),
        count("tokens", lambda each: each.tokens),
        Column("", lambda each: "" if each.lives else "gone: counts until all its calls have arrived"),
    ]
    console = make_console()
    console.print()
    console.print(FittingTable(columns, slices))
    console.print(
        "\nThe amount granted to a node counts for the whole cluster and includes the amount it has spent.",
        style="dim",
    )


def _tokens(tokens: int | None) -> str:
    return "-" if tokens is None or tokens > _UNLIMITED // 2 else f"{tokens:,} tokens"


def _account_record(state: AccountState, slices: list[SliceRow]) -> dict[str, object]:
    ends = state.window_ends_us
    unlimited = state.left_tokens is not None and state.left_tokens > _UNLIMITED // 2
    return {
        "scope": state.scope,
        "value": state.scope,  # the field's name in earlier versions
        "calls": state.calls,
        "spent_nano_usd": state.spent.money,
        "spent_tokens": state.spent.tokens,
        "unknown_calls": state.unknown_calls,
        "unknown_nano_usd": state.unknown.money,
        "unknown_tokens": state.unknown.tokens,
        "left_nano_usd": state.left_nano_usd,
        "left_tokens": None if unlimited else state.left_tokens,
        "window_ends": None if ends is None else datetime.fromtimestamp(ends / 1e6, UTC).isoformat(),
        "slices": [each for each in slices if each.value == state.scope],
    }


_ACCOUNT_FIELDS = (
    *("scope", "value", "calls", "spent_nano_usd", "spent_tokens", "unknown_calls", "unknown_nano_usd"),
    *("unknown_tokens", "left_nano_usd", "left_tokens", "window_ends", "slices"),
)
"""The fields of a record. They are also the header of a CSV without rows."""


# --- Statistics and errors ---


def add_stats(parser: argparse.ArgumentParser) -> None:
    add_by(parser)
    add_filters(parser)
    add_format(parser, "for each group")
    parser.set_defaults(run=run_stats)


def add_errors(parser: argparse.ArgumentParser) -> None:
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
        console.print("No matching calls.")
        return 0
    columns: list[Column[StatisticsRow]] = [
        *_by_columns(by),
        count("attempts", lambda row: row.attempts),
        figure("failed", lambda row: rate(row.failed / row.attempts) if row.failed else ""),
        figure("p50", lambda row: _time(row.latency_ms.p50)),
        figure("p90", lambda row: _time(row.latency_ms.p90), may_go=1),
        figure("p99", lambda row: _time(row.latency_ms.p99), may_go=4),
        figure("first token p50", lambda row: _time(row.first_token_ms.p50), may_go=2),
        figure("first p90", lambda row: _time(row.first_token_ms.p90), may_go=6),
        figure("first p99", lambda row: _time(row.first_token_ms.p99), may_go=7),
        figure("tok/s p50", _speed, may_go=3),
        figure("cached", lambda row: rate(row.cache_hit_rate), may_go=5),
    ]
    console.print(FittingTable(columns, rows))
    _print_counts(console, rows)
    if any(row.cached_input_tokens for row in rows):
        _print_savings(console, arguments)
    refused = from_trace(arguments, lambda store: _refusals(store, arguments))
    if refused:
        console.print(
            f"{plural(refused, 'call')} refused by budgets (see `callboard replay --topic budget.refused`)."
        )
    console.print(
        "\nTimes are per attempt: latency for completed attempts, first token for all attempts that had "
        "one. tok/s: output speed after the first token.",
        style="dim",
    )
    return 0


def _print_savings(console: Console, arguments: argparse.Namespace) -> None:
    prices = price_table(home_folder())
    found = from_trace(arguments, lambda store: cache_savings(store, prices, call_filter(arguments)))
    beside = f"; {plural(found.unpriced, 'call')} without a price" if found.unpriced else ""
    console.print(
        f"\nPrompt caches saved {usd(found.saved_nano_usd)}: {found.cached_input_tokens:,} tokens were "
        f"read from cache in {plural(found.calls, 'call')}{beside}.",
        style="dim",
    )


async def _refusals(store: Store, arguments: argparse.Namespace) -> int:
    """The number of calls that budgets refused in the selected time."""
    where = call_filter(arguments)
    return len(await store.events(topic="budget.refused", since=where.since, until=where.until, limit=None))


def _print_counts(console: Console, rows: Sequence[StatisticsRow]) -> None:
    """Print the number of calls whose tokens are missing or estimated in the sums."""
    estimated, unpriced, unknown = (
        sum(getattr(row, name) for row in rows) for name in ("estimated", "unpriced", "unknown")
    )
    kinds = ((unknown, "of unknown usage"), (estimated, "with estimated usage"), (unpriced, "without a price"))
    beside = ", ".join(f"{plural(count, 'attempt')} {what}" for count, what in kinds if count)
    if beside:
        console.print(f"\n{beside}.", style="yellow" if unknown else "dim")


_COUNTS = StatisticsRow.__struct_fields__[1:13]
_COLUMNS = (
    *(*_COUNTS, "cache_hit_rate"),
    *(f"{name}.{part}" for name in StatisticsRow.__struct_fields__[13:] for part in Percentiles.__struct_fields__),
)


def _statistics_record(by: Sequence[str], row: StatisticsRow) -> dict[str, Any]:
    values = msgspec.to_builtins(row)
    del values["key"]
    return {**dict(zip(by, row.key, strict=True)), **values, "cache_hit_rate": row.cache_hit_rate}


def _time(milliseconds: float | None) -> str:
    return seconds(None if milliseconds is None else int(milliseconds))


def _speed(row: StatisticsRow) -> str:
    p50 = row.tokens_per_second.p50
    return "-" if p50 is None else f"{p50:,.1f}"


_ERRORS: list[Column[ErrorRow]] = [
    Column("error", lambda row: row.error_class, folds=True),
    Column("model", lambda row: row.model, folds=True),
    count("attempts", lambda row: row.attempts),
    count("final", lambda row: row.ended, may_go=2),
    figure("status", lambda row: "-" if row.provider_status is None else str(row.provider_status), may_go=3),
    figure("last", lambda row: moment_text(row.last_us), may_go=4),
    Column("latest message", lambda row: (row.error_message or "-")[:120], folds=True, may_go=1),
]


def run_errors(arguments: argparse.Namespace) -> int:
    rows = from_trace(arguments, lambda store: store.errors(call_filter(arguments)))
    ended = sum(row.ended for row in rows)
    total = plural(sum(row.attempts for row in rows), "failed attempt")
    return write_rows(
        arguments.format,
        ErrorRow,
        rows,
        _ERRORS,
        empty="No failed attempts.",
        below=f"{total}; {plural(ended, 'call')} failed.",
    )
