"""`Engine.models()`: what can be asked for here, what it can do and costs, and how it stands."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from callboard import ConfiguredModel, Engine, PriceRow, PriceTable, RateLimitError
from callboard.engine.models.configured import read_models_yaml, registry_from_env
from tests.support.engines import running
from tests.support.present import present
from tests.support.scripted import Say


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    return tmp_path


def engine_of(text: str, folder: Path, prices: PriceTable | None = None) -> Engine:
    path = folder / "models.yaml"
    path.write_text(f"only: true\n{text}")
    return Engine(models=read_models_yaml(path, {"KEY": "k"}), trace=False, prices=prices or PriceTable.default())


def by_id(engine: Engine) -> dict[str, ConfiguredModel]:
    return {model.id: model for model in engine.models()}


def test_listed_models_come_first_and_then_what_else_a_key_opens(home: Path) -> None:
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
    assert named["work:claude-haiku-5-5"].aliases == ("claude-haiku",), "the other one is taken here"
    assert not [model for model in models if "mythos" in model.id], "not for everybody"
    for model in models:
        for name in (model.id, *model.aliases):
            assert engine.registry.resolve(name).model.wire_name == model.wire_name


def test_each_says_what_it_can_do_and_costs_under_the_engines_prices(home: Path) -> None:
    text = """
adapters: {work: {type: anthropic, api_key_env: KEY}}
models:
  work:a: {adapter: work, wire_name: claude-opus-4-6, capabilities: {supports_tools: false}}
  work:b: {adapter: work, wire_name: unheard-of}
"""
    known, unheard = engine_of(text, home).models()[:2]
    assert present(known.info).display_name == "Claude Opus 4.6"
    assert known.capabilities is not None
    assert (known.capabilities.supports_tools, known.capabilities.max_context_tokens) == (False, 1_000_000)
    assert (known.input_cost_per_million, known.output_cost_per_million) == (Decimal(5), Decimal(25))
    assert unheard.info is None
    assert unheard.input_cost_per_million is None
    own = PriceTable([PriceRow(model="work:claude-opus-4-6", input=1_500_000, output=0)])
    assert engine_of(text, home, own).models()[0].input_cost_per_million == Decimal("1.5")


def test_what_lacks_a_key_or_an_adapter_says_so_and_offers_nothing_more(home: Path) -> None:
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


def test_a_server_that_only_speaks_like_a_provider_has_none_of_its_models(home: Path) -> None:
    engine = engine_of(
        'adapters: {mine: {type: openai, api_key_env: KEY, base_url: "http://localhost:1"}}\n', home
    )
    assert engine.models() == []
    own = engine_of(
        'adapters: {theirs: {type: openai, api_key_env: KEY, base_url: "https://api.openai.com"}}', home
    )
    assert "theirs:gpt-6.2-sol" in by_id(own)


def test_without_a_file_it_is_the_local_model_and_what_the_keys_open() -> None:
    engine = Engine(models=registry_from_env({"GEMINI_API_KEY": "g"}), trace=False)
    providers = {model.provider for model in engine.models()}
    local = {"local-chat", "local-messages", "local-responses", "local-tools", "local-embed"}
    assert providers == {*local, "gemini"}
    assert by_id(engine)["local-tools:smollm2"].capabilities.supports_tools
    assert [model.id for model in engine.models() if model.kind == "embedding"] == ["local-embed:smollm2"]
    assert by_id(engine)["local-chat:smollm2"].input_cost_per_million == 0


@pytest.mark.anyio
async def test_a_model_in_trouble_says_how_it_stands_and_why() -> None:
    refused = RateLimitError("slow down", retryable=False)
    async with running(Say(fails=refused), other=[Say("Hi")]) as (engine, _):
        assert [model.state for model in engine.models()] == ["available", "available"]
        with pytest.raises(RateLimitError):
            await engine.session("s:m").send("Hello")
        troubled, other = engine.models()
        assert (troubled.state, other.state) == ("degraded", "available")
        assert "RateLimitError" in troubled.reason
