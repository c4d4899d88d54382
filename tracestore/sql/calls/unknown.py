"""The condition for stored calls of unknown cost: as `CostSum` says it, and those without an end."""

from __future__ import annotations

from collections.abc import Iterable

from callboard.bus.values.cost_sum import UNANSWERED, UNCLEAR


def usage_unknown(row: str) -> str:
    """A condition on a row of `calls`, never NULL."""
    return (
        f"({row}.usage_source IS NULL AND {row}.cost_nano IS NULL AND ({row}.status = 'started'"
        f" OR coalesce({row}.error_class, '') IN ({_listed(UNANSWERED)})"
        f" OR (coalesce({row}.error_class, '') IN ({_listed(UNCLEAR)}) AND {row}.provider_status IS NULL)))"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
