"""A price table at other rates."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import ConfigurationError
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import PriceTable
from callboard.tracestore.prices.rows import PriceAlias, PriceRow

ROWS = (
    PriceRow(model="anthropic:opus", input=5_000_000, output=25_000_000, cache_read=500_001, valid_to=1000),
    PriceRow(model="anthropic:opus", input=4_000_000, output=20_000_000, valid_from=1000, above=200_000),
    PriceRow(model="anthropic:opus", input=9_000_000, output=9_000_000, service_tier="priority", per_request=7),
    PriceRow(model="anthropic:haiku", input=1_000_001, extra={"web_search": 10_000_000_000}),
    PriceRow(model="openai:gpt-5", input=1_250_000, output=10_000_000, reference=True),
)
TABLE = PriceTable(ROWS, "ours", aliases=[PriceAlias("azure:*", "openai:*")])


def test_a_discount_is_on_every_rate_of_the_models_that_it_names() -> None:
    """Tiers, dates, sizes and missing rates stay; other models and aliases as well."""
    table = TABLE.discounted({"anthropic:*": "0.8"})
    haiku, old, new, priority, gpt = table.rows
    assert (haiku.input, haiku.output, haiku.extra) == (800_001, None, {"web_search": 8_000_000_000})
    assert (old.input, old.output, old.cache_read, old.valid_to) == (4_000_000, 20_000_000, 400_001, 1000)
    assert (new.input, new.cache_read, new.valid_from, new.above) == (3_200_000, None, 1000, 200_000)
    assert (priority.input, priority.service_tier, priority.per_request) == (7_200_000, "priority", 6)
    assert gpt == ROWS[-1]
    assert table.aliases == TABLE.aliases
    assert table.label == "0.8 x anthropic:* of ours"


def test_the_factor_with_more_letters_counts_and_they_are_not_multiplied() -> None:
    """Whatever their order."""
    table = TABLE.discounted({"*": 2, "anthropic:haiku": Decimal("0.5"), "anthropic:*": "0.8"}, label="agreed")
    assert [row.input for row in table.rows] == [500_001, 4_000_000, 3_200_000, 7_200_000, 2_500_000]
    assert table.label == "agreed"


@pytest.mark.parametrize("factor", [0.8, "eight", "-1", "nan", "inf", True, None, ""])
def test_a_factor_that_is_no_exact_number_is_refused(factor: object) -> None:
    """A float would not be the number that was meant."""
    with pytest.raises(ConfigurationError, match="the factor on 'anthropic:\\*' is"):
        TABLE.discounted({"anthropic:*": factor})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["azure:*", "anthropic:sonnet", "opus"])
def test_a_discount_that_would_change_nothing_is_refused(name: str) -> None:
    """Such as one on a name that is priced as another one."""
    with pytest.raises(ConfigurationError, match="no price row is for"):
        TABLE.discounted({"openai:*": "0.5", name: "0.8"})


@given(st.decimals(0, 2, places=3), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_bill_under_a_discount_is_the_bill_times_the_factor(factor: Decimal, tokens: int, out: int) -> None:
    """To within the rounding of a rate to a pico-dollar, and of the sum to a nano-dollar."""
    usage = TokenUsage(input_tokens=tokens, output_tokens=out)
    full = TABLE.price("openai:gpt-5", usage, 0).nano_usd
    less = TABLE.discounted({"openai:*": factor}).price("openai:gpt-5", usage, 0).nano_usd
    assert full is not None
    assert less is not None
    assert abs(less - full * factor) <= Decimal(tokens + out) / 2000 + 2
