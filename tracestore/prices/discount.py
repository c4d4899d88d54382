"""The rows of a price table at other rates, such as a discount that was agreed upon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation

import msgspec

from callboard.bus.errors import ConfigurationError

from .matching import fits
from .rows import BUCKETS, PriceRow


def discounted(rows: Iterable[PriceRow], factors: Mapping[str, Decimal | int | str]) -> tuple[list[PriceRow], str]:
    """The rows at other rates, and the factors in words.

    Args:
        rows: The rows.
        factors: As `PriceTable.discounted` takes them.

    Raises:
        ConfigurationError: As `PriceTable.discounted` says.
    """
    exact = {pattern: _factor(pattern, factor) for pattern, factor in factors.items()}
    by_rank = sorted(exact, key=lambda pattern: len(pattern.replace("*", "")), reverse=True)
    unused = set(by_rank)
    found = []
    for row in rows:
        fitting = [pattern for pattern in by_rank if fits(pattern.lower().split("*"), row.model.lower())]
        unused.difference_update(fitting)
        found.append(_times(row, exact[fitting[0]]) if fitting else row)
    if unused:
        raise ConfigurationError(
            f"no price row is for {min(unused)!r}, so a factor on it would change nothing; "
            "`callboard prices show` lists the rows of a model"
        )
    return found, ", ".join(f"{factor} x {pattern}" for pattern, factor in exact.items())


def _factor(pattern: str, factor: object) -> Decimal:
    if isinstance(factor, Decimal | int | str) and not isinstance(factor, bool):
        try:
            exact = Decimal(factor)
        except InvalidOperation:
            exact = Decimal("NaN")
        if exact.is_finite() and exact >= 0:
            return exact
    raise ConfigurationError(
        f"the factor on {pattern!r} is {factor!r}; give a text, an int or a Decimal of at least 0, such as "
        '"0.8" for 20 % off'
    )


def _times(row: PriceRow, factor: Decimal) -> PriceRow:
    rates = {name: getattr(row, name) for name in (*BUCKETS, "per_request")}
    changed = {name: _rounded(rate * factor) for name, rate in rates.items() if rate is not None}
    extra = {name: _rounded(rate * factor) for name, rate in row.extra.items()}
    return msgspec.structs.replace(row, **changed, extra=extra)


def _rounded(rate: Decimal) -> int:
    """A rate in whole pico-USD, half up."""
    return int((rate + Decimal("0.5")) // 1)
