"""The most that a call can cost, against what calls within its bounds do cost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.usage.estimate import upper_end
from callboard.bus import TokenUsage
from callboard.engine.budgets.ledger import Amount
from callboard.engine.budgets.worst_case import Priced, most_of_images, tool_fees, worst_case, worst_case_of_reply
from callboard.tracestore import PriceRow, PriceTable

rates = st.integers(0, 10_000)
perhaps = st.none() | rates
rows = st.builds(
    PriceRow,
    model=st.just("s:m"),
    input=rates,
    output=rates,
    reasoning=perhaps,
    cache_read=perhaps,
    cache_write_5m=perhaps,
    cache_write_1h=perhaps,
    per_request=rates,
)


@st.composite
def tables(draw: st.DrawFn) -> PriceTable:
    """Tables with tiers of any price, dearer or cheaper ones."""
    cliffs = draw(st.sets(st.integers(1, 200), max_size=2))
    found = [draw(rows), *(_above(draw(rows), cliff) for cliff in cliffs)]
    return PriceTable(found, "random")


def _above(row: PriceRow, tokens: int) -> PriceRow:
    return msgspec.structs.replace(row, above=tokens)


@given(
    table=tables(),
    estimate=st.integers(0, 150),
    most_output=st.integers(0, 300),
    shares=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_no_call_within_its_bounds_costs_more_than_its_worst_case(
    table: PriceTable, estimate: int, most_output: int, shares: list[float]
) -> None:
    """However its input is split among plain, read and written tokens, and its output among said and thought."""
    priced = Priced(table, "s:m", 0)
    most = worst_case_of_reply(priced, estimate, most_output, {})
    sent = int((upper_end(estimate) if estimate else 0) * shares[0])
    cached = int(sent * shares[1])
    written = int((sent - cached) * shares[2])
    said = int(most_output * shares[3])
    usage = TokenUsage(
        sent - cached - written,
        said,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=int(written * shares[4]),
        reasoning_tokens=int(said * shares[5]),
    )
    cost = priced.nano_usd(usage)
    assert most.nano_usd is not None
    assert usage.total_tokens <= most.tokens
    assert cost is None or cost <= most.nano_usd


@pytest.mark.parametrize(
    ("estimate", "output", "fees"),
    [(None, 100, {}), (10, None, {}), (10, 100, None)],
    ids=["no estimate", "no limit on the output", "tools without a limit"],
)
def test_a_call_that_nothing_bounds_has_no_worst_case(
    estimate: int | None, output: int | None, fees: dict[str, int] | None
) -> None:
    """Its money is unknown, so that budgets refuse it or look away, as the host says."""
    table = PriceTable([PriceRow(model="s:m", input=1, output=1)], "t")
    assert worst_case_of_reply(Priced(table, "s:m", 0), estimate, output, fees).nano_usd is None


@pytest.mark.parametrize(
    ("options", "fees"),
    [
        ({}, {}),
        ({"openai": {"tools": [{"type": "function", "name": "f"}]}}, {}),
        ({"anthropic": {"tools": [{"type": "web_search_20250305", "max_uses": 3}]}}, {"web_search": 3}),
        ({"anthropic": {"tools": [{"type": "web_search_20250305"}]}}, None),
        ({"gemini": {"tools": [{"google_search": {}}]}}, None),
    ],
)
def test_tools_that_the_provider_runs_are_counted_as_often_as_they_may_be_used(
    options: dict[str, object], fees: dict[str, int] | None
) -> None:
    """A tool without a limit has no worst case."""
    assert tool_fees(options) == fees  # type: ignore[arg-type]


def test_fees_of_tools_are_in_the_worst_case() -> None:
    """Three searches at ten dollars for a thousand."""
    row = PriceRow(model="s:m", input=0, output=0, extra={"web_search": 10_000_000_000})
    most = worst_case_of_reply(Priced(PriceTable([row], "t"), "s:m", 0), 1, 1, {"web_search": 3})
    assert most.nano_usd == 30_000_000


def test_images_are_priced_by_the_piece_or_by_tokens_whichever_is_known_and_dearer() -> None:
    """Providers count one or the other."""
    by_piece = PriceRow(model="s:m", extra={"image": 40_000_000_000})
    assert worst_case(Priced(PriceTable([by_piece], "t"), "s:m", 0), most_of_images(0, 2)).nano_usd == 80_000_000
    by_token = PriceRow(model="s:m", input=0, output=1_000)
    most = worst_case(Priced(PriceTable([by_token], "t"), "s:m", 0), most_of_images(0, 2))
    assert most == Amount(2 * 8192, 2 * 8192 + upper_end(0))
