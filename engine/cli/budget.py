"""`callboard budget`: show the accounts of a budget, as a new engine would count them.

In a cluster it also shows the nodes' slices.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from callboard.bus import ConfigurationError
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.tracestore import Store

from ..budgets.budget import Budget
from ..budgets.budgets import loader
from ..budgets.ledger import Account, AccountState, Ledger
from ..stores import server_store
from .options import add_trace, from_trace
from .screen import make_console
from .table import Column, FittingTable, add_format, figure, usd, with_usd, write_records

if TYPE_CHECKING:
    from callboard.tracestore.nodes import SliceRow


def add_command(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--current", action="store_true", help="count repriced calls at their current costs")
    add_trace(parser)
    add_format(parser, "for each account")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    states, slices = from_trace(arguments, partial(_count, _budget(arguments)))
    if arguments.format != "table":
        write_records(arguments.format, _FIELDS, (with_usd(_record(state, slices)) for state in states))
        return 0
    _show(states)
    if slices:
        _show_slices(slices)
    return 0


def _budget(arguments: argparse.Namespace) -> Budget:
    unlimited = arguments.max_cost_usd is None and arguments.max_tokens is None
    window = arguments.window
    try:
        return _new_budget(arguments, window, unlimited)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _new_budget(arguments: argparse.Namespace, window: str | None, unlimited: bool) -> Budget:
    calendar: Any = window  # Budget validates the value
    return Budget(
        max_cost_usd=arguments.max_cost_usd,
        max_tokens=2**62 if unlimited else arguments.max_tokens,
        per=arguments.per,
        of=arguments.of,
        window=timedelta(seconds=float(window)) if window and window[0].isdigit() else calendar,
        zone=arguments.zone,
        follows_repricing=arguments.current,
    )


async def _count(budget: Budget, store: Store) -> tuple[list[AccountState], list[SliceRow]]:
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


def _show(states: list[AccountState]) -> None:
    console = make_console()
    if not states:
        console.print("No calls count in this budget.")
        return
    limited = states[0].budget.max_nano_usd is not None
    columns: list[Column[AccountState]] = [
        Column(states[0].budget.per, lambda state: state.scope or "-", folds=True),
        figure("calls", lambda state: f"{state.calls:,}"),
        figure("spent", lambda state: usd(state.spent.money)),
        figure("tokens", lambda state: f"{state.spent.tokens:,}"),
        figure("unknown", lambda state: f"{state.unknown_calls:,}" if state.unknown_calls else ""),
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
        figure("tokens", lambda each: f"{each.tokens:,}"),
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
    return "-" if tokens is None or tokens > 2**61 else f"{tokens:,} tokens"


def _record(state: AccountState, slices: list[SliceRow]) -> dict[str, object]:
    ends = state.window_ends_us
    unlimited = state.left_tokens is not None and state.left_tokens > 2**61
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


_FIELDS = (
    *("scope", "value", "calls", "spent_nano_usd", "spent_tokens", "unknown_calls", "unknown_nano_usd"),
    *("unknown_tokens", "left_nano_usd", "left_tokens", "window_ends", "slices"),
)
"""The fields of a record. They are also the header of a CSV without rows."""
