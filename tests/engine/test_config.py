"""models.yaml: valid files, the resolution of names, and the errors for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard import ConfigurationError, Engine, KeyFile, ModelDefaults, RetryPolicy, ToolSettings, load_registry
from callboard.engine.models.configured import read_models_yaml, registry_from_env
from callboard.engine.routing.candidates import expand

SEED_EXAMPLE = """
# ~/.yourtool/models.yaml
adapters:
  anthropic:
    type: anthropic
    api_key_env: ANTHROPIC_API_KEY
    base_url: https://api.anthropic.com
    timeout: 600
    max_retries: 2
  openai:
    type: openai
    api_key_env: OPENAI_API_KEY
    base_url: https://api.openai.com
    timeout: 600
    max_retries: 2
models:
  anthropic:claude-opus-4-7:
    adapter: anthropic
    wire_name: claude-opus-4-7
    tier: deep
    can_delegate: true
    aliases: [opus, deep]
  anthropic:claude-sonnet-4-6:
    adapter: anthropic
    wire_name: claude-sonnet-4-6
    tier: balanced
    can_delegate: true
    aliases: [sonnet, balanced]
  anthropic:claude-haiku-4-5:
    adapter: anthropic
    wire_name: claude-haiku-4-5
    tier: fast
    can_delegate: false
    aliases: [haiku, fast]
  openai:gpt-5:
    adapter: openai
    wire_name: gpt-5
    tier: balanced
    can_delegate: true
    aliases: [gpt5]
"""
PRICES = """
label: own
date: 2026-01-01
prices: [{model: "openai:gpt-5", input: 1, output: 2}]
"""
KEYS = {"ANTHROPIC_API_KEY": "sk-ant", "OPENAI_API_KEY": "sk-oai"}


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def test_the_specifications_example_loads_as_written(tmp_path: Path) -> None:
    """Seed 1 §8: the file has two adapters with keys, and models with tiers and aliases."""
    registry = read_models_yaml(written(tmp_path, SEED_EXAMPLE), KEYS)
    assert registry.adapters["anthropic"].config.api_key == "sk-ant"
    assert registry.models["anthropic:claude-opus-4-7"].aliases == ("opus", "deep")
    model = registry.models["openai:gpt-5"]
    assert (model.tier, model.can_delegate, model.tools, model.defaults) == (
        *("balanced", True),
        *(ToolSettings(), ModelDefaults()),
    )
    assert (model.prompt_addendum, model.retry, model.max_retries, model.usual_max_output) == (None,) * 4


@pytest.mark.parametrize(
    ("name", "model", "how"),
    [
        ("anthropic:claude-opus-4-7", "anthropic:claude-opus-4-7", "id"),
        ("opus", "anthropic:claude-opus-4-7", "alias"),
        ("gpt-5", "openai:gpt-5", "native_name"),
        ("openai:balanced", "openai:gpt-5", "native_name"),
        ("openai:gpt-9-unheard-of", "openai:gpt-9-unheard-of", "passthrough"),
    ],
)
def test_a_model_is_found_by_any_of_its_names(tmp_path: Path, name: str, model: str, how: str) -> None:
    """The names are the id, an alias, the provider's own name and the tier."""
    plan = expand(read_models_yaml(written(tmp_path, SEED_EXAMPLE), KEYS), name)
    assert [(named.model, named.resolved_by) for named in plan.named] == [(model, how)]
    assert plan.requested == name


def test_an_ambiguous_name_lists_its_candidates(tmp_path: Path) -> None:
    """A native name of two providers needs its prefix."""
    text = SEED_EXAMPLE + "  openai:claude-haiku-4-5:\n    adapter: openai\n    wire_name: claude-haiku-4-5\n"
    registry = read_models_yaml(written(tmp_path, text), KEYS)
    with pytest.raises(
        ConfigurationError, match=r"ambiguous.*anthropic:claude-haiku-4-5, openai:claude-haiku-4-5"
    ):
        registry.resolve("claude-haiku-4-5")


X = "adapters:\n  x: {type: openai, %s}"
Y = "adapters: {x: {type: openai}}\nmodels:\n  x:y: {adapter: x, %s}"
G = "adapters: {a: {type: anthropic, api_key: k}}\ngateway: {names: %s}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("adapters: [", r"is not valid YAML"),
        ("- a\n- b", r"the file: expected a mapping of names, found list"),
        ("adapter:\n  x: {type: openai}", r"adapter: unknown key; did you mean 'adapters'"),
        ("adapters:\n  x: {}", r"adapters\.x\.type: expected an adapter type such as anthropic, found nothing"),
        ("adapters:\n  x: {type: 7}", r"adapters\.x\.type: expected a string, found int 7"),
        (X % "max_retrys: 1", r"adapters\.x\.max_retrys: unknown key.*max_retries"),
        (X % "max_retries: -1", r"adapters\.x\.max_retries: expected a number"),
        (X % "timeout: soon", r"adapters\.x\.timeout: expected a number"),
        (X % "extra_headers: {a: 1}", r"extra_headers\.a: expected a string"),
        ("models:\n  x:y: {}", r"models\.x:y\.adapter: expected the name of one of adapters"),
        ("models:\n  x:y: {adapter: z}", r"models\.x:y\.adapter: 'z' is not one of adapters: local-chat, "),
        (Y % "aliases: y", r"aliases: expected a list"),
        (Y % "can_delegate: maybe", r"can_delegate: expected true or false"),
        (X % "defaults: {effort: 3}", r"adapters\.x\.defaults\.effort: expected a string"),
        (X % "tools: {maxi: 3}", r"adapters\.x\.tools\.maxi: unknown key; did you mean 'max'"),
        (X % "tools: {max: 0}", r"tools\.max: expected a whole number, at least 1, found int 0"),
        (X % "tools: {strict: 1}", r"tools\.strict: expected true or false, found int 1"),
        (X % "tools: {max: 1, core: [a, b]}", r"core: expected at most 1 names \(see adapters\.x\.tools\.max\)"),
        (X % "retry: {base: 1}", r"adapters\.x\.retry\.base: unknown key.*base_delay"),
        (X % "retry: {jitter: 2}", r"retry\.jitter: expected true or false, found int 2"),
        (X % "prompt_addendum: [a]", r"adapters\.x\.prompt_addendum: expected a string"),
        (Y % "retry: {max_delay: long}", r"models\.x:y\.retry\.max_delay: expected a number"),
        (Y % "aliases: [q]}\n  x:z: {adapter: x, aliases: [q]", r"x:z\.aliases: 'q' already belongs to x:y"),
        (Y % "fallback: b", r"models\.x:y\.fallback: expected a list of names"),
        (Y % "fallback: [b]", r"models\.x:y\.fallback: unknown model 'b'"),
        (Y % "capabilities: {supports_tool: true}", r"supports_tool: unknown key; did you mean 'supports_tools'"),
        (Y % "capabilities: {supports_tools: 1}", r"capabilities\.supports_tools: expected true or false"),
        (Y % "capabilities: {max_context_tokens: big}", r"capabilities\.max_context_tokens: expected a number"),
        (Y % "defaults: {temprature: 1}", r"defaults\.temprature: unknown key; did you mean 'temperature'"),
        (Y % "defaults: {effort: 3}", r"defaults\.effort: expected a string"),
        (Y % "kind: sound", r"models\.x:y\.kind: expected chat, embedding, image or video"),
        (G % "{x: []}", r"gateway\.names\.x: expected the name of a model, or a list of names"),
        (G % "{x: 3}", r"gateway\.names\.x: expected the name of a model, or a list of names"),
        (G % "{x: b:one}", r"gateway\.names\.x: "),
        (G % "[x]", r"gateway\.names: expected a mapping of names"),
        ("adapters: {a: {type: opena}}", r"a\.type: unknown adapter type 'opena': did you mean 'openai'"),
        ("adapters: {a: {type: xyz}}", r"expected anthropic, bedrock, .* package\.module:Class"),
    ],
)
def test_a_mistake_has_the_file_the_key_and_the_expectation(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        read_models_yaml(path, {})
    assert str(caught.value).startswith(str(path))


SETTINGS = """
adapters:
  a:
    type: openai
    max_retries: 4
    retry: {base_delay: 2, max_delay: 30}
    defaults: {max_output_tokens: 8192, temperature: 0.7}
    capabilities: {supports_images: false, max_context_tokens: 1000}
    tools: {max: 20, core: [read], strict: true}
    prompt_addendum: Use the tools.
models:
  a:plain: {adapter: a}
  a:own:
    adapter: a
    max_retries: 0
    retry: {base_delay: 5}
    defaults: {temperature: 0, effort: low}
    capabilities: {supports_images: true}
    tools: {max: 5, force_first_turn: true}
    prompt_addendum: ""
"""


NAMES = """
adapters: {a: {type: anthropic, api_key: k}}
models:
  a:one: {adapter: a, aliases: [gpt-own]}
  a:two: {adapter: a}
gateway:
  names: {gpt-*: [a:two, a:one], gpt-5: a:one, "*-mini": a:two}
"""


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("gpt-5", ("a:one",)),
        ("gpt-4", ("a:two", "a:one")),
        ("gpt-4-mini", ("a:two", "a:one")),
        ("o3-mini", ("a:two",)),
        ("gpt-own", ("gpt-own",)),
        ("a:one", ("a:one",)),
        ("claude", ("claude",)),
        ("gpt.", ("gpt.",)),
    ],
)
def test_a_clients_name_is_served_by_other_models(tmp_path: Path, name: str, models: tuple[str, ...]) -> None:
    """The order is: a listed name, a model's own name, the patterns in order, and the name itself."""
    registry = read_models_yaml(written(tmp_path, NAMES), {})
    assert registry.serving(name) == models
    assert registry.succeeding(registry).serving(name) == models


def test_an_adapters_settings_apply_to_all_its_models_and_a_model_can_differ(tmp_path: Path) -> None:
    registry = read_models_yaml(written(tmp_path, SETTINGS), {})
    config = registry.adapters["a"].config
    assert (config.max_retries, config.retry) == (4, RetryPolicy(base_delay=2, max_delay=30))
    for name in ("a:plain", "a:never-heard-of"):
        plain = registry.resolve(name).model
        assert (plain.max_retries, plain.retry) == (None, None), "the settings of the adapter take precedence"
        assert (plain.defaults, plain.usual_max_output) == (ModelDefaults(temperature=0.7), 8192)
        assert plain.capabilities == {"supports_images": False, "max_context_tokens": 1000}
        assert plain.tools == ToolSettings(max=20, core=("read",), strict=True)
        assert plain.prompt_addendum == "Use the tools."
    model = registry.resolve("a:own").model
    assert (model.max_retries, model.retry) == (0, RetryPolicy(base_delay=5, max_delay=30))
    assert model.defaults == ModelDefaults(temperature=0, effort="low")
    assert model.capabilities == {"supports_images": True, "max_context_tokens": 1000}
    assert model.tools == ToolSettings(max=5, core=("read",), strict=True, force_first_turn=True)
    assert model.prompt_addendum == ""


def test_the_environment_variable_sets_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CALLBOARD_HOME is the folder of models.yaml. A missing file is an error if it was named."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    written(tmp_path, SEED_EXAMPLE)
    assert load_registry(None, KEYS).source == str(tmp_path / "models.yaml")
    with pytest.raises(ConfigurationError, match=r"can't be read"):
        load_registry(tmp_path / "absent.yaml")


async def test_an_engine_accepts_paths_as_texts(tmp_path: Path) -> None:
    """The arguments are `models=`, `store=` and `prices=`."""
    written(tmp_path, SEED_EXAMPLE)
    (tmp_path / "prices.yaml").write_text(PRICES)
    texts = {name: f"{tmp_path}/{name}.yaml" for name in ("models", "prices")}
    async with Engine(store=f"{tmp_path}/trace.db", **texts) as engine:
        assert "own" in engine.prices.label
        assert "openai:gpt-5" in engine.registry.models
        await engine.reload(texts["models"])
    assert (tmp_path / "trace.db").exists()


def test_a_key_in_the_file_works_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = read_models_yaml(written(tmp_path, "adapters:\n  x: {type: openai, api_key: sk-secret}"), {})
    assert registry.adapters["x"].config.api_key == "sk-secret"
    assert "api_key_env" in caplog.text
    assert "sk-secret" not in caplog.text
    assert "sk-secret" not in repr(registry.adapters["x"])


def test_without_a_file_the_environments_keys_make_the_registry() -> None:
    """OpenAI, Anthropic and Gemini get the keys of their variables. The local model needs no key."""
    registry = registry_from_env({"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "http://localhost:1/v1"})
    assert registry.adapters["openai"].config.base_url == "http://localhost:1/v1"
    assert registry.adapters["anthropic"].state == "not_configured"
    assert registry.resolve("local-messages").model.id == "local-messages:smollm2"


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"GEMINI_API_KEY": "one"}, "one"),
        ({"GOOGLE_API_KEY": "two"}, "two"),
        ({"GEMINI_API_KEY": "one", "GOOGLE_API_KEY": "two"}, "one"),
        ({}, None),
    ],
)
def test_geminis_key_has_two_names(environ: dict[str, str], key: str | None) -> None:
    entry = registry_from_env({**environ, "GEMINI_BASE_URL": "http://localhost:1"}).adapters["gemini"]
    assert (entry.config.api_key, entry.config.base_url) == (key, "http://localhost:1")
    assert (entry.state == "not_configured") is (key is None)
    assert entry.missing_key == (None if key else "GEMINI_API_KEY")


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("type: anthropic, api_key_env: ANTHROPIC_API_KEY", "http://localhost:1"),
        ("type: anthropic, api_key_env: WORK_KEY", "http://localhost:1"),
        ("type: anthropic, api_key: k", "http://localhost:1"),
        ("type: anthropic", "http://localhost:1"),
        ("type: anthropic, api_key_env: ANTHROPIC_API_KEY, base_url: 'http://localhost:3'", "http://localhost:3"),
        ("type: openai, api_key_env: OPENAI_API_KEY", "http://localhost:2"),
        ("type: openai_compatible, api_key_env: OPENAI_API_KEY", "http://localhost:2"),
        ("type: openai, api_key_env: GROQ_API_KEY", None),
        ("type: openai_compatible, api_key_env: GROQ_API_KEY", None),
        ("type: openai_compatible, api_key_env: WORK_KEY", None),
        ("type: gemini, api_key_env: GEMINI_API_KEY", None),
        ("type: ollama", None),
    ],
)
def test_the_environments_address_comes_after_the_files(entry: str, address: str | None, tmp_path: Path) -> None:
    """The vendors' own libraries use these variables too."""
    environ = {
        **{f"{name}_API_KEY": "k" for name in ("ANTHROPIC", "OPENAI", "GEMINI", "GROQ")},
        **{"WORK_KEY": "k", "ANTHROPIC_BASE_URL": "http://localhost:1", "OPENAI_BASE_URL": "http://localhost:2"},
    }
    found = read_models_yaml(written(tmp_path, f"adapters:\n  x: {{{entry}}}"), environ).adapters["x"]
    assert found.config.base_url == address
    assert (found.address_from is not None) == (address is not None and "base_url" not in entry)


def test_the_error_of_invalid_yaml_does_not_quote_the_file(tmp_path: Path) -> None:
    """The wrong line may contain a key."""
    path = written(tmp_path, "adapters:\n  a: {type: openai, api_key: sk-secret-key, : : }\n  b: [\n")
    with pytest.raises(ConfigurationError, match=r"is not valid YAML: line 2, column \d+") as raised:
        read_models_yaml(path)
    assert "sk-secret" not in str(raised.value)
    assert raised.value.__cause__ is raised.value.__context__ is None


def test_a_file_for_one_alias_keeps_the_adapters_of_the_environment(tmp_path: Path) -> None:
    """Adapters with keys, the local models and the default provider stay. With `only: true` none of them stays."""
    one_alias = 'models:\n  "anthropic:claude-haiku-4-5": {adapter: anthropic, aliases: [quick]}\n'
    registry = read_models_yaml(written(tmp_path, one_alias), KEYS)
    assert registry.resolve("quick").model.id == "anthropic:claude-haiku-4-5"
    assert registry.resolve("openai:gpt-5.2").model.adapter == "openai"
    assert registry.resolve("local-chat").model.adapter == "local-chat"
    assert registry.default_provider == registry_from_env(KEYS).default_provider
    assert "gemini" not in registry.adapters, "the environment has no key of gemini"
    text = "only: true\nadapters:\n  mine: {type: anthropic, api_key_env: ANTHROPIC_API_KEY}\n"
    registry = read_models_yaml(written(tmp_path, text), KEYS)
    assert ([*registry.adapters], registry.models, registry.default_provider) == (["mine"], {}, None)


def test_the_file_comes_before_the_environment(tmp_path: Path) -> None:
    """The file decides for an adapter's name, an alias of a local model, and a vendor's model of another
    adapter.
    """
    text = """
adapters:
  openai: {type: openai_compatible, base_url: "http://127.0.0.1:1/v1", api_key_env: OPENAI_API_KEY}
  work: {type: anthropic, api_key_env: ANTHROPIC_API_KEY}
models:
  "work:claude-haiku-4-5": {adapter: work, aliases: [local-chat]}
"""
    registry = read_models_yaml(written(tmp_path, text), KEYS)
    assert registry.adapters["openai"].type == "openai_compatible"
    assert registry.resolve("local-chat").model.id == "work:claude-haiku-4-5"
    assert registry.resolve("claude-sonnet-4-5").model.adapter == "work"


def test_a_hosts_own_adapter_type_is_a_module_and_a_class(tmp_path: Path) -> None:
    assert read_models_yaml(written(tmp_path, "adapters:\n  a: {type: 'mine.adapter:Mine'}\n"), {}).adapters["a"]


def test_a_key_can_be_in_a_separate_file(tmp_path: Path) -> None:
    """The path is relative to models.yaml, and the file is read at the first use."""
    path = written(tmp_path, "adapters:\n  x: {type: openai, api_key_file: secrets/key}")
    entry = read_models_yaml(path, {}).adapters["x"]
    assert (entry.config.api_key, entry.state) == (KeyFile(str(tmp_path / "secrets" / "key")), "configured")
    assert read_models_yaml(path, {}).adapters["x"] == entry
    path = written(tmp_path, "adapters:\n  x: {type: openai, api_key_file: /run/secrets/key}")
    assert read_models_yaml(path, {}).adapters["x"].config.api_key == KeyFile("/run/secrets/key")


def test_keys_can_have_names_and_be_in_a_pool(tmp_path: Path) -> None:
    """Each key comes from a variable or a file."""
    path = written(
        tmp_path,
        "adapters:\n  x:\n    type: openai\n    key_pool: [acme, beta]\n    keys:\n"
        "      acme: {api_key_env: ACME_KEY}\n      beta: {api_key_file: beta.key}\n",
    )
    config = read_models_yaml(path, {"ACME_KEY": "sk-acme"}).adapters["x"].config
    assert config.keys == {"acme": "sk-acme", "beta": KeyFile(str(tmp_path / "beta.key"))}
    assert config.key_pool == ("acme", "beta")
    with pytest.raises(
        ConfigurationError, match=r"adapters\.x\.keys\.acme: .* the environment variable ACME_KEY is not set"
    ):
        read_models_yaml(path, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: {acme: sk-secret}", "adapters.x.keys.acme: expected a mapping with api_key_env or api_key_file"),
        ("keys: {acme: {}}", "adapters.x.keys.acme: no key: set api_key_env or api_key_file"),
        ("keys: {acme: {api_key_env: A}}, key_pool: [b]", "x.key_pool: expected names of adapters.x.keys"),
    ],
)
def test_the_error_of_wrong_named_keys_has_no_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, f"adapters:\n  x: {{type: openai, {text}}}")
    with pytest.raises(ConfigurationError) as raised:
        read_models_yaml(path, {"A": "sk-secret"})
    assert said in str(raised.value)
    assert "sk-secret" not in str(raised.value)
