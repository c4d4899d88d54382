"""Fits rates between bounds, so that weighted sums of counts match given totals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Numbers = Sequence[float]


@dataclass(frozen=True)
class Bounds:
    """The bounds of the rates, and their start values."""

    start: Numbers
    """The rates at the start of a descent, to which the fit is pulled."""
    smallest: Numbers
    largest: Numbers
    pull: float
    """The weight of the start values, in rows."""


def solve(rows: Sequence[Numbers], targets: Numbers, bounds: Bounds) -> list[float]:
    """Return the better of two descents, rounded to three digits."""
    found = [_descend(rows, targets, bounds, even) for even in (True, False)]
    best = min(found, key=lambda rates: _loss(rates, rows, targets))
    return [float(f"{rate:.3g}") for rate in best]


def dot(rates: Iterable[float], row: Iterable[float]) -> float:
    """The weighted sum of a row of counts."""
    return sum(rate * number for rate, number in zip(rates, row, strict=True))


def _loss(rates: Numbers, rows: Sequence[Numbers], targets: Numbers) -> float:
    estimates = [dot(rates, row) for row in rows]
    return sum(abs(is_ - want) / max(is_, want) for is_, want in zip(estimates, targets, strict=True))


def _descend(rows: Sequence[Numbers], targets: Numbers, bounds: Bounds, even: bool) -> list[float]:
    """Coordinate descent on reweighted squares.

    First of relative errors, then nearly their absolute values, relative to the larger of count and estimate: so
    one odd row moves little, however far it is off.

    Args:
        rows: The counts of each row.
        targets: The sum that each row should come to.
        bounds: What the rates may be.
        even: Whether it begins with absolute errors, so that the large rows draw it first.
    """
    columns = list(zip(*rows, strict=True))
    rates = list(bounds.start)
    mean = statistics.fmean(targets)
    for step in range(60):
        residuals = [want - dot(rates, row) for want, row in zip(targets, rows, strict=True)]
        softness = 1.0 if step < 20 else 0.02
        scales = [max(want, want - e) for e, want in zip(residuals, targets, strict=True)]
        if even and step == 0:
            scales = [mean] * len(targets)
        weights = [1 / (scale * max(abs(e), softness * scale)) for e, scale in zip(residuals, scales, strict=True)]
        for _ in range(100 if step == 0 else 10):
            _sweep(rates, columns, residuals, weights, bounds)
    return rates


def _sweep(
    rates: list[float], columns: Sequence[Numbers], residuals: list[float], weights: Numbers, bounds: Bounds
) -> None:
    """Move each rate to its optimum, with the others fixed."""
    for place, column in enumerate(columns):
        squares = sum(w * x * x for w, x in zip(weights, column, strict=True))
        if not squares:
            continue
        pull = bounds.pull * squares / len(residuals)
        towards = sum(w * x * e for w, x, e in zip(weights, column, residuals, strict=True))
        best = (towards + squares * rates[place] + pull * bounds.start[place]) / (squares + pull)
        best = min(max(best, bounds.smallest[place]), bounds.largest[place])
        moved = best - rates[place]
        if moved:
            residuals[:] = [e - moved * x for e, x in zip(residuals, column, strict=True)]
            rates[place] = best
