"""`callboard clients`: manage the clients of a gateway, with their keys, budgets, models and rates.

A key is shown once, when it is created. The trace stores only its hash. Running gateways detect each change within
a second.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TypeVar

import anyio
import msgspec

from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.clock import SYSTEM_CLOCK
from callboard.tracestore import Store
from callboard.tracestore.gateway import Client, GatewayTables
from callboard.tracestore.home import home_folder

from ..gateway.clients import ClientSpending, check_client, issue_key, spending_of
from ..stores import store_to_write
from .options import OWN_TRACE, TRACE_NAME, add_action, add_trace, amount, flag, from_trace, named_trace, positive
from .sanitize import echo, note, write_json
from .table import Column, add_format, count, figure, json_text, moment_text, usd, write_rows

T = TypeVar("T")

_WINDOWS = ("hour", "day", "month")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class ClientLine(msgspec.Struct, frozen=True):
    """A line of `callboard clients list --json`."""

    name: str
    keys: tuple[str, ...]  # the beginning of each key
    budget_nano_usd: int | None
    window: str | None
    zone: str
    spent_nano_usd: int | None  # spending in the current window, including reservations of calls in progress
    left_nano_usd: int | None
    models: tuple[str, ...]  # patterns of model names; empty for all
    requests_per_minute: int | None
    tokens_per_minute: int | None
    unpriced: str  # `refuse` or `allow`
    calls: int  # the number of calls
    cost_nano_usd: int  # the cost of all calls, in nano-USD
    created_us: int
    revoked_us: int | None


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Manage the clients of `callboard serve`. Each has a key of its own. The trace stores only the hash of "
        "a key. Running gateways apply each change within a second."
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    adding = add_action(
        inner,
        "add",
        add,
        "Add a client and print its key",
        "Add a client, and print its key. The key is shown only now. Without --budget the client may spend any "
        "amount.",
    )
    adding.add_argument(
        "name", metavar="NAME", help="the name, which is the value of the tag `client` in the trace"
    )
    adding.add_argument(
        "--budget", type=budget, metavar="USD[/WINDOW]", help="limit its spending, such as 5/day, 100/month or 20"
    )
    _add_settings(adding)
    flag(adding, "--json", help="print the name and the key as one JSON object")
    changing = add_action(
        inner,
        "change",
        change,
        "Change models and rates of a client",
        "Change the given settings of a client. Its key and its other settings stay.",
    )
    changing.add_argument("name", metavar="NAME", help="the client")
    _add_settings(changing)
    budgeting = add_action(
        inner,
        "budget",
        change_budget,
        "Change the budget of a client",
        "Change the budget of a client. The amount spent in the current window counts.",
    )
    budgeting.add_argument("name", metavar="NAME", help="the client")
    budgeting.add_argument(
        "budget", type=budget, metavar="USD[/WINDOW]", help="the budget, such as 10/month, or `none` for no limit"
    )
    budgeting.add_argument("--zone", metavar="ZONE", help="set the time zone of the window, such as Europe/Zurich")
    rotating = add_action(
        inner,
        "rotate",
        rotate,
        "Replace the key of a client",
        "Make a new key for a client, and print it. The old one stops working immediately, or after --grace.",
    )
    rotating.add_argument("name", metavar="NAME", help="the client")
    rotating.add_argument(
        "--grace", type=grace, default=0, metavar="TIME", help="accept the old key for this time: 15m, 24h, 7d"
    )
    flag(rotating, "--json", help="print the name and the key as one JSON object")
    revoking = add_action(
        inner,
        "revoke",
        revoke,
        "Revoke a client and its keys",
        "Revoke a client. Its keys stop working within a second, and its requests in progress are cancelled. Its "
        "calls stay in the trace.",
    )
    revoking.add_argument("name", metavar="NAME", help="the client")
    listing = add_action(inner, "list", list_clients, "List clients with their spending")
    flag(listing, "--all", help="include revoked clients")
    add_format(listing, "for each client")
    for each in (adding, changing, budgeting, rotating, revoking, listing):
        add_trace(each, OWN_TRACE)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        action="append",
        metavar="PATTERN",
        help="allow only models with this name, such as 'claude-*' (repeatable; '*' allows all)",
    )
    parser.add_argument(
        "--requests-per-minute", type=positive, metavar="N", help="limit its requests in any minute"
    )
    parser.add_argument("--tokens-per-minute", type=positive, metavar="N", help="limit its tokens in any minute")
    if not parser.prog.endswith("change"):
        parser.add_argument(
            "--zone", metavar="ZONE", help="set the time zone of the window, such as Europe/Zurich"
        )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--refuse-unpriced",
        action="store_const",
        dest="unpriced",
        const="refuse",
        help="refuse calls of unknown price (the default with a budget)",
    )
    which.add_argument(
        "--allow-unpriced",
        action="store_const",
        dest="unpriced",
        const="allow",
        help="allow calls of unknown price (the default without a budget)",
    )


# --- Values ---


def budget(text: str) -> tuple[int | None, str | None]:
    """Parse an amount in USD and a window. Returns nano-USD and the window."""
    if text == "none":
        return None, None
    sum_text, slash, window = text.partition("/")
    if slash and window not in _WINDOWS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a budget such as 5/day: the windows are {', '.join(_WINDOWS)}"
        )
    return amount(sum_text), window or None


def grace(text: str) -> int:
    """Parse a duration to seconds."""
    if (found := re.fullmatch(r"(\d{1,6})([smhdw])", text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 15m, 24h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def _changed(client: Client, arguments: argparse.Namespace) -> Client:
    """The client with the settings of the arguments. Raises ConfigurationError."""
    fields: dict[str, object] = {}
    if (budget := getattr(arguments, "budget", None)) is not None:
        fields["budget_nano_usd"], fields["window"] = budget
    if (patterns := getattr(arguments, "models", None)) is not None:
        fields["models"] = () if "*" in patterns else tuple(patterns)
    for name in ("zone", "requests_per_minute", "tokens_per_minute", "unpriced"):
        if (value := getattr(arguments, name, None)) is not None:
            fields[name] = value
    try:
        return check_client(msgspec.structs.replace(client, **fields))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


# --- Commands ---


def add(arguments: argparse.Namespace) -> int:
    now_us = SYSTEM_CLOCK.now_us()
    client = _changed(Client(name=arguments.name, created_us=now_us), arguments)
    key, row = issue_key(client.name, now_us)
    if not _on_tables(arguments, lambda tables: tables.add_client(client, row)):
        raise ConfigurationError(
            f"the client {client.name} exists already. Change it with `callboard clients budget` or `change`, "
            "or make a new key with `callboard clients rotate`"
        )
    _show_key(arguments, client.name, key)
    return 0


def change(arguments: argparse.Namespace) -> int:
    client = _change(arguments)
    echo(f"Changed {client.name}: {_limits(client)}.")
    return 0


def change_budget(arguments: argparse.Namespace) -> int:
    client = _change(arguments)
    limit = _budget_text(client.budget_nano_usd, client.window) or "unlimited"
    echo(f"The budget of {client.name} is now {limit}.")
    return 0


def _change(arguments: argparse.Namespace) -> Client:
    async def work(tables: GatewayTables) -> Client:
        for stored in await tables.clients():
            if stored.name == arguments.name and stored.revoked_us is None:
                client = _changed(stored, arguments)
                if await tables.change_client(client):  # unless the client was revoked during this command
                    return client
        raise _unknown(arguments.name)

    return _on_tables(arguments, work)


def rotate(arguments: argparse.Namespace) -> int:
    now_us = SYSTEM_CLOCK.now_us()
    key, row = issue_key(arguments.name, now_us)
    ends_us = now_us + arguments.grace * 1_000_000
    if not _on_tables(arguments, lambda tables: tables.rotate_key(row, ends_us)):
        raise _unknown(arguments.name)
    _show_key(arguments, arguments.name, key)
    if arguments.grace:
        note(f"callboard: the old key works until {moment_text(ends_us)}")
    return 0


def revoke(arguments: argparse.Namespace) -> int:
    at_us = SYSTEM_CLOCK.now_us()
    if not _on_tables(arguments, lambda tables: tables.revoke_client(arguments.name, at_us)):
        raise _unknown(arguments.name)
    echo(f"Revoked {arguments.name}.")
    return 0


def list_clients(arguments: argparse.Namespace) -> int:
    now_us = SYSTEM_CLOCK.now_us()
    spending = from_trace(arguments, lambda store: spending_of(store, _tables_of(store), now_us))
    found = [each for each in spending if arguments.all or each.client.revoked_us is None]
    return write_rows(
        arguments.format,
        ClientLine,
        [_line(each) for each in found],
        [
            Column("client", lambda line: line.name, folds=True),
            Column("key", lambda line: ", ".join(f"{key}…" for key in line.keys) or "revoked", may_go=3),
            Column("budget", lambda line: _budget_text(line.budget_nano_usd, line.window) or "-"),
            figure("spent", lambda line: "-" if line.spent_nano_usd is None else usd(line.spent_nano_usd)),
            figure("left", lambda line: "-" if line.left_nano_usd is None else usd(line.left_nano_usd)),
            Column("models", lambda line: ", ".join(line.models) or "all", folds=True, may_go=2),
            Column("a minute", lambda line: _rates(line) or "-", may_go=1),
            count("calls", lambda line: line.calls),
            figure("cost", lambda line: usd(line.cost_nano_usd)),
        ],
        empty="There are no clients. Add one with `callboard clients add NAME`.",
        below="spent, left: in the budget's current window. calls, cost: so far.",
    )


def _on_tables(arguments: argparse.Namespace, work: Callable[[GatewayTables], Awaitable[T]]) -> T:
    """Run a function on the gateway's tables, creating the trace if needed. Returns the result."""
    place = named_trace(arguments) or home_folder() / TRACE_NAME

    async def run() -> T:
        async with store_to_write(place) as store:
            return await work(_tables_of(store))

    return anyio.run(run)


def _tables_of(store: Store) -> GatewayTables:
    tables: GatewayTables = store.gateway  # type: ignore[attr-defined]
    return tables


def _unknown(name: str) -> CallboardError:
    return CallboardError(f"there is no client {name!r}. See `callboard clients list`")


def _show_key(arguments: argparse.Namespace, name: str, key: str) -> None:
    """Write only the key to stdout, so that a program can read it."""
    if arguments.json:
        write_json(json_text({"name": name, "key": key}))
    else:
        echo(key)
    note(f"callboard: this is the key of {name}. It is shown only now, because the trace keeps only its hash")


def _line(found: ClientSpending) -> ClientLine:
    client = found.client
    return ClientLine(
        client.name,
        tuple(key.prefix for key in found.keys),
        client.budget_nano_usd,
        client.window,
        client.zone,
        found.spent_nano_usd,
        found.left_nano_usd,
        client.models,
        client.requests_per_minute,
        client.tokens_per_minute,
        client.unpriced or ("allow" if client.budget_nano_usd is None else "refuse"),
        found.calls,
        found.cost_nano_usd,
        client.created_us,
        client.revoked_us,
    )


def _budget_text(nano_usd: int | None, window: str | None) -> str:
    if nano_usd is None:
        return ""
    return f"${Decimal(nano_usd).scaleb(-9).normalize():f}" + (f"/{window}" if window else "")


def _rates(limited: Client | ClientLine) -> str:
    limits = ((limited.requests_per_minute, "requests"), (limited.tokens_per_minute, "tokens"))
    return ", ".join(f"{limit:,} {what}" for limit, what in limits if limit is not None)


def _limits(client: Client) -> str:
    rates = _rates(client)
    return f"models {', '.join(client.models) or 'all'}; {f'{rates} a minute' if rates else 'any rate'}"
