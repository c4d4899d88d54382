"""Which stored calls are of unknown cost, as SQL: as `CostSum` says it, and those without an end."""

from __future__ import annotations

from collections.abc import Iterable

from bus.values.cost_sum import UNANSWERED, UNCLEAR


def usage_unknown(row: str) -> str:
    """A condition on a row of `calls`; 0 or 1, and never NULL."""
    return (
        f"({row}.usage_source IS NULL AND {row}.cost_nano IS NULL AND ({row}.status = 'started'"
        f" OR coalesce({row}.error_class, '') IN ({_listed(UNANSWERED)})"
        f" OR (coalesce({row}.error_class, '') IN ({_listed(UNCLEAR)}) AND {row}.provider_status IS NULL)))"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


NEW_INDEXES = (
    "CREATE INDEX calls_without_usage ON calls (model, day) WHERE usage_source IS NULL",
    "CREATE INDEX calls_estimated ON calls (model, day) WHERE usage_source = 'estimated'",
)
"""So that a repricing can count what is beside its sums without reading all calls."""
