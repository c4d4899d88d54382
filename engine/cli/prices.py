"""`callboard prices`: show the prices of models and their source, and update published prices."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

import anyio

from callboard.bus import SYSTEM_CLOCK, AdapterError, CallboardError, ConfigurationError
from callboard.bus.files import write_private
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import PriceRow, PriceTable
from callboard.tracestore.home import OWN_NAME, SNAPSHOT_NAME, home_folder, price_table, published_table
from callboard.tracestore.prices import files as price_snapshot
from callboard.tracestore.prices.rows import BUCKETS, US_PER_SECOND
from callboard.tracestore.prices.source import convert, parse

from ..models.configured import load_registry
from ..models.registry import published_name
from .options import add_action, failing_as, flag
from .screen import make_console
from .table import plural

UPSTREAM = "https://raw.githubusercontent.com/pydantic/genai-prices/refs/heads/main/prices/new_data/v2/data.json"


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show and update the price table: the published prices and $CALLBOARD_HOME/prices.yaml, which "
        "has priority."
    )
    parser.add_argument("--prices", type=Path, metavar="FILE", help="use this price file instead of prices.yaml")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = add_action(actions, "list", run_list, "List models that have a price")
    listing.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="list only models with this text in their name"
    )

    show = add_action(actions, "show", run_show, "Show all rows that can price a model")
    explain = add_action(actions, "explain", run_explain, "Explain how a call is priced")
    for action in (show, explain):
        action.add_argument("model", metavar="MODEL", help="a name from models.yaml, or provider:name")
        action.add_argument("--served", metavar="NAME", help="set the model name that the provider reported")
    explain.add_argument("--at", metavar="TIME", help="price at this date, or time with an offset (default: now)")
    explain.add_argument("--tier", metavar="NAME", help="set the service tier, such as batch or flex")
    explain.add_argument(
        "--input", type=int, default=1000, metavar="N", help="set the input tokens without cache reads and writes"
    )
    explain.add_argument(
        "--output", type=int, default=1000, metavar="N", help="set the output tokens with reasoning"
    )
    for name, what in (("cache-read", "read from a cache"), ("cache-write", "written to a cache for 5 minutes")):
        explain.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"set the tokens {what}")

    use = add_action(
        actions,
        "use",
        run_use,
        "Price new calls with another price file",
        "Install a price file as prices.yaml in $CALLBOARD_HOME. Its rows have priority over the "
        "published prices. Engines that start later use it. The costs of earlier calls do not change.",
    )
    which = use.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="the price file; its newest table is used"
    )
    flag(which, "--published", help="use only the published prices, without a file")

    update = add_action(
        actions,
        "update",
        run_update,
        "Update the published prices",
        "Download a price snapshot, or the data of genai-prices, into $CALLBOARD_HOME. Calls are priced "
        "with it from then on. The costs of earlier calls do not change.",
    )
    add_update_options(update, UPSTREAM, "the prices shipped with Callboard")
    for action in (listing, show, explain, use, update):
        action.set_defaults(draws=True)


def run_list(arguments: argparse.Namespace) -> int:
    table, now = _table(arguments), SYSTEM_CLOCK.now_us()
    console = make_console()
    rows = [
        row
        for row in table.rows
        if arguments.text.lower() in row.model.lower() and not row.above and row.valid_at(now, 0, 0)
    ]
    for row in rows:
        text = " ".join(part for part in (row.model, _conditions(row), _rates(row)) if part)
        console.print(text, soft_wrap=True)
    console.print(f"\n{plural(len(rows), 'price')} now, of {table.label} ({table.version})", style="dim")
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    table, (model, priced_as) = _table(arguments), _names(arguments.model)
    console = make_console()
    _heading(model, priced_as, table)
    matches = table.matches(model, arguments.served, priced_as)
    for number, match in enumerate(matches, 1):
        kind = "published" if match.row.reference else "your own"
        text = (
            f"{number}. {match.row.model} ({kind}; {match.rule})\n   {_conditions(match.row)} {_rates(match.row)}"
        )
        console.print(text, soft_wrap=True)
    if not matches:
        console.print(f"Unpriced: no row matches {model}. {_price_it(model)}", style="yellow", soft_wrap=True)
    return 0 if matches else 1


def run_explain(arguments: argparse.Namespace) -> int:
    table, (model, priced_as) = _table(arguments), _names(arguments.model)
    at_us = SYSTEM_CLOCK.now_us() if arguments.at is None else _moment(arguments.at)
    usage = TokenUsage(
        input_tokens=arguments.input,
        output_tokens=arguments.output,
        cached_input_tokens=arguments.cache_read,
        cache_creation_input_tokens=arguments.cache_write,
        service_tier=arguments.tier,
    )
    bill = table.explain(model, usage, at_us, served_model=arguments.served, priced_as=priced_as)
    console = make_console()
    _heading(model, priced_as, table)
    console.print(f"At {_iso(at_us)}, {usage.total_input_tokens} input tokens in total.")
    for match in table.matches(model, arguments.served, priced_as):
        chosen = match.row is bill.row
        why = "taken" if chosen else _why_not(match.row, at_us, usage)
        console.print(
            f"{'*' if chosen else '-'} {match.row.model} {_conditions(match.row)} ({match.rule}): {why}",
            soft_wrap=True,
        )
        if chosen:
            break
    for part in bill.components:
        rate = f", at the {part.rate_name} rate" if part.rate_name else ""
        console.print(
            f"  {part.name}: {part.count} x {part.rate} pico-USD{rate} = {part.pico_usd} pico-USD", highlight=False
        )
    if bill.cost.usd is None:
        hint = "" if table.matches(model, arguments.served, priced_as) else f" {_price_it(model)}"
        console.print(f"Unpriced: {bill.cost.reason}.{hint}", style="yellow", soft_wrap=True)
        return 1
    if bill.cost.reason:
        console.print(f"  ({bill.cost.reason})")
    console.print(f"Total {bill.pico_usd} pico-USD, rounded once: ${bill.cost.usd:f}", style="bold")
    return 0


def run_update(arguments: argparse.Namespace) -> int:
    console, home = make_console(), home_folder()
    path = home / SNAPSHOT_NAME
    if arguments.shipped:
        path.unlink(missing_ok=True)
        console.print(f"The published prices are the ones shipped with Callboard: {PriceTable.default().label}")
        return 0
    source: str = arguments.source
    snapshot = read_source(download(source, price_snapshot.MOST_BYTES), source)
    before, after = published_table(home), PriceTable.of(snapshot.prices())
    for line in difference(before, after):
        console.print(line, soft_wrap=True)
    for reason, models in snapshot.left_out.items():
        console.print(f"left out: {reason} ({plural(models, 'model')})", style="dim")
    if arguments.dry_run:
        console.print("Nothing was changed.", style="dim")
        return 0
    home.mkdir(parents=True, exist_ok=True)
    write_private(path, price_snapshot.encode(snapshot))
    console.print(f"Published prices are now {after.label} ({after.version}), in {path}", soft_wrap=True)
    return 0


def run_use(arguments: argparse.Namespace) -> int:
    console, home = make_console(), home_folder()
    path = home / OWN_NAME
    data = None
    if not arguments.published:
        PriceTable.from_yaml(arguments.file)  # checks that it is a valid price file
        with failing_as(ConfigurationError, arguments.file):
            data = arguments.file.read_bytes()
    if path.exists():
        before = path.with_name(f"{OWN_NAME}.before")
        path.replace(before)
        console.print(f"The previous file is kept as {before}", style="dim", soft_wrap=True)
    if data is not None:
        home.mkdir(parents=True, exist_ok=True)
        write_private(path, data)
    table = price_table(home)
    text = f"Engines that start from now on price calls with {table.label} ({table.version})."
    console.print(text, soft_wrap=True)
    return 0


def read_source(data: bytes, source: str) -> price_snapshot.Snapshot:
    """Read a snapshot, or convert genai-prices' data to a snapshot."""
    value = parse(data, source)
    if isinstance(value, dict) and "format" in value:
        return price_snapshot.decode(data, source)
    return convert(value, source=f"genai-prices, {source}", day=datetime.now(UTC).date().isoformat())


def difference(before: PriceTable, after: PriceTable) -> list[str]:
    """The changes from one table to another, by model."""
    old, new = _by_model(before), _by_model(after)

    def rates(model: str) -> str:
        return " -> ".join(_rates(table[model][0]) for table in (old, new) if model in table)

    return differences(old, new, rates) or ["no price has changed"]


def _by_model(table: PriceTable) -> dict[str, list[PriceRow]]:
    groups: dict[str, list[PriceRow]] = {}
    for row in table.rows:
        groups.setdefault(row.model, []).append(row)
    return groups


def _table(arguments: argparse.Namespace) -> PriceTable:
    return price_table(home_folder(), arguments.prices)


def _names(name: str) -> tuple[str, str | None]:
    """The full ``provider:name``, and the provider whose published prices apply."""
    registry = load_registry(None)
    try:
        entry = registry.resolve(name).model
    except ConfigurationError:
        if ":" not in name:
            raise
        return name, None  # the provider isn't configured
    routed = f"{entry.adapter}:{entry.wire_name}"
    return routed, published_name(registry.adapters[entry.adapter], entry)


def _price_it(model: str) -> str:
    """Advice about a model without a price."""
    adapter = model.partition(":")[0]
    return (
        f"If a provider's published prices apply, set adapters.{adapter}.prices_as in models.yaml, or pass "
        "prices_as= to Engine.register. Otherwise add a row to prices.yaml."
    )


def _heading(model: str, priced_as: str | None, table: PriceTable) -> None:
    known_as = f", in price lists {priced_as}" if priced_as else ""
    text = f"{model}{known_as}, under {table.label} ({table.version})"
    make_console().print(text, style="bold", soft_wrap=True)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError as error:
        raise ConfigurationError(f"--at: expected a date, or a time with its offset, found {text!r}") from error
    return int(moment.timestamp()) * US_PER_SECOND


def _iso(moment_us: int) -> str:
    return datetime.fromtimestamp(moment_us / US_PER_SECOND, UTC).isoformat(timespec="seconds")


def _why_not(row: PriceRow, at_us: int, usage: TokenUsage) -> str:
    if row.valid_from is not None and at_us < row.valid_from:
        return "not yet valid"
    if row.valid_to is not None and at_us >= row.valid_to:
        return "no longer valid"
    if row.above and usage.total_input_tokens <= row.above:
        return "for more input tokens"
    if not row.covers(at_us, usage.total_input_tokens):
        return "for other hours of the day"
    return "for another service tier"


def _conditions(row: PriceRow) -> str:
    parts = []
    if row.service_tier:
        parts.append("any tier" if row.service_tier == "*" else f"tier {row.service_tier}")
    if row.above:
        parts.append(f"above {row.above} input tokens")
    if row.valid_from is not None:
        parts.append(f"from {_iso(row.valid_from)[:10]}")
    if row.valid_to is not None:
        parts.append(f"until {_iso(row.valid_to)[:10]}")
    if row.daily_from is not None and row.daily_to is not None:
        hours = (f"{second // 3600:02}:{second // 60 % 60:02}" for second in (row.daily_from, row.daily_to))
        parts.append(f"{'-'.join(hours)} UTC")
    return f"[{', '.join(parts)}]" if parts else ""


def _rates(row: PriceRow) -> str:
    """The rates of a row as text, in US dollars per million units."""
    rates = {name: getattr(row, name) for name in BUCKETS} | row.extra
    parts = [f"{name} {_dollars(rate)}" for name, rate in rates.items() if rate is not None]
    if row.per_request:
        parts.append(f"request {_dollars(row.per_request)}")
    return ", ".join(parts) + " $/M" if parts else "no rates"


def _dollars(pico_usd: int) -> str:
    return f"{pico_usd // 10**6}.{pico_usd % 10**6:06}".rstrip("0").rstrip(".")


# --- Updates ---
# The updates of models and prices share their options, the shown difference, and the download. A source is a file
# or an https URL. It is only read on request, with limits on size and time.

SECONDS = 60.0
"""The time limit of a download, in seconds."""

MOST_SHOWN = 20
"""The maximum number of lines of one kind in a difference."""


def add_update_options(parser: argparse._ActionsContainer, upstream: str, shipped: str) -> None:
    parser.add_argument(
        "--from", dest="source", default=upstream, metavar="FILE|URL", help="read this file or https URL instead"
    )
    flag(parser, "--dry-run", help="only show the differences")
    flag(parser, "--shipped", help=f"restore {shipped}")


def differences(old: Mapping[str, object], new: Mapping[str, object], facts: Callable[[str], str]) -> list[str]:
    """List each new, removed and changed name; at most `MOST_SHOWN` lines of each kind."""
    kinds = {
        "new": sorted(new.keys() - old.keys()),
        "gone": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
    }
    lines = []
    for kind, names in kinds.items():
        lines += [f"{kind}: {name} {facts(name)}" for name in names[:MOST_SHOWN]]
        if len(names) > MOST_SHOWN:
            lines.append(f"{kind}: and {len(names) - MOST_SHOWN} more")
    return lines


def download(source: str, most_bytes: int) -> bytes:
    """Read the bytes of a path or of an https URL."""
    if "://" not in source:
        try:
            with Path(source).open("rb") as file:
                data = file.read(most_bytes + 1)
        except OSError as error:
            raise ConfigurationError(f"{source}: can't be read: {error}") from error
        _refuse_large(data, source, most_bytes)
        return data
    if not source.startswith("https://"):
        raise ConfigurationError(f"{source}: must be an https address or a file")
    return anyio.run(_fetch, source, most_bytes)


async def _fetch(url: str, most_bytes: int) -> bytes:
    from callboard.adapters.transport.connection_pool import new_transport
    from callboard.adapters.transport.transport import HttpRequest

    transport, data = new_transport(), b""
    try:
        with anyio.fail_after(SECONDS):
            reply = await transport.send(HttpRequest("GET", url, {"accept": "application/json"}, b""))
            try:
                if reply.status != 200:
                    raise CallboardError(f"{url}: returned status {reply.status}. Nothing was changed")
                while (chunk := await reply.chunk()) is not None:
                    data += chunk
                    _refuse_large(data, url, most_bytes)
            finally:
                await reply.aclose()
    except AdapterError as error:
        raise CallboardError(f"{url} can't be read, so nothing was changed: {error}") from error
    except TimeoutError as error:
        raise CallboardError(f"{url}: no answer within {SECONDS:.0f} s. Nothing was changed") from error
    finally:
        await transport.aclose()
    return data


def _refuse_large(data: bytes, source: str, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise ConfigurationError(f"{source}: is larger than {most_bytes} bytes, which is too large")
