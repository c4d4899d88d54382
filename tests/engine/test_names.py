"""What a name means where models.yaml doesn't list it, and which provider is meant where none is named (C10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard import ConfigurationError, ModelRegistry
from callboard.engine.models.configured import read_models_yaml, registry_from_env
from callboard.engine.routing.candidates import expand

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


# -- the catalogue's names


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


def test_it_goes_to_whatever_adapter_serves_that_provider(home: Path) -> None:
    """Under the adapter's own name, and by the address of a server."""
    here = registry(home)
    assert meaning(here, "claude-haiku-4-5") == ("work:claude-haiku-4-5", "catalogue")
    assert meaning(here, "anthropic:haiku") == ("work:claude-haiku-5-5", "catalogue")
    assert meaning(here, "llama-3.3-70b-versatile") == ("box:llama-3.3-70b-versatile", "passthrough")


def test_a_listed_model_is_that_one_also_under_the_catalogues_short_name(home: Path) -> None:
    """With all that models.yaml says of it."""
    here = registry(home)
    for name in ("sonnet", "work:sonnet", "claude-sonnet-5-5", "daily"):
        assert here.resolve(name).model.id == "work:claude-sonnet-5-5"
        assert here.resolve(name).model.tier == "balanced"


def test_ones_own_names_go_before_the_catalogues(home: Path) -> None:
    here = registry(home, "  box:mixtral: {adapter: box, wire_name: mixtral, aliases: [opus]}\n")
    assert meaning(here, "opus") == ("box:mixtral", "alias")


def test_of_two_adapters_the_one_with_a_key_is_meant_or_the_default_one(home: Path) -> None:
    two = "adapters: {a: {type: anthropic, api_key: k}, b: {type: anthropic, api_key: k}}\n"
    with pytest.raises(ConfigurationError, match=r"ambiguous: say one of a:haiku, b:haiku"):
        registry(home, text=two).resolve("haiku")
    assert meaning(registry(home, "default_provider: b\n", two), "haiku")[0] == "b:claude-haiku-5-5"
    one = "adapters: {a: {type: anthropic, api_key_env: NO_SUCH}, b: {type: anthropic, api_key: k}}\n"
    assert meaning(registry(home, text=one), "haiku")[0] == "b:claude-haiku-5-5"


# -- the default provider


@pytest.mark.parametrize(
    ("keys", "default"),
    [
        (ALL_KEYS, "openai"),
        ({"ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}, "anthropic"),
        ({"GOOGLE_API_KEY": "g"}, "gemini"),
        ({}, None),
    ],
)
def test_without_a_file_the_first_provider_with_a_key_is_the_default(
    keys: dict[str, str], default: str | None
) -> None:
    """In the order of seed 2 §2.2's table."""
    assert registry_from_env(keys).default_provider == default


def test_a_name_that_nobody_knows_goes_to_the_default_provider() -> None:
    assert meaning(registry_from_env(ALL_KEYS), "ft:mine") == ("openai:ft:mine", "passthrough")
    assert meaning(registry_from_env(ALL_KEYS), "gpt-9") == ("openai:gpt-9", "passthrough")


def test_but_not_the_name_of_another_vendors_model() -> None:
    """Which would only be a 404 there, or somebody's bill."""
    with pytest.raises(ConfigurationError, match=r"looks like one of anthropic's.*say anthropic:claude-opus-9"):
        registry_from_env(ALL_KEYS).resolve("claude-opus-9")


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("deepseek:deepseek-chat", "deepseek"),
        ("mistral:new", "mistral"),
        ("llama-3.3-70b-versatile", "groq"),
        ("meta-llama/llama-3.1-8b-instruct", r"\w+ or \w+"),
    ],
)
def test_nor_the_name_of_a_provider_that_no_adapter_serves(name: str, whose: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"is one of {whose}.*; add one to models\.yaml"):
        registry_from_env(ALL_KEYS).resolve(name)


def test_a_server_that_may_have_anybodys_models_is_asked_for_them(home: Path) -> None:
    here = registry(home, "default_provider: box\n")
    assert meaning(here, "gpt-9") == ("box:gpt-9", "passthrough")
    assert meaning(here, "mistral:7b") == ("box:mistral:7b", "passthrough")


def test_a_file_without_a_default_provider_takes_no_name_that_it_doesnt_know(home: Path) -> None:
    """Whoever lists models means those; a slip of the pen is told."""
    with pytest.raises(ConfigurationError, match=r"unknown model 'dayly': did you mean daily\?"):
        registry(home).resolve("dayly")
    with pytest.raises(ConfigurationError, match=r"did you mean claude-opus-4-6 or"):
        registry(home).resolve("claud-opus-4-6")
    with pytest.raises(ConfigurationError, match=r"unknown model 'gpt-9'.*provider:name"):
        registry(home).resolve("gpt-9")


def test_a_default_provider_that_there_isnt_is_told(home: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"models\.yaml: default_provider: 'wrok' is none .* did you mean 'work'"
    ):
        registry(home, "default_provider: wrok\n")


def test_the_default_provider_survives_a_reload(home: Path) -> None:
    fresh = registry(home, "default_provider: box\n")
    assert fresh.succeeding(registry(home)).default_provider == "box"


# -- a provider that is named


def test_a_named_provider_is_the_one_that_is_asked(home: Path) -> None:
    here = registry(home)
    assert meaning(here, "llama-9", "box") == ("box:llama-9", "passthrough")
    assert meaning(here, "haiku", "work") == ("work:claude-haiku-5-5", "catalogue")
    assert meaning(here, "daily", "work") == ("work:claude-sonnet-5-5", "alias")
    assert meaning(here, "work:claude-sonnet-5-5", "work") == ("work:claude-sonnet-5-5", "id")
    assert meaning(here, "balanced", "work") == ("work:claude-sonnet-5-5", "native_name")
    assert meaning(here, "box:x", "box") == ("box:x", "passthrough")
    assert meaning(here, "claude-sonnet-5-5", "box") == ("box:claude-sonnet-5-5", "passthrough")


@pytest.mark.parametrize("name", ["daily", "work:claude-sonnet-5-5", "work:anything"])
def test_a_model_of_another_provider_than_the_named_one_is_an_error(home: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is one of work's, not of provider='box'"):
        registry(home).resolve(name, "box")


def test_a_named_provider_that_there_isnt_is_told(home: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'nobody' is none of the adapters in .*: they are box, .*work"):
        registry(home).resolve("x", "nobody")


# -- no model at all


def test_no_model_is_the_configured_one_or_an_error_that_says_what_to_do(home: Path) -> None:
    """Never the newest, and never the default provider's: a model costs money."""
    assert expand(registry(home, "default_model: daily\n"), None).named[0].model == "work:claude-sonnet-5-5"
    for none in (registry(home), registry_from_env(ALL_KEYS)):
        with pytest.raises(ConfigurationError, match=r"no default_model: name one, .* or set default_model"):
            expand(none, None)
