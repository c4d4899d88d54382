"""Adapters that a host makes itself (M17; seed 2, row 8.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard import AdapterConfig, ConfigurationError, Engine, ModelRegistry, OpenAIAdapter
from callboard.adapters.providers import scripted
from callboard.engine.models.configured import entry_of
from tests.support.engines import registry, running
from tests.support.scripted import Say

from ..definition_of_done.rows import row

pytestmark = pytest.mark.anyio

HELLO = scripted.ScriptedReply(text="Hello")


def own(*replies: scripted.ScriptedReply) -> scripted.ScriptedAdapter:
    left = list(replies)
    return scripted.ScriptedAdapter(AdapterConfig(), name="mine", replies=lambda request: left.pop(0))


@row("8.1.2")
async def test_an_engine_is_made_of_adapters() -> None:
    """8.1: explicit instances, routed by their names, in the trace and in routing like any other."""
    async with Engine(models=ModelRegistry({}, {}), providers={"mine": own(HELLO, HELLO)}, trace=False) as engine:
        assert engine.providers == {"mine": "configured"}
        result = await engine.generate("mine:anything", "Hi")
        assert (result.text, result.response.model) == ("Hello", "mine:anything")
        assert (await engine.generate("anything", "Hi", provider="mine")).text == "Hello"


async def test_an_adapter_of_the_hosts_replaces_one_that_only_the_environment_offers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With or without a key; of a name in models.yaml it is still refused."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    providers = {"anthropic": own(HELLO), "openai": own(HELLO)}
    async with Engine(providers=providers, trace=False) as engine:
        assert (await engine.generate("anthropic:m", "Hi")).text == "Hello"
        assert (await engine.generate("openai:m", "Hi")).text == "Hello"
    (tmp_path / "models.yaml").write_text("adapters: {anthropic: {type: anthropic, api_key_env: A_KEY}}")
    with pytest.raises(ConfigurationError, match="already"):
        Engine(providers={"anthropic": own(HELLO)}, trace=False)


async def test_an_adapter_joins_a_running_engine_and_stays_over_a_reload() -> None:
    """The next turn knows it; what models.yaml says afterwards doesn't take it away."""
    async with running(Say("configured")) as (engine, _):
        engine.register("mine", own(HELLO, HELLO))
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"
        change = await engine.reload(registry(Say("anew")))
        assert "mine" not in (*change.adapters_removed, *change.adapters_changed)
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"


async def test_what_makes_adapters_may_be_given() -> None:
    """A function is asked for each adapter that is needed: one to ask beforehand, one to call."""
    made: list[scripted.ScriptedAdapter] = []

    def make() -> scripted.ScriptedAdapter:
        made.append(own(HELLO))
        return made[-1]

    async with running() as (engine, _):
        engine.register("mine", make)
        assert (await engine.generate("mine:m", "Hi")).text == "Hello"
    assert len(made) == 2


async def test_looking_at_the_engine_s_health_leaves_the_host_s_adapter_alone() -> None:
    """An adapter that the host has made is not closed by a check."""
    closed: list[str] = []

    class Watched(scripted.ScriptedAdapter):
        async def close(self) -> None:
            closed.append(self.name)
            await super().close()

    mine = Watched(AdapterConfig(), name="mine", replies=lambda request: HELLO)
    engine = Engine(models=ModelRegistry({}, {}), providers={"mine": mine}, trace=False)
    await engine.health()
    assert closed == []
    await engine.generate("mine:m", "Hi")
    await engine.aclose()
    assert closed == ["mine"]


@pytest.mark.parametrize(
    ("name", "adapter", "advice"),
    [
        ("s", own(), "register yours under another name"),
        ("a:b", own(), "its models are called name:model"),
        ("mine", object(), "give an object with all that `ProviderAdapter`"),
    ],
)
async def test_what_can_t_be_registered_is_said(name: str, adapter: object, advice: str) -> None:
    """A name that is taken, one that can't be, and no adapter."""
    async with running() as (engine, _):
        with pytest.raises(ConfigurationError, match=advice):
            engine.register(name, adapter)  # type: ignore[arg-type]


def test_a_provider_s_own_adapter_has_its_prices() -> None:
    """Its class says whose it is; of any other, `prices_as` does."""
    assert entry_of("mine", OpenAIAdapter(AdapterConfig(api_key="x"))).type == "openai"
    assert entry_of("mine", own(), "openai").prices_as == "openai"
