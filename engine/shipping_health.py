"""The findings about a trace file that is shipped to a shared store, from what is known on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from callboard.bus import StoreError

from .health_report import Check


async def check_shipping(trace: Path) -> list[Check]:
    """How far each shared store is that the file is shipped to. No store is asked."""
    from callboard.tracestore.shipping.marks import backlogs

    try:
        found = await backlogs(trace)
    except StoreError as error:
        return [Check("store:shipping", False, str(error), "Make the trace file readable.")]
    checks = []
    for each in found:
        last = f", last at {datetime.fromtimestamp(each.shipped_us / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
        erasures = f" and {each.erasures:,} deletions" if each.erasures else ""
        last = last if each.shipped_us else ", never reached"
        detail = f"{each.behind:,} events{erasures} wait for {each.target}{last}"
        if each.failing:
            fix = "Mend what it names; what waits is in the trace file, and is then sent by itself."
            checks.append(Check("store:shipping", False, f"{detail}: {each.failing}", fix))
        else:
            waits = each.behind or each.erasures
            fix = "A program with ship_to, or `callboard ship`, sends them." if waits else ""
            checks.append(Check("store:shipping", True, detail, fix))
    return checks
