"""What is known of models: by which names, from which source, with which prices."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from callboard.adapters.registry import model_table, tabled_vendors
from callboard.bus import CallboardError, Clock
from callboard.engine import ModelInfo, get_latest_model, get_model_info, list_models
from callboard.engine.models.catalogue import Catalogue
from callboard.tracestore import PriceRow, PriceTable
from callboard.tracestore.home import SNAPSHOT_NAME
from callboard.tracestore.prices.snapshot import SHIPPED, Snapshot, SnapshotModel, encode, read, shipped_snapshot
from tests.support.present import present

from ..definition_of_done.rows import row
from ..support.virtual_time import FakeClock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    return tmp_path


def on(day: str) -> Clock:
    """A clock that stands at the beginning of a day."""
    return FakeClock(epoch_us=int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e6))


def shipped_on(day: str) -> Catalogue:
    return Catalogue(shipped_snapshot(), clock=on(day))


def ids(models: list[ModelInfo]) -> list[str]:
    return [info.id for info in models]


SPECIFIED = [
    ("claude-opus-4-6", "anthropic", "Claude Opus 4.6"),
    ("claude-sonnet-4-5", "anthropic", "Claude Sonnet 4.5"),
    ("gpt-5.2", "openai", "GPT-5.2"),
    ("gpt-5.2-mini", "openai", "GPT-5.2 Mini"),
    ("gpt-5.2-codex", "openai", "GPT-5.2 Codex"),
    ("gemini-3-pro-preview", "gemini", "Gemini 3 Pro (Preview)"),
    ("gemini-3-flash-preview", "gemini", "Gemini 3 Flash (Preview)"),
]


@pytest.mark.parametrize(("name", "provider", "display_name"), SPECIFIED)
@row("8.1.8")
def test_the_specifications_models_are_known_with_what_they_can_do(
    name: str, provider: str, display_name: str
) -> None:
    """Seed 2 §2.9 and its §8.1, last row."""
    info = get_model_info(name)
    assert info is not None
    assert (info.id, info.provider, info.display_name) == (name, provider, display_name)
    assert info.context_window is not None
    assert info.context_window >= 200_000
    assert (info.supports_tools, info.supports_vision, info.supports_reasoning) == (True, True, True)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("sonnet", "anthropic:claude-sonnet-5-5"),
        ("claude-sonnet", "anthropic:claude-sonnet-5-5"),
        ("anthropic:sonnet", "anthropic:claude-sonnet-5-5"),
        ("claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5"),
        ("anthropic:claude-opus-4-6", "anthropic:claude-opus-4-6"),
        ("gpt-5.6", "openai:gpt-5.6-sol"),
        ("google:gemini-3.8-flash", "gemini:gemini-3.8-flash"),
        ("text-embedding-3-small", "openai:text-embedding-3-small"),
        ("groq:llama-3.3-70b-versatile", "groq:llama-3.3-70b-versatile"),
        ("llama-3.3-70b-versatile", "groq:llama-3.3-70b-versatile"),
    ],
)
def test_a_model_is_known_by_any_of_its_names(name: str, known: str) -> None:
    info = get_model_info(name)
    assert info is not None
    assert f"{info.provider}:{info.id}" == known


@pytest.mark.parametrize(
    "name", ["claude-opus-9", "gpt-7", "nobody:gpt-5.2", "openai:claude-opus-4-6", "", "gpt-5.2-"]
)
@row("8.1.8")
def test_what_is_not_known_is_none_and_not_guessed(name: str) -> None:
    """Adapters take `gpt-7` for a newer model; the catalogue says nothing of it."""
    assert get_model_info(name) is None


def test_a_name_that_several_have_must_say_whose() -> None:
    models = tuple(SnapshotModel(f"{provider}:m", ({"input": 1},)) for provider in ("p", "q"))
    catalogue = Catalogue(snapshot(*models), PriceTable([]))
    assert catalogue.info("m") is None
    found = catalogue.info("q:m")
    assert present(found).provider == "q"


def snapshot(*models: SnapshotModel) -> Snapshot:
    return msgspec.structs.replace(shipped_snapshot(), models=models, aliases=())


def test_a_model_that_only_a_price_list_names_has_what_that_says_and_no_more() -> None:
    model = SnapshotModel("p:m", ({"input": 250_000, "output": 10_000_000},), name="Em", context_window=8192)
    models = snapshot(model)
    assert Catalogue(models).info("p:m") == ModelInfo(
        id="m",
        provider="p",
        display_name="Em",
        context_window=8192,
        input_cost_per_million=Decimal("0.25"),
        output_cost_per_million=Decimal(10),
        source=models.source,
        date=models.date,
    )


def test_prices_are_those_in_force_of_the_usual_tier_and_a_small_prompt() -> None:
    begins = int(1e15)
    rows = [
        PriceRow(model="openai:gpt-5.5", input=1_000_000, output=2_000_000, valid_to=begins),
        PriceRow(model="openai:gpt-5.5", input=3_000_000, output=4_500_000, valid_from=begins),
        PriceRow(model="openai:gpt-5.5", input=9_000_000, output=9_000_000, valid_from=begins, above=1000),
        PriceRow(model="openai:gpt-5.5", input=1, output=1, service_tier="batch"),
    ]
    for now, expected in ((begins - 1, ("1", "2")), (begins, ("3", "4.5"))):
        catalogue = Catalogue(shipped_snapshot(), PriceTable(rows), clock=FakeClock(epoch_us=now))
        info = catalogue.info("gpt-5.5")
        assert info is not None
        assert (str(info.input_cost_per_million), str(info.output_cost_per_million)) == expected
    unpriced = catalogue.info("gpt-5.4")
    assert present(unpriced).input_cost_per_million is None


# -- lists


@row("8.1.8")
def test_a_providers_models_are_those_of_its_table_in_its_order() -> None:
    for provider in tabled_vendors():
        table = model_table(provider)
        assert ids(list_models(provider, include_retired=True)) == [row.id for row in present(table).rows]


def test_all_are_all_those_and_what_other_price_lists_name() -> None:
    everything = list_models()
    providers = {info.provider for info in everything}
    assert providers >= {"anthropic", "openai", "gemini", "groq", "mistral", "openrouter"}
    assert ids(everything)[: len(list_models("anthropic"))] == ids(list_models("anthropic"))
    assert "whisper-1" not in ids(list_models("openai"))
    assert len({(info.provider, info.id) for info in everything}) == len(everything)


def test_what_is_gone_is_listed_only_on_demand() -> None:
    catalogue = shipped_on("2026-11-22")
    assert "gemini-3-pro-preview" not in ids(catalogue.models("gemini"))
    assert "gemini-3-pro-preview" in ids(catalogue.models("gemini", include_retired=True))
    assert "claude-sonnet-4-5" in ids(catalogue.models("anthropic"))
    assert "claude-sonnet-4-5" not in ids(shipped_on("2026-11-30").models("anthropic"))


@pytest.mark.parametrize("word", ["vision", "images", "supports_vision", "supports_images"])
@row("8.1.8")
def test_models_are_chosen_by_what_they_are_known_to_do(word: str) -> None:
    """Not by what isn't known; and by the adapters' words, too."""
    found = list_models(capability=word)
    assert {info.provider for info in found} == set(tabled_vendors())
    assert all(info.supports_vision for info in found)
    assert "gpt-4" not in ids(list_models("openai", word, include_retired=True))


def test_a_provider_that_nobody_knows_has_no_models() -> None:
    assert list_models("nobody") == []
    assert get_latest_model("nobody") is None


def test_a_capability_that_there_isnt_is_told_with_the_nearest() -> None:
    with pytest.raises(CallboardError, match=r"'visoin': did you mean 'vision'"):
        list_models(capability="visoin")
    with pytest.raises(CallboardError, match=r"known are tools, vision, reasoning, structured_output"):
        get_latest_model("openai", "xyz")


# -- the latest


@pytest.mark.parametrize(
    ("provider", "capability", "model"),
    [
        ("anthropic", None, "claude-opus-5-5"),
        ("anthropic", "structured_output", "claude-opus-5-5"),
        ("openai", "reasoning", "gpt-6.2-sol"),
        ("gemini", "tools", "gemini-4-argon"),
        ("google", None, "gemini-4-argon"),
    ],
)
def test_the_latest_is_the_best_for_general_use(provider: str, capability: str | None, model: str) -> None:
    info = shipped_on("2026-11-22").latest(provider, capability)
    assert present(info).id == model


def test_the_latest_is_never_one_that_is_gone_or_for_one_purpose_only(monkeypatch: pytest.MonkeyPatch) -> None:
    table = model_table("openai")
    assert table is not None
    best, *others = table.rows
    gone = msgspec.structs.replace(best, retires="2026-11-01")
    special = msgspec.structs.replace(best, id="special", general=False)
    monkeypatch.setattr(type(table), "rows", (gone, special, *others))
    latest = shipped_on("2026-11-22").latest("openai")
    assert present(latest).id == others[0].id


def test_of_a_provider_without_a_table_none_is_the_latest() -> None:
    """Price lists have no order of merit."""
    assert list_models("mistral")
    assert get_latest_model("mistral") is None


# -- newer data


def test_a_newer_price_snapshot_brings_new_models_and_prices_at_once(home: Path) -> None:
    assert get_model_info("p:new") is None
    old = read(SHIPPED)
    new = (
        SnapshotModel("p:new", ({"input": 1_000_000, "output": 0},), name="New", context_window=5000),
        SnapshotModel("openai:gpt-5.5", ({"input": 7_000_000, "output": 0},)),
    )
    (home / SNAPSHOT_NAME).write_bytes(encode(msgspec.structs.replace(old, models=new)))
    info, priced = get_model_info("p:new"), get_model_info("gpt-5.5")
    assert info is not None
    assert priced is not None
    assert (info.display_name, info.context_window) == ("New", 5000)
    assert priced.input_cost_per_million == 7
    assert priced.supports_tools
