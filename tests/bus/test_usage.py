"""Money: exact, and unknown where it is."""

from __future__ import annotations

import pytest

from callboard.bus import Cost, CostSource


@pytest.mark.parametrize(
    ("nano_usd", "text"), [(0, "0"), (1, "1E-9"), (1_000_000, "0.001000000"), (2_500_000_000, "2.500000000")]
)
def test_a_cost_in_dollars_is_exact_and_nothing_reads_as_0(nano_usd: int, text: str) -> None:
    """A cost that is printed as it is should be readable, above all where it is nothing."""
    assert str(Cost(nano_usd, CostSource.COMPUTED).usd) == text


def test_a_sum_of_costs_is_known_only_if_all_are() -> None:
    """One unpriced call makes the sum unknown, with its reason; a version stays only if it is everybody's."""
    one, two = Cost(1, CostSource.COMPUTED, "v1"), Cost(2, CostSource.PROVIDER, "v1")
    assert one + two == Cost(3, CostSource.COMPUTED, "v1")
    assert two + two == Cost(4, CostSource.PROVIDER, "v1")
    assert one + Cost(5, CostSource.COMPUTED, "v2") == Cost(6, CostSource.COMPUTED)
    unknown = Cost(None, CostSource.UNPRICED, reason="no price")
    assert one + unknown == unknown + one == Cost(None, CostSource.UNPRICED, reason="no price")
