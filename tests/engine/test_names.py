"""Names of models: selection, lists and suggestions."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from callboard import ConfigurationError, ConfiguredModel, Engine, ModelRegistry, RateLimitError
from callboard.adapters.provider import model_table, tabled_vendors
from callboard.bus import CallboardError, Clock
from callboard.engine import ModelInfo, get_latest_model, get_model_info, list_models
from callboard.engine.models.catalogue import Catalogue
from callboard.engine.models.configured import read_models_yaml, registry_from_env
from callboard.engine.routing.candidates import expand
from callboard.tracestore import PriceRow, PriceTable
from callboard.tracestore.home import SNAPSHOT_NAME
from callboard.tracestore.prices.files import SHIPPED, Snapshot, SnapshotModel, encode, read, shipped_snapshot

from ..definition_of_done.rows import row
from ..support.engines import running
from ..support.present import present
from ..support.scripted import Say
from ..support.virtual_time import FakeClock

# The model for a name that is not in models.yaml, and the provider for a call that names none (C10).

ALL_KEYS = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}
WORK = """
adapters:
  work: {type: anthropic, api_key: k}
  box: {type: openai_compatible, api_key: k, base_url: "https://api.groq.com/openai"}
models:
  work:claude-sonnet-5-5: {adapter: work, wire_name: claude-sonnet-5-5, aliases: [daily], tier: balanced}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    return tmp_path


def registry(folder: Path, more: str = "", text: str = WORK) -> ModelRegistry:
    path = folder / "models.yaml"
    path.write_text(text + more)
    return read_models_yaml(path, {})


def meaning(of: ModelRegistry, name: str, provider: str | None = None) -> tuple[str, str]:
    found = of.resolve(name, provider)
    return f"{found.model.adapter}:{found.model.wire_name}", found.resolved_by


# -- Names of the catalogue.


@pytest.mark.parametrize(
    ("name", "model", "how"),
    [
        ("claude-opus-4-6", "anthropic:claude-opus-4-6", "catalogue"),
        ("claude-sonnet-4-5-20250929", "anthropic:claude-sonnet-4-5-20250929", "catalogue"),
        ("sonnet", "anthropic:claude-sonnet-5-5", "catalogue"),
        ("anthropic:sonnet", "anthropic:claude-sonnet-5-5", "catalogue"),
        ("anthropic:claude-haiku-4-5", "anthropic:claude-haiku-4-5", "catalogue"),
        ("gemini-flash", "gemini:gemini-3.8-flash", "catalogue"),
        ("text-embedding-3-small", "openai:text-embedding-3-small", "passthrough"),
        ("anthropic:claude-of-tomorrow", "anthropic:claude-of-tomorrow", "passthrough"),
    ],
)
def test_a_known_model_goes_to_its_provider(name: str, model: str, how: str) -> None:
    assert meaning(registry_from_env(ALL_KEYS), name) == (model, how)


def test_a_name_of_the_catalogue_goes_to_the_adapter_of_its_provider(home: Path) -> None:
    here = registry(home)
    assert meaning(here, "claude-haiku-4-5") == ("work:claude-haiku-4-5", "catalogue")
    assert meaning(here, "anthropic:haiku") == ("work:claude-haiku-5-5", "catalogue")
    assert meaning(here, "llama-3.3-70b-versatile") == ("box:llama-3.3-70b-versatile", "passthrough")


def test_the_catalogues_short_name_finds_the_listed_model(home: Path) -> None:
    here = registry(home)
    for name in ("sonnet", "work:sonnet", "claude-sonnet-5-5", "daily"):
        assert here.resolve(name).model.id == "work:claude-sonnet-5-5"
        assert here.resolve(name).model.tier == "balanced"


def test_names_of_models_yaml_come_before_the_catalogues(home: Path) -> None:
    here = registry(home, "  box:mixtral: {adapter: box, wire_name: mixtral, aliases: [opus]}\n")
    assert meaning(here, "opus") == ("box:mixtral", "alias")


def test_the_default_adapter_is_chosen_or_else_the_adapter_with_a_key(home: Path) -> None:
    two = "adapters: {a: {type: anthropic, api_key: k}, b: {type: anthropic, api_key: k}}\n"
    with pytest.raises(ConfigurationError, match=r"ambiguous. Use one of a:haiku, b:haiku"):
        registry(home, text=two).resolve("haiku")
    assert meaning(registry(home, "default_provider: b\n", two), "haiku")[0] == "b:claude-haiku-5-5"
    one = "adapters: {a: {type: anthropic, api_key_env: NO_SUCH}, b: {type: anthropic, api_key: k}}\n"
    assert meaning(registry(home, text=one), "haiku")[0] == "b:claude-haiku-5-5"


# -- The default provider.


def test_without_a_file_the_first_provider_with_a_key_is_the_default() -> None:
    """The order is that of seed 2 §2.2."""
    defaults = {"openai": ALL_KEYS, "anthropic": {"ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}}
    for default, keys in {**defaults, "gemini": {"GOOGLE_API_KEY": "g"}, None: {}}.items():
        assert registry_from_env(keys).default_provider == default
    here = registry_from_env(ALL_KEYS)
    assert meaning(here, "ft:mine") == ("openai:ft:mine", "passthrough")
    assert meaning(here, "gpt-9") == ("openai:gpt-9", "passthrough")
    with pytest.raises(ConfigurationError, match=r"looks like a model of anthropic.*Use anthropic:claude-opus-9"):
        here.resolve("claude-opus-9")


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("deepseek:deepseek-chat", "deepseek"),
        ("mistral:new", "mistral"),
        ("llama-3.3-70b-versatile", "groq"),
        ("meta-llama/llama-3.1-8b-instruct", r"\w+ or \w+"),
    ],
)
def test_the_default_provider_gets_no_name_of_a_provider_without_an_adapter(name: str, whose: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"belongs to {whose}.*\. Add one to models\.yaml"):
        registry_from_env(ALL_KEYS).resolve(name)


def test_a_default_server_for_any_model_gets_every_name(home: Path) -> None:
    """A reload keeps the default server. An unknown default provider is refused."""
    here = registry(home, "default_provider: box\n")
    assert meaning(here, "gpt-9") == ("box:gpt-9", "passthrough")
    assert meaning(here, "mistral:7b") == ("box:mistral:7b", "passthrough")
    assert here.succeeding(registry(home)).default_provider == "box"
    message = r"models\.yaml: default_provider: 'wrok' is not an adapter: did you mean 'work'"
    with pytest.raises(ConfigurationError, match=message):
        registry(home, "default_provider: wrok\n")


def test_a_file_without_a_default_provider_refuses_unknown_names(home: Path) -> None:
    """The error suggests the nearest name."""
    with pytest.raises(ConfigurationError, match=r"unknown model 'dayly': did you mean daily\?"):
        registry(home).resolve("dayly")
    with pytest.raises(ConfigurationError, match=r"did you mean claude-opus-4-6 or"):
        registry(home).resolve("claud-opus-4-6")
    with pytest.raises(ConfigurationError, match=r"unknown model 'gpt-9'.*provider:name"):
        registry(home).resolve("gpt-9")


# -- A provider that is named.


def test_a_named_provider_is_used(home: Path) -> None:
    here = registry(home)
    assert meaning(here, "llama-9", "box") == ("box:llama-9", "passthrough")
    assert meaning(here, "haiku", "work") == ("work:claude-haiku-5-5", "catalogue")
    assert meaning(here, "daily", "work") == ("work:claude-sonnet-5-5", "alias")
    assert meaning(here, "work:claude-sonnet-5-5", "work") == ("work:claude-sonnet-5-5", "id")
    assert meaning(here, "balanced", "work") == ("work:claude-sonnet-5-5", "native_name")
    assert meaning(here, "box:x", "box") == ("box:x", "passthrough")
    assert meaning(here, "claude-sonnet-5-5", "box") == ("box:claude-sonnet-5-5", "passthrough")


def test_a_model_of_another_provider_than_the_named_one_is_an_error(home: Path) -> None:
    here = registry(home)
    for name in ("daily", "work:claude-sonnet-5-5", "work:anything"):
        with pytest.raises(ConfigurationError, match=r"belongs to work, not to provider='box'"):
            here.resolve(name, "box")
    with pytest.raises(ConfigurationError, match=r"'nobody' is not an adapter in .*: adapters there: box, .*work"):
        here.resolve("x", "nobody")


# -- No model.


def test_without_a_model_the_default_model_is_used_or_an_error_has_advice(home: Path) -> None:
    """The default is never the newest model or a model of the default provider, because a call costs money."""
    assert expand(registry(home, "default_model: daily\n"), None).named[0].model == "work:claude-sonnet-5-5"
    for none in (registry(home), registry_from_env(ALL_KEYS)):
        with pytest.raises(ConfigurationError, match=r"no default_model. Pass a model .*, or set default_model"):
            expand(none, None)


# The data about models: names, sources and prices.


def on(day: str) -> Clock:
    """A clock that shows the start of a day."""
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
def test_the_specifications_models_and_capabilities_are_known(name: str, provider: str, display_name: str) -> None:
    """Seed 2 §2.9 lists these models, and so does the last row of its §8.1."""
    info = get_model_info(name)
    assert (info.id, info.provider, info.display_name) == (name, provider, display_name)
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
        *[
            (name, None)
            for name in ("claude-opus-9", "gpt-7", "nobody:gpt-5.2", "openai:claude-opus-4-6", "", "gpt-5.2-")
        ],
    ],
)
@row("8.1.8")
def test_a_model_is_known_by_any_of_its_names(name: str, known: str | None) -> None:
    """An unknown name gives None and no guess, although adapters accept `gpt-7` as a newer model."""
    info = get_model_info(name)
    assert (info and f"{info.provider}:{info.id}") == known


def test_a_name_of_several_providers_needs_its_provider() -> None:
    models = tuple(SnapshotModel(f"{provider}:m", ({"input": 1},)) for provider in ("p", "q"))
    catalogue = Catalogue(snapshot(*models), PriceTable([]))
    assert catalogue.info("m") is None
    assert present(catalogue.info("q:m")).provider == "q"


def snapshot(*models: SnapshotModel) -> Snapshot:
    return msgspec.structs.replace(shipped_snapshot(), models=models, aliases=())


def test_a_model_of_a_price_list_has_only_the_data_of_the_list() -> None:
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


def test_prices_are_the_current_ones_of_the_default_tier_and_a_small_prompt() -> None:
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
        assert (str(info.input_cost_per_million), str(info.output_cost_per_million)) == expected
    assert present(catalogue.info("gpt-5.4")).input_cost_per_million is None


# -- Lists.


@row("8.1.8")
def test_a_providers_models_are_those_of_its_table_in_its_order() -> None:
    for provider in tabled_vendors():
        table = model_table(provider)
        assert ids(list_models(provider, include_retired=True)) == [row.id for row in present(table).rows]


def test_all_models_are_those_of_the_tables_and_of_price_lists() -> None:
    everything = list_models()
    providers = {info.provider for info in everything}
    assert providers >= {"anthropic", "openai", "gemini", "groq", "mistral", "openrouter"}
    assert ids(everything)[: len(list_models("anthropic"))] == ids(list_models("anthropic"))
    assert "whisper-1" not in ids(list_models("openai"))
    assert len({(info.provider, info.id) for info in everything}) == len(everything)


def test_retired_models_are_listed_only_on_demand() -> None:
    catalogue = shipped_on("2026-11-22")
    assert "gemini-3-pro-preview" not in ids(catalogue.models("gemini"))
    assert "gemini-3-pro-preview" in ids(catalogue.models("gemini", include_retired=True))
    assert "claude-sonnet-4-5" in ids(catalogue.models("anthropic"))
    assert "claude-sonnet-4-5" not in ids(shipped_on("2026-11-30").models("anthropic"))


@row("8.1.8")
def test_models_are_filtered_by_known_capabilities() -> None:
    """Models with unknown capabilities are left out. The adapters' names of capabilities are also valid."""
    for word in ("vision", "images", "supports_vision", "supports_images"):
        found = list_models(capability=word)
        assert {info.provider for info in found} == set(tabled_vendors())
        assert all(info.supports_vision for info in found)
        assert "gpt-4" not in ids(list_models("openai", word, include_retired=True))


def test_a_provider_without_a_table_has_no_latest_model() -> None:
    assert list_models("mistral")
    assert (list_models("nobody"), get_latest_model("nobody"), get_latest_model("mistral")) == ([], None, None)


def test_an_unknown_capability_is_an_error_with_the_nearest() -> None:
    with pytest.raises(CallboardError, match=r"'visoin': did you mean 'vision'"):
        list_models(capability="visoin")
    with pytest.raises(CallboardError, match=r"expected tools, vision, reasoning, structured_output"):
        get_latest_model("openai", "xyz")


# -- The latest model.


def test_the_latest_is_the_best_for_general_use() -> None:
    catalogue = shipped_on("2026-11-22")
    latest = {
        ("anthropic", None): "claude-opus-5-5",
        ("anthropic", "structured_output"): "claude-opus-5-5",
        ("openai", "reasoning"): "gpt-6.2-sol",
        ("gemini", "tools"): "gemini-4-argon",
        ("google", None): "gemini-4-argon",
    }
    assert {asked: present(catalogue.latest(*asked)).id for asked in latest} == latest


def test_the_latest_is_never_a_retired_or_special_model(monkeypatch: pytest.MonkeyPatch) -> None:
    table = model_table("openai")
    best, *others = table.rows
    gone = msgspec.structs.replace(best, retires="2026-11-01")
    special = msgspec.structs.replace(best, id="special", general=False)
    monkeypatch.setattr(type(table), "rows", (gone, special, *others))
    assert present(shipped_on("2026-11-22").latest("openai")).id == others[0].id


# -- Newer data.


def test_a_newer_price_snapshot_brings_new_models_and_prices(home: Path) -> None:
    assert get_model_info("p:new") is None
    old = read(SHIPPED)
    new = (
        SnapshotModel("p:new", ({"input": 1_000_000, "output": 0},), name="New", context_window=5000),
        SnapshotModel("openai:gpt-5.5", ({"input": 7_000_000, "output": 0},)),
    )
    (home / SNAPSHOT_NAME).write_bytes(encode(msgspec.structs.replace(old, models=new)))
    info, priced = get_model_info("p:new"), get_model_info("gpt-5.5")
    assert (info.display_name, info.context_window) == ("New", 5000)
    assert priced.input_cost_per_million == 7
    assert priced.supports_tools


# `Engine.models()`: the configured models with their capabilities, costs and states.


def engine_of(text: str, folder: Path, prices: PriceTable | None = None) -> Engine:
    path = folder / "models.yaml"
    path.write_text(f"only: true\n{text}")
    return Engine(models=read_models_yaml(path, {"KEY": "k"}), trace=False, prices=prices or PriceTable.default())


def by_id(engine: Engine) -> dict[str, ConfiguredModel]:
    return {model.id: model for model in engine.models()}


def test_listed_models_come_first_and_then_other_models_of_a_key(home: Path) -> None:
    engine = engine_of(
        """
adapters: {work: {type: anthropic, api_key_env: KEY}}
models: {work:claude-opus-4-6: {adapter: work, aliases: [haiku]}}
""",
        home,
    )
    models = engine.models()
    assert [model.id for model in models[:2]] == ["work:claude-opus-4-6", "work:claude-opus-5-5"]
    assert [model.listed for model in models[:2]] == [True, False]
    assert len({model.id for model in models}) == len(models)
    named = by_id(engine)
    assert named["work:claude-sonnet-5-5"].aliases == ("claude-sonnet", "sonnet")
    assert named["work:claude-haiku-5-5"].aliases == ("claude-haiku",), "the other alias belongs to a listed model"
    assert not [model for model in models if "mythos" in model.id], "models with restricted access are left out"
    for model in models:
        for name in (model.id, *model.aliases):
            assert engine.registry.resolve(name).model.wire_name == model.wire_name


def test_each_model_has_its_capabilities_and_its_costs_under_the_engines_prices(home: Path) -> None:
    text = """
adapters: {work: {type: anthropic, api_key_env: KEY}}
models:
  work:a: {adapter: work, wire_name: claude-opus-4-6, capabilities: {supports_tools: false}}
  work:b: {adapter: work, wire_name: unheard-of}
"""
    known, unheard = engine_of(text, home).models()[:2]
    assert present(known.info).display_name == "Claude Opus 4.6"
    assert (known.capabilities.supports_tools, known.capabilities.max_context_tokens) == (False, 1_000_000)
    assert (known.input_cost_per_million, known.output_cost_per_million) == (Decimal(5), Decimal(25))
    assert unheard.info is None
    assert unheard.input_cost_per_million is None
    own = PriceTable([PriceRow(model="work:claude-opus-4-6", input=1_500_000, output=0)])
    assert engine_of(text, home, own).models()[0].input_cost_per_million == Decimal("1.5")


def test_an_adapter_without_a_key_or_a_class_lists_only_its_listed_models(home: Path) -> None:
    engine = engine_of(
        """
adapters:
  locked: {type: openai, api_key_env: NO_SUCH_KEY}
  broken: {type: "nowhere.at_all:Adapter"}
models:
  locked:gpt-5.2: {adapter: locked}
  broken:m: {adapter: broken}
""",
        home,
    )
    locked, broken = engine.models()
    assert (locked.state, locked.reason) == ("not_configured", "NO_SUCH_KEY is not set")
    assert locked.capabilities is not None
    assert broken.state == "not_configured"
    assert "nowhere" in broken.reason
    assert broken.capabilities is None


def test_a_compatible_server_has_none_of_the_providers_models(home: Path) -> None:
    openai = 'adapters: {it: {type: openai, api_key_env: KEY, base_url: "%s"}}'
    assert engine_of(openai % "http://localhost:1", home).models() == []
    assert "it:gpt-6.2-sol" in by_id(engine_of(openai % "https://api.openai.com", home))


def test_without_a_file_there_are_the_local_models_and_those_of_the_keys() -> None:
    engine = Engine(models=registry_from_env({"GEMINI_API_KEY": "g"}), trace=False)
    providers = {model.provider for model in engine.models()}
    local = {"local-chat", "local-messages", "local-responses", "local-tools", "local-embed"}
    assert providers == {*local, "gemini"}
    assert by_id(engine)["local-tools:smollm2"].capabilities.supports_tools
    assert [model.id for model in engine.models() if model.kind == "embedding"] == ["local-embed:smollm2"]
    assert by_id(engine)["local-chat:smollm2"].input_cost_per_million == 0


async def test_a_degraded_model_has_its_state_and_its_reason() -> None:
    refused = RateLimitError("slow down", retryable=False)
    async with running(Say(fails=refused), other=[Say("Hi")]) as (engine, _):
        assert [model.state for model in engine.models()] == ["available", "available"]
        with pytest.raises(RateLimitError):
            await engine.session("s:m").send("Hello")
        troubled, other = engine.models()
        assert (troubled.state, other.state) == ("degraded", "available")
        assert "RateLimitError" in troubled.reason
