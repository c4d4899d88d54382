"""Prices by service tier, hour, modality and unit; the names of priced models; and the published snapshot."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import ConfigurationError, Cost, CostSource, TokenUsage
from callboard.bus.values.base import Json
from callboard.tracestore import PriceAlias, PriceRow, PriceTable, TraceStore
from callboard.tracestore.home import SNAPSHOT_NAME, price_table
from callboard.tracestore.prices import files as price_snapshot
from callboard.tracestore.prices.source import convert

from .trace_making import Maker, make_file_before

DAY = 86_400_000_000
NOW = 1_795_000_000_000_000


def usage_of(**counts: object) -> TokenUsage:
    return TokenUsage(**counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "usage", "usd"),
    [
        # Gemini 2.5 Pro above its threshold: all 262,960 tokens, of which 257,955 are cached, and all output
        (
            "gemini:gemini-2.5-pro",
            usage_of(input_tokens=5005, cached_input_tokens=257_955, output_tokens=1744),
            None,
        ),
        ("gemini:gemini-2.5-pro", usage_of(input_tokens=200_000), "0.25"),
        ("gemini:gemini-2.5-pro", usage_of(input_tokens=200_001), "0.5000025"),
        ("gemini:gemini-2.5-flash", usage_of(input_tokens=300, details={"audio_input": 100}), "0.00016"),
        ("anthropic:claude-sonnet-4-5", usage_of(input_tokens=1, details={"web_search": 2}), "0.020003"),
        (
            "anthropic:claude-sonnet-4-5",
            usage_of(
                cached_input_tokens=1000, cache_creation_input_tokens=2000, cache_creation_1h_input_tokens=1000
            ),
            "0.01005",
        ),
        ("openai:gpt-5", usage_of(input_tokens=86, cached_input_tokens=1920, output_tokens=300), "0.0033475"),
        ("openai:gpt-5", usage_of(input_tokens=1000, output_tokens=1000, service_tier="batch"), "0.005625"),
        ("anthropic:claude-sonnet-5", usage_of(input_tokens=1000, service_tier="geo-us"), "0.0022"),
        ("ollama:anything", usage_of(input_tokens=1000), "0"),
    ],
)
def test_the_worked_examples_come_out_to_the_nano_dollar(model: str, usage: TokenUsage, usd: str | None) -> None:
    cost = PriceTable.default().price(model, usage, NOW)
    expected = Fraction(usd) if usd else Fraction(5005 * 2500 + 257_955 * 250 + 1744 * 15_000, 10**9)
    assert cost.usd is not None
    assert Fraction(cost.usd) == expected


names = ("audio_input", "image_input", "audio_cache_read", "audio_output", "web_search")
small = st.integers(0, 10**6)


@given(
    rates=st.fixed_dictionaries(dict.fromkeys(("input", "output", "cache_read", "cache_write_5m"), small)),
    extra=st.dictionaries(st.sampled_from(names), small),
    parts=st.fixed_dictionaries(dict.fromkeys(names, small)),
    rest=st.tuples(small, small, small, small),
)
@settings(max_examples=60)
def test_every_token_is_billed_once_at_its_own_rate(
    rates: dict[str, int], extra: dict[str, int], parts: dict[str, int], rest: tuple[int, int, int, int]
) -> None:
    """The bill equals a sum of fractions, kind by kind. A part without a rate pays the rate of the whole."""
    whole = {"audio_input": "input", "image_input": "input"}
    whole |= {"audio_cache_read": "cache_read", "audio_output": "output"}
    extra = {"web_search": 7, **extra}
    table = PriceTable([PriceRow(model="p:m", extra=extra, **rates)])
    usage = TokenUsage(
        input_tokens=rest[0] + parts["audio_input"] + parts["image_input"],
        output_tokens=rest[1] + parts["audio_output"],
        cached_input_tokens=rest[2] + parts["audio_cache_read"],
        cache_creation_input_tokens=rest[3],
        details=parts,
    )
    million = Fraction(1, 10**6)  # nano-USD for a rate in pico-USD, per million tokens
    dollars = sum(
        Fraction(count * rates[bucket]) * million
        for count, bucket in zip(rest, ("input", "output", "cache_read", "cache_write_5m"), strict=True)
    )
    for name, count in parts.items():
        rate = extra[name] if name in extra else rates[whole[name]]
        dollars += Fraction(count * rate) * million
    nano = int(dollars * 1000 + Fraction(1, 2))
    assert table.price("p:m", usage, 0).nano_usd == nano


def test_a_service_tier_has_its_own_price_or_none() -> None:
    batch = PriceRow(model="p:m", input=500, service_tier="batch")
    free = PriceRow(model="p:free", input=0, service_tier="*")
    table = PriceTable([PriceRow(model="p:m", input=1000), batch, free])
    tiers = (None, "Standard", "batch", "flex")
    found = {tier: table.price("p:m", TokenUsage(1, service_tier=tier), 0) for tier in tiers}
    assert [cost.nano_usd for cost in found.values()] == [1, 1, 1, None]
    assert found["flex"].reason == "no price for p:m at service tier flex"
    assert table.price("p:free", TokenUsage(1, service_tier="flex"), 0).nano_usd == 0


def test_prices_by_hour_come_before_prices_of_all_day() -> None:
    early = PriceRow(model="p:m", input=2000, daily_from=3600, daily_to=7200)
    table = PriceTable([PriceRow(model="p:m", input=1000), early])
    moments = [5 * DAY + second * 1_000_000 for second in (3599, 3600, 7199, 7200)]
    assert [table.price("p:m", TokenUsage(1), at).nano_usd for at in moments] == [1, 2, 2, 1]
    with pytest.raises(ConfigurationError, match="overlap"):
        PriceTable([early, PriceRow(model="p:m", input=2, daily_from=7199, daily_to=9000)])


def test_an_adapter_of_any_name_finds_its_providers_prices() -> None:
    """`priced_as` names the provider. A user's row comes first, also a row for a whole provider."""
    rows = {"anthropic:claude": 3000, "work:x": 9, "p:m": 9000}
    published = PriceTable([PriceRow(model=model, input=rate, reference=True) for model, rate in rows.items()])
    asked = {"served_model": "claude", "priced_as": "anthropic:x"}
    assert published.price("work:x", TokenUsage(1), 0, **asked).nano_usd == 3
    table = published.merged(PriceTable([PriceRow(model=f"{own}:*", input=2000) for own in ("work", "p")]))
    assert table.price("work:x", TokenUsage(1), 0, **asked).nano_usd == 2
    assert table.price("p:m", TokenUsage(1), 0).nano_usd == 2


def test_aliases_can_be_chained_and_circles_end() -> None:
    """An alias can keep a part of the name. The rule lists each step."""
    table = PriceTable(
        [PriceRow(model="a:real", input=1000)],
        aliases=[PriceAlias("b:*", "a:*"), PriceAlias("a:old*", "a:real"), PriceAlias("a:*", "b:*")],
    )
    bill = table.explain("b:old-1", TokenUsage(1), 0)
    assert bill.cost.nano_usd == 1
    assert bill.rule == "alias b:* is a:old-1, alias a:old* is a:real"
    assert table.price("b:new", TokenUsage(1), 0).nano_usd is None


def test_a_part_without_its_own_rate_names_the_rate_it_pays() -> None:
    """The bill shows that audio is billed as text. Parts larger than the whole make no count negative."""
    table = PriceTable([PriceRow(model="p:m", input=5, extra={"web_search": 1})])
    bill = table.explain("p:m", TokenUsage(10, details={"audio_input": 4}), 0)
    parts = [(part.name, part.count, part.rate_name) for part in bill.components]
    assert parts == [("input", 6, ""), ("audio_input", 4, "input")]
    for details in ({"audio_input": 11}, {"web_search": -1}):
        assert table.price("p:m", TokenUsage(10, details=details), 0).reason == "usage inconsistent"


def test_a_price_file_has_all_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        """
        aliases: {"work:*": "p:*"}
        prices:
          - {model: "p:m", input: 1, hours: "00:30-16:30", extra: {audio_input: 2.5, web_search: 0.01}}
          - {model: "p:m", input: 0.5, service_tier: batch}
        """
    )
    table = PriceTable.from_yaml(path)
    row = table.find("work:m", 1_800_000_000)
    assert (row.daily_from, row.daily_to) == (1800, 59_400)
    assert row.extra == {"audio_input": 2_500_000, "web_search": 10**10}
    assert table.find("work:m", 0, service_tier="batch") is not None
    assert table.find("work:m", 0) is None


def test_the_snapshot_has_its_source_and_can_be_encoded() -> None:
    snapshot = price_snapshot.read(price_snapshot.SHIPPED)
    assert snapshot.date >= "2026-11-22"
    assert snapshot.source.startswith("genai-prices ")
    assert "MIT" in snapshot.licence
    assert snapshot.left_out
    assert all(model.prices for model in snapshot.models)
    assert price_snapshot.decode(price_snapshot.encode(snapshot), "again") == snapshot


def test_prices_in_the_home_replace_the_shipped_ones(tmp_path: Path) -> None:
    """The snapshot in the home replaces the shipped one. prices.yaml comes before both."""
    models = (price_snapshot.SnapshotModel("p:m", ({"input": 1000},)), price_snapshot.SnapshotModel("p:n", ()))
    snapshot = msgspec.structs.replace(price_snapshot.read(price_snapshot.SHIPPED), models=models)
    (tmp_path / SNAPSHOT_NAME).write_bytes(price_snapshot.encode(snapshot))
    assert price_table(tmp_path).price("p:m", TokenUsage(1), 0).nano_usd == 1
    assert price_table(tmp_path).price("openai:gpt-5", TokenUsage(1), 0).nano_usd is None
    (tmp_path / "prices.yaml").write_text("prices: [{model: 'p:*', input: 0.002}]")
    assert price_table(tmp_path).price("p:m", TokenUsage(1), 0).nano_usd == 2


def test_an_invalid_snapshot_is_refused(tmp_path: Path) -> None:
    for content in ("{}", "[", '{"format": 9, "date": "", "source": "", "licence": "", "models": []}'):
        (tmp_path / SNAPSHOT_NAME).write_text(content)
        with pytest.raises(ConfigurationError, match=SNAPSHOT_NAME):
            price_table(tmp_path)


def test_published_dates_tiers_and_hours_are_imported() -> None:
    """Hours apply since the last date, thresholds become rows, and a variant inherits the standard price."""
    tiers = {"base": 3, "tiers": [{"start": 10, "price": 4}]}
    hours = {"start_time": "01:00:00+00:00", "end_time": "02:00:00+00:00"}
    model = {
        "id": "m",
        "match": {"or": [{"equals": "m"}, {"starts_with": "m-"}, {"regex": "^n-\\d{8}$"}]},
        "prices": [
            {"prices": {"input_mtok": 1, "output_mtok": 2}},
            {"constraint": {"start_date": "1970-01-11"}, "prices": {"input_mtok": tiers}},
            {"constraint": hours, "prices": {"input_mtok": 9}},
        ],
        "price_variants": [{"when": {"processing": "batch"}, "prices": {"output_mtok": 5}}],
    }
    source = {"providers": [{"id": "google", "models": [model]}]}
    table = PriceTable.of(convert(source, source="test", day="2026-01-01").prices())  # type: ignore[arg-type]
    hour = 3_600_000_000

    def rates(name: str, at: int, total: int = 0, tier: str | None = None) -> tuple[int | None, int | None]:
        row = table.find(name, at, total, service_tier=tier)
        return row.input, row.output

    assert rates("gemini:m", 9 * DAY + hour) == (1_000_000, 2_000_000)
    assert rates("google:m-1", 10 * DAY, 10) == (3_000_000, None)
    assert rates("gemini:n-20260101", 10 * DAY, 11) == (4_000_000, None)
    assert rates("gemini:m", 10 * DAY + hour) == (9_000_000, None)
    assert rates("gemini:m", 0, tier="batch") == (1_000_000, 5_000_000)


@pytest.mark.parametrize(("model", "premium"), [
    ("claude-opus-4-6", True), ("claude-mythos-5-2", True), ("claude-opus-4-5", False), ("claude-3-haiku", False),
])  # fmt: skip
def test_inference_in_the_us_only_costs_a_tenth_more_at_anthropic(model: str, premium: bool) -> None:
    """Token rates are a tenth higher, and searches cost the same. Older models can't be limited to the US."""
    rates = {"input_mtok": 5, "output_mtok": 25, "web_searches_kcount": 10}
    source: Json = [
        {"id": "anthropic", "models": [{"id": model, "match": {"equals": model}, "prices": {**rates}}]}
    ]
    rows = PriceTable.of(convert(source, source="test", day="2026-01-01").prices()).rows
    found = [(row.service_tier, row.input, row.output, row.extra) for row in rows if row.input]
    searches = {"web_search": 10_000_000_000}
    expected = [("", 5_000_000, 25_000_000, searches), ("geo-us", 5_500_000, 27_500_000, searches)]
    assert found == expected[: 1 + premium]


async def test_both_costs_of_a_call_are_kept(store: TraceStore, make: Maker) -> None:
    """The provider's cost and the cost of the table are stored. Details and tier are read back, too."""
    cost = Cost(700, CostSource.PROVIDER, "aaaaaaaaaaaa", None, 650)
    usage = TokenUsage(5, 5, details={"audio_input": 2, "web_search": 1}, service_tier="flex")
    await store.write([make.started(priced_as="openai:gpt"), make.completed(usage=usage, cost=cost)])
    (row,) = await store.calls()
    assert (row.cost, row.at_call_time, row.usage, row.priced_as) == (cost, cost, usage, "openai:gpt")


async def test_old_calls_and_prices_are_kept(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    path = tmp_path / "old.db"
    await make_file_before("price dimensions", path, monkeypatch)
    table = PriceTable([PriceRow(model="openai:*", input=1000)])
    with sqlite3.connect(path) as old:
        old.execute("INSERT INTO runs VALUES (1, 'r', 1, 1, 1)")
        old.execute("INSERT INTO price_version VALUES (?, 'old', 1)", (table.version,))
        old.execute(
            "INSERT INTO price_row (version, position, model, above, input, per_request, note) "
            "VALUES (?, 0, 'openai:*', 0, 1000, 0, '')",
            (table.version,),
        )
        old.execute(
            "INSERT INTO calls (request_id, attempt, run, ts_us, day, status, provider, model, input_tokens, "
            "usage_source) VALUES ('q', 1, 1, 5, 0, 'completed', 'openai', 'openai:x', 3, 'reported')"
        )
    old.close()
    async with TraceStore(path) as store:
        assert await store.price_tables() == [table]
        await store.reprice(table.version)
        (row,) = await store.calls()
        assert row.cost == Cost(3, CostSource.COMPUTED, table.version)
        assert row.usage == TokenUsage(3)


def test_a_snapshot_keeps_facts_about_models() -> None:
    def model(which: str, **more: object) -> dict[str, object]:
        return {"id": which, "match": {"equals": which}, "prices": {"input_mtok": 1}, **more}

    def taken(*models: dict[str, object]) -> price_snapshot.Snapshot:
        source = [{"id": "p", "models": list(models)}]
        return convert(source, source="test", day="2026-01-01")  # type: ignore[arg-type]

    said = taken(
        model("a", name="A", context_window=1000, deprecated=True),
        model("b", name="", context_window=0, deprecated=None),
    )
    assert [(m.name, m.context_window) for m in said.models] == [("A", 1000), (None, None)]
    assert [m.deprecated for m in said.models] == [True, False]
    assert price_snapshot.decode(price_snapshot.encode(said), "test") == said
    assert PriceTable.of(taken(model("a"), model("b")).prices()).version == PriceTable.of(said.prices()).version
