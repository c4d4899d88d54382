"""Amounts, counts, durations and times as text. Money is integer nano-USD. No float comes near it."""

from __future__ import annotations

from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

from callboard.bus import Cost
from callboard.bus.values.usage import CostSum
from callboard.tracestore.timestamps import iso_moment

if TYPE_CHECKING:
    from rich.console import Console


def seconds(milliseconds: int | None) -> str:
    """A duration, short: milliseconds below a second."""
    if milliseconds is None:
        return "-"
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rate(part: float | None) -> str:
    """A part of a whole in per cent; a dash if there is no whole."""
    return "-" if part is None else f"{part * 100:.1f}%"


def moment_text(ts_us: int | None) -> str:
    """A local time. The date is left out if it is today."""
    if ts_us is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(ts_us // 1_000_000).astimezone()
    except (ValueError, OverflowError, OSError):
        return iso_moment(ts_us)  # of a clock that was set to nonsense
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


# --- Money ---

NANO = 1_000_000_000


def usd(nano_usd: int) -> str:
    """An amount with the digits that matter at its size: a call's to the nano-dollar, a month's to the cent."""
    size = abs(nano_usd)
    if size == 0:
        return "$0"
    places = 9 if size < NANO // 100 else 6 if size < NANO else 2 if size >= 1000 * NANO else 4
    shown = Decimal(size).scaleb(-9).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"{'-' if nano_usd < 0 else ''}${shown:,f}"


def rounded(nano_usd: int) -> str:
    """An amount for the eye: to the cent from a dollar on, and below with the digits that matter."""
    if abs(nano_usd) < NANO:
        return usd(nano_usd)
    cents = Decimal(abs(nano_usd)).scaleb(-9).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return f"{'-' if nano_usd < 0 else ''}${cents:,f}"


def exact(nano_usd: int, places: int = 2) -> str:
    """An amount with all its digits, and at least so many decimals. A minus is the typographic one, for print."""
    whole, _, part = f"{Decimal(abs(nano_usd)).scaleb(-9):.9f}".partition(".")
    return f"{'−' if nano_usd < 0 else ''}${int(whole):,}.{part.rstrip('0').ljust(places, '0')}"


def places(nano_usd: int) -> int:
    """How many decimals an amount has."""
    return len(f"{abs(nano_usd) % NANO:09}".rstrip("0"))


def cost_text(cost: Cost | None) -> str:
    """A call's cost. Without a figure, the text gives the reason."""
    if cost is None:
        return "-"
    return "unpriced" if cost.nano_usd is None else usd(cost.nano_usd)


def difference(before: int, after: int) -> str:
    """The change, with its sign."""
    change = after - before
    return "no change" if change == 0 else f"{'+' if change > 0 else '-'}{usd(abs(change))}"


def percent(before: int, after: int) -> str:
    """The change in per cent, with its sign. Empty if there was nothing before, or no change."""
    change = after - before
    if change == 0 or before <= 0:
        return ""
    sign = "+" if change > 0 else "-"
    permille = (abs(change) * 1000 + before // 2) // before
    if permille < 100:
        return f"{sign}{permille // 10}.{permille % 10}%"
    return f"{sign}{(abs(change) * 100 + before // 2) // before:,}%"


def sum_text(total: CostSum) -> str:
    """A sum, with the number of calls that are in no amount."""
    if total.calls and total.unpriced == total.calls:
        return "unpriced"
    if total.calls and total.unknown == total.calls:
        return "unknown"
    return " + ".join([usd(total.nano_usd), *beside(total)])


def beside(total: CostSum) -> list[str]:
    """How many calls are in no amount, and why."""
    kinds = ((total.unpriced, "unpriced"), (total.unknown, "unknown"))
    return [f"{count:,} {kind}" for count, kind in kinds if count]


def tell_beside(console: Console, total: CostSum, unpriced: str = "without a price") -> None:
    """The calls that a sum lacks, and the estimates in it, one line each."""
    if total.unpriced:
        console.print(f"{plural(total.unpriced, 'call')} {unpriced}, and in no sum.", style="yellow")
    if total.unknown:
        console.print(
            f"{plural(total.unknown, 'call')} of unknown cost, and in no sum: cut off before any usage was known, "
            "or without an end.",
            style="yellow",
            soft_wrap=True,
        )
    if total.estimated:
        console.print(f"{plural(total.estimated, 'call')} counted by estimate.", style="dim")
