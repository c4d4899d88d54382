"""Price tables, discounts, and the savings of prompt caches."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import CostSource
from callboard.bus import ConfigurationError
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import CallFilter, PriceTable, TraceStore, cache_savings
from callboard.tracestore.prices.rows import PriceAlias, PriceRow
from callboard.tracestore.prompt_caches import CacheSavings, without_cache

from ..support.present import present
from .trace_making import Maker

# Prices are integers, rounded once. The most specific row applies, and unknown is never zero.

YEAR_2025 = 1_735_689_600_000_000
YEAR_2026 = 1_767_225_600_000_000
DEMO = Path(__file__).parents[2] / "examples" / "demo-prices.yaml"


def row(model: str = "p:m", **fields: object) -> PriceRow:
    rates = {"input": 1, "output": 2, "cache_read": 3, "cache_write_5m": 4, "cache_write_1h": 5}
    return PriceRow(model=model, **{**rates, **fields})  # type: ignore[arg-type]


def one(*rows: PriceRow) -> PriceTable:
    return PriceTable.from_rows(rows, "test")


counts = st.integers(0, 2_000_000)


@st.composite
def usages(draw: st.DrawFn) -> TokenUsage:
    """Usage with consistent counts."""
    output, written = draw(counts), draw(counts)
    return TokenUsage(
        input_tokens=draw(counts),
        output_tokens=output,
        cached_input_tokens=draw(counts),
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=draw(st.integers(0, written)),
        reasoning_tokens=draw(st.none() | st.integers(0, output)),
    )


rates = st.integers(0, 100_000_000)


@st.composite
def full_rows(draw: st.DrawFn) -> PriceRow:
    """A row with every rate."""
    names = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "per_request")
    return PriceRow(model="p:m", reasoning=draw(st.none() | rates), **{name: draw(rates) for name in names})


@given(full_rows(), usages())
def test_components_sum_to_the_total(price: PriceRow, usage: TokenUsage) -> None:
    """The lines of a bill add up exactly. The cost is their sum, rounded once, half up."""
    bill = one(price).explain("p:m", usage, 0)
    assert bill.pico_usd == sum(part.pico_usd for part in bill.components)
    assert all(part.pico_usd == part.count * part.rate for part in bill.components)
    exact = Decimal(bill.pico_usd) / 1000
    assert bill.cost.nano_usd == int(exact.to_integral_value("ROUND_HALF_UP"))
    tokens = sum(part.count for part in bill.components if part.name != "request")
    free = {name for name in ("input", "output") if price.rate(name) == 0}
    assert free or tokens == usage.total_tokens


@pytest.mark.parametrize(("tokens", "rate"), [(200_000, 10), (200_001, 20), (1_000_000, 30), (1_000_001, 40)])
def test_above_its_threshold_a_tier_applies_to_all_tokens(tokens: int, rate: int) -> None:
    """At the threshold the lower rate applies. With one token more, all tokens pay the higher rate."""
    table = one(
        row(input=10), row(input=20, above=200_000), row(input=30, above=999_999), row(input=40, above=10**6)
    )
    usage = TokenUsage(input_tokens=tokens - 5, cached_input_tokens=5)
    bill = table.explain("p:m", usage, 0)
    assert bill.components[0].rate == rate


def test_the_most_specific_row_wins() -> None:
    """An exact name comes first, then an undated one, then the pattern with more letters."""
    table = one(
        row("p:*", input=1),
        row("p:big-*", input=2),
        row("p:big-one", input=3),
        row("p:big-one-2025-08-06", input=4),
        row("*:big-*", input=5),
    )
    one_of_big = "p:big-one", "p:big-one-20250101", "p:big-one-2025-08-06"
    found = [present(table.find(name, 0)).input for name in ("p:other", "p:big-two", *one_of_big, "q:big-1")]
    assert found == [1, 2, 3, 3, 4, 5]
    assert table.find("q:small", 0) is None


def test_the_served_model_is_billed() -> None:
    """The model that the provider reports comes before the requested one."""
    table = one(row("p:alias", input=1), row("p:real", input=2))
    assert table.price("p:alias", TokenUsage(1000), 0, served_model="real-20250101").nano_usd == 2
    assert table.price("p:alias", TokenUsage(1000), 0, served_model="p:real").nano_usd == 2
    assert table.price("p:alias", TokenUsage(1000), 0, served_model="unheard-of").nano_usd == 1


def test_a_price_applies_from_inclusive_to_exclusive() -> None:
    """A price change applies from its time on. Before the first price, a call has no price."""
    table = one(row(input=1, valid_from=YEAR_2025, valid_to=YEAR_2026), row(input=2, valid_from=YEAR_2026))
    assert table.find("p:m", YEAR_2025 - 1) is None
    assert [table.find("p:m", at).input for at in (YEAR_2025, YEAR_2026 - 1, YEAR_2026)] == [1, 1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("price", "usage", "reason"),
    [
        (row("p:other"), TokenUsage(1), "no price for p:m"),
        (row(output=None), TokenUsage(1, 1), "no output rate for p:m"),
        (row(input=None, cache_read=None), TokenUsage(0, 1, 1), "no cache_read rate for p:m"),
        (row(cache_write_1h=None), TokenUsage(0, 0, 0, 5, 1), "no cache_write_1h rate for p:m"),
        (row(), TokenUsage(1, 1, reasoning_tokens=2), "usage inconsistent"),
        (row(), TokenUsage(1, 1, 0, 1, 2), "usage inconsistent"),
        (row(), TokenUsage(-1), "usage inconsistent"),
        (row(input=10**15), TokenUsage(10**6), "cost too large"),
    ],
)
def test_a_call_without_a_price_is_unpriced_with_a_reason(price: PriceRow, usage: TokenUsage, reason: str) -> None:
    table = one(price)
    cost = table.price("p:m", usage, 0)
    assert (cost.nano_usd, cost.source, cost.reason) == (None, CostSource.UNPRICED, reason)
    assert cost.pricing_version == table.version


def test_a_known_cache_rate_gives_no_reason() -> None:
    """There is no reason in the cost if the rate is known, or if nothing was cached."""
    assert one(row()).price("p:m", TokenUsage(1, 1, 1, 1), 0).reason is None
    cost = one(row(cache_read=None)).price("p:m", TokenUsage(1000), 0)
    assert (cost.nano_usd, cost.reason) == (1, None)


@pytest.mark.parametrize(
    ("price", "usage", "nano"),
    [
        (row(input=3000, cache_read=None), TokenUsage(10, 0, 90), 300),
        (row(input=3000, cache_write_5m=None, cache_write_1h=None), TokenUsage(10, 0, 0, 90, 40), 300),
        (
            row(input=3000, cache_read=None, cache_write_5m=None, cache_write_1h=None),
            TokenUsage(1, 0, 2, 3, 3),
            18,
        ),
        (
            row(input=3000, cache_read=None, extra={"audio_input": 9000}),
            TokenUsage(0, 0, 10, details={"audio_cache_read": 4}),
            6 * 3 + 4 * 9,
        ),
        (row(input=0, cache_read=None), TokenUsage(5, 0, 5), 0),
    ],
)
def test_a_cache_without_a_rate_is_billed_as_input(price: PriceRow, usage: TokenUsage, nano: int) -> None:
    """Reads and writes of text and audio are billed as input, and the reason is given."""
    cost = one(price).price("p:m", usage, 0)
    assert (cost.nano_usd, cost.source, cost.reason) == (nano, CostSource.COMPUTED, "no cache rate: as input")


def test_local_models_are_free_by_a_row_with_zero_rates() -> None:
    table = PriceTable.default()
    for model in ("local:m", "local-chat:smol.gguf", "local-messages:a"):
        cost = table.price(model, TokenUsage(5, 5, 5, 5, 5, 5), 0)
        assert (cost.nano_usd, cost.source) == (0, CostSource.COMPUTED)
    assert table.price("nobody:unheard-of", TokenUsage(1), 0).nano_usd is None
    row = table.find("local:m", 0, service_tier="anything")
    assert "no charge" in present(row).note


def test_a_version_is_the_hash_of_its_rates() -> None:
    """Order, label and notes don't change the version, but any rate or date does."""
    a, b = row("p:a"), row("p:b")
    table = one(a, b)
    assert table == PriceTable.from_rows([b, row("p:a", note="n")], "other label")
    assert table.version == "2e3998201dbe"
    assert table.version != one(a, row("p:b", input=7)).version
    assert table.version != one(a, row("p:b", valid_from=1)).version
    assert PriceTable.default().version == PriceTable.default().version


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row(), row(input=2)], "overlap"),
        ([row(valid_to=10), row(valid_from=9)], "overlap"),
        ([row(valid_from=5, valid_to=5)], "later"),
        ([row("nameless")], "provider:name"),
        ([row(input=-1)], "pico-USD"),
        ([row(input=1.5)], "pico-USD"),
        ([row(above=-1)], "tokens"),
    ],
)
def test_impossible_tables_are_refused(rows: list[PriceRow], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        PriceTable.from_rows(rows)


def test_overrides_replace_all_rows_of_a_model() -> None:
    merged = one(row("p:a"), row("p:a", above=5), row("p:b")).merged(one(row("p:a", input=9)))
    assert [(r.model, r.input) for r in merged.rows] == [("p:a", 9), ("p:b", 1)]


def test_the_demo_file_has_two_versions() -> None:
    first, second = PriceTable.all_from_yaml(DEMO)
    assert PriceTable.from_yaml(DEMO) == second != first
    usage = TokenUsage(input_tokens=100, output_tokens=50)
    for table in (first, second):
        assert "example" in table.label
        for model in ("local-chat:a", "local-messages:a", "local-responses:a", "openai:gpt-5"):
            assert table.price(model, usage, 0).nano_usd
    assert first.price("local-chat:x", usage, 0).nano_usd == 100 * 100 + 50 * 400
    assert second.price("anthropic:claude-sonnet-4-6", TokenUsage(200_001), 0).nano_usd == 200_001 * 6_000


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_price_file_is_read_without_floats(tmp_path: Path) -> None:
    path = write(
        tmp_path / "prices.yaml",
        """
        label: mine
        prices:
          - model: "p:m"
            input: 0.1
            output: 0.000001
            cache_read: ~
            reasoning: .5
            per_request: 0.000000000001
            valid_from: 2025-01-01
            valid_to: 2026-01-01T01:00:00+01:00
            tiers:
              - above: 200_000
                input: 7
        """,
    )
    base, tier = PriceTable.from_yaml(path).rows
    assert (base.input, base.output, base.reasoning) == (100_000, 1, 500_000)
    assert (base.cache_read, base.per_request) == (None, 1)
    assert (base.valid_from, base.valid_to) == (YEAR_2025, YEAR_2026)
    assert (tier.above, tier.input, tier.output) == (200_000, 7_000_000, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prices: [", "not valid YAML"),
        ("- a", "the file: expected a mapping"),
        ("label: x", "prices: expected a list, found nothing"),
        ("prices: [{model: m}]", r"prices\[0\].model: expected provider:name"),
        ("prices: [{model: 'p:m', input: 1e-3}]", r"prices\[0\].input: expected US dollars"),
        ("prices: [{model: 'p:m', input: -1}]", r"prices\[0\].input: expected US dollars"),
        ("prices: [{model: 'p:m', input: 0.0000001}]", "at most 6 decimals"),
        ("prices: [{model: 'p:m', inptu: 1}]", r"unknown key prices\[0\].inptu; expected model, input"),
        ("prices: [{model: 'p:m', input: 1, input: 2}]", "'input' is given twice"),
        ("prices: [{model: 'p:m', valid_from: soon}]", r"prices\[0\].valid_from: expected a date"),
        ("prices: [{model: 'p:m', valid_from: '2026-01-01T10:00'}]", "with its offset"),
        ("prices: [{model: 'p:m', tiers: [{above: 0}]}]", r"tiers\[0\].above: expected a whole number"),
        ("prices: [{model: 'p:m'}, {model: 'p:m'}]", "overlap in time"),
        ("tables: []", "at least one table"),
        ("tables: [{date: 2026-01-01, prices: []}, {prices: []}]", r"tables\[1\].date: expected a date"),
        ("prices: [{model: 'p:m', input: !!python/object/apply:os.getcwd []}]", "expected a single value"),
    ],
)
def test_a_wrong_price_file_is_reported_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path / "prices.yaml", text)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        PriceTable.from_yaml(path)
    assert str(path) in str(caught.value)


def test_a_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
        PriceTable.from_yaml(tmp_path / "nowhere.yaml")


# A price table with other rates.

ROWS = (
    PriceRow(model="anthropic:opus", input=5_000_000, output=25_000_000, cache_read=500_001, valid_to=1000),
    PriceRow(model="anthropic:opus", input=4_000_000, output=20_000_000, valid_from=1000, above=200_000),
    PriceRow(model="anthropic:opus", input=9_000_000, output=9_000_000, service_tier="priority", per_request=7),
    PriceRow(model="anthropic:haiku", input=1_000_001, extra={"web_search": 10_000_000_000}),
    PriceRow(model="openai:gpt-5", input=1_250_000, output=10_000_000, reference=True),
)
TABLE = PriceTable(ROWS, "ours", aliases=[PriceAlias("azure:*", "openai:*")])


def test_a_discount_changes_every_rate_of_its_models() -> None:
    """Tiers, dates, sizes and missing rates stay. Other models and aliases are not changed."""
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
    table = TABLE.discounted({"*": 2, "anthropic:haiku": Decimal("0.5"), "anthropic:*": "0.8"}, label="agreed")
    assert [row.input for row in table.rows] == [500_001, 4_000_000, 3_200_000, 7_200_000, 2_500_000]
    assert table.label == "agreed"


def test_an_inexact_or_useless_factor_is_refused() -> None:
    """A float would not be the intended number. A name may be priced as another one."""
    for factor in (0.8, "eight", "-1", "nan", "inf", True, None, ""):
        with pytest.raises(ConfigurationError, match="the factor on 'anthropic:\\*' is"):
            TABLE.discounted({"anthropic:*": factor})  # type: ignore[dict-item]
    for name in ("azure:*", "anthropic:sonnet", "opus"):
        with pytest.raises(ConfigurationError, match="no price row matches"):
            TABLE.discounted({"openai:*": "0.5", name: "0.8"})


@given(st.decimals(0, 2, places=3), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_bill_under_a_discount_is_the_bill_times_the_factor(factor: Decimal, tokens: int, out: int) -> None:
    """Differences come only from rounding a rate to a pico-dollar and the sum to a nano-dollar."""
    usage = TokenUsage(input_tokens=tokens, output_tokens=out)
    full = TABLE.price("openai:gpt-5", usage, 0).nano_usd
    less = TABLE.discounted({"openai:*": factor}).price("openai:gpt-5", usage, 0).nano_usd
    assert full is not None
    assert less is not None
    assert abs(less - full * factor) <= Decimal(tokens + out) / 2000 + 2


# The savings of prompt caches: the price without a cache minus the actual price.

CACHE_RATES = {"cache_read": 1_000, "cache_write_5m": 12_500, "cache_write_1h": 20_000}
PRICES = PriceTable([row("openai:gpt-5", input=10_000, output=50_000, **CACHE_RATES)])


async def saved(
    path: Path, *usages: TokenUsage, where: CallFilter | None = None, model: str = "openai:gpt-5"
) -> CacheSavings:
    make = Maker()
    async with TraceStore(path) as store:
        for number, usage in enumerate(usages):
            request = f"req_{number}"
            await store.write([make.started(request, model), make.completed(request, model, usage=usage)])
        return await cache_savings(store, PRICES, where)


async def test_cache_reads_save_and_cache_writes_cost(tmp_path: Path) -> None:
    """In nano-USD: 1,000 tokens read at a tenth of 10 each save 9 each."""
    found = await saved(
        tmp_path / "trace.db",
        TokenUsage(50, 10, cached_input_tokens=1000),
        TokenUsage(50, 10, cache_creation_input_tokens=100),
        TokenUsage(50, 10, cache_creation_input_tokens=100, cache_creation_1h_input_tokens=100),
        TokenUsage(50, 10),
    )
    assert found == CacheSavings(calls=3, cached_input_tokens=1000, saved_nano_usd=9000 - 250 - 1000, unpriced=0)


async def test_calls_without_a_price_are_counted_separately(tmp_path: Path) -> None:
    usage = TokenUsage(50, 10, cached_input_tokens=1000)
    found = await saved(tmp_path / "a.db", usage, model="openai:unheard-of")
    assert (found.calls, found.saved_nano_usd, found.unpriced) == (1, 0, 1)
    found = await saved(tmp_path / "b.db", usage, usage, where=CallFilter(request_id="req_1"))
    assert (found.calls, found.saved_nano_usd) == (1, 9000)


def test_without_a_cache_all_input_is_fresh() -> None:
    details = {"audio_cache_read": 30, "audio_input": 5, "web_search": 1}
    usage = TokenUsage(50, 10, cached_input_tokens=40, details=details)
    plain = without_cache(usage)
    assert plain.total_input_tokens == usage.total_input_tokens == plain.input_tokens
    assert plain.details == {"audio_input": 35, "web_search": 1}
