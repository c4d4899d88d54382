"""The price table in force, and the age of the published prices in it, as `callboard doctor` tells them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from callboard.bus import Clock, ConfigurationError
from callboard.engine import Check
from callboard.tracestore.prices.home import OWN_NAME, SNAPSHOT_NAME, price_table, published_snapshot

from ..common.words import plural

OLD_DAYS = 45
"""The age in days at which newer prices are advised."""


def check_prices(home: Path, clock: Clock) -> Check:
    """Which prices new calls have, and how old the published ones are. Old ones are no fault."""
    try:
        table, published = price_table(home), published_snapshot(home)
    except ConfigurationError as error:
        return Check("prices", False, str(error), "Correct the file that it names, or remove it.")
    days = age_in_days(published.date, clock)
    age = "" if days is None else f", {plural(days, 'day')} old"
    where = f" in {home / SNAPSHOT_NAME}" if (home / SNAPSHOT_NAME).exists() else ", as shipped"
    own = f"; before them {home / OWN_NAME}" if (home / OWN_NAME).exists() else ""
    fix = "`callboard prices update` takes newer ones." if days is not None and days > OLD_DAYS else ""
    detail = f"{published.source} of {published.date}{age}{where}{own} (version {table.version})"
    return Check("prices", True, detail, fix)


def age_in_days(written: str, clock: Clock) -> int | None:
    """How many days ago a day was, by the clock in UTC; None if it can't be read."""
    try:
        day = date.fromisoformat(written)
    except ValueError:
        return None
    return max(0, (datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC).date() - day).days)
