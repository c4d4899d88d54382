"""A configuration is understood as a whole or refused: no option is overlooked, and no key goes astray."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.registry import adapter_types
from callboard.bus.errors import ConfigurationError
from callboard.engine import Engine
from callboard.engine.models.configured import read_models_yaml

from .test_wrong_addresses import WITH_ADDRESS

NEAR = {
    "anthropic": ("auto_cach", "auto_cache"),
    "bedrock": ("regoin", "region"),
    "cassette": ("fil", "file"),
    "gemini": ("api_verson", "api_version"),
    "local": ("contex_tokens", "context_tokens"),
    "ollama": ("num_ctxt", "num_ctx"),
    "openai": ("organisation", "organization"),
    "openai_compatible": ("quirk", "quirks"),
    "scripted": ("reply", "replies"),
    "tgi": ("templat", "template"),
}


@pytest.mark.parametrize("kind", adapter_types())
def test_an_unknown_option_is_an_error_that_names_the_nearest(kind: str) -> None:
    """Of every type; the adapter and the type are named, too."""
    wrong, meant = NEAR.get(kind, ("repar", "repair"))
    with pytest.raises(ConfigurationError) as raised:
        create_adapter(kind, AdapterConfig(options={wrong: True}), name="mine")
    said = str(raised.value)
    assert said.startswith(f"mine: options of type {kind}: ")
    assert f"`{wrong}`, did you mean `{meant}`?" in said


@pytest.mark.parametrize("kind", WITH_ADDRESS)
def test_an_option_that_is_like_none_lists_the_known(kind: str) -> None:
    """And `repair` is known to all who send requests."""
    with pytest.raises(ConfigurationError, match=r"unknown field `xyzzy`; known are .*repair"):
        create_adapter(kind, AdapterConfig(options={"xyzzy": 1}), name="mine")
    create_adapter(kind, AdapterConfig(options={"repair": False}), name="mine")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("anthropic", {"auto_cache": "no"}),
        ("anthropic", {"cache_ttl": "2h"}),
        ("openai", {"organization": 7}),
        ("gemini", {"api_version": 1}),
        ("openai_compatible", {"path": ["x"]}),
        ("cohere", {"repair": "no"}),
    ],
)
def test_an_option_of_the_wrong_kind_is_an_error(kind: str, options: dict[str, object]) -> None:
    """It would be overlooked otherwise."""
    with pytest.raises(ConfigurationError, match="options of type"):
        create_adapter(kind, AdapterConfig(options=options), name="mine")  # type: ignore[arg-type]


ASTRAY = [
    ("openai_compatible", None),
    ("openai_compatible", "GROQ_API_KEY"),
    ("openai_compatible", "MY_KEY"),
    ("openai_compatible", "ANTHROPIC_API_KEY"),
    ("openai_compatible", "AZURE_OPENAI_API_KEY"),
    ("openai", "GROQ_API_KEY"),
    ("openai", "AZURE_OPENAI_API_KEY"),
    ("anthropic", "OPENAI_API_KEY"),
    ("anthropic", "DEEPSEEK_API_KEY"),
    ("gemini", "OPENAI_API_KEY"),
    ("cohere", "VOYAGE_API_KEY"),
    ("voyage", "COHERE_API_KEY"),
]


@pytest.mark.parametrize(("kind", "variable"), ASTRAY)
def test_a_key_that_may_be_another_vendor_s_needs_an_address(kind: str, variable: str | None) -> None:
    """It would be sent to the vendor of the type; with an address it goes there."""
    config = AdapterConfig(api_key="sk-secret-0123456789", api_key_env=variable)
    with pytest.raises(ConfigurationError, match="give base_url") as raised:
        create_adapter(kind, config, name="mine")
    assert "sk-secret" not in str(raised.value)
    assert str(raised.value).startswith("mine: without base_url ")
    elsewhere = AdapterConfig(api_key="k", api_key_env=variable, base_url="https://x.test")
    assert create_adapter(kind, elsewhere, name="mine")


@pytest.mark.parametrize(
    ("kind", "variable"),
    [
        ("openai_compatible", "OPENAI_API_KEY"),
        ("openai_compatible", "MY_OPENAI_KEY"),
        ("openai", None),
        ("openai", "WORK_KEY"),
        ("anthropic", "CLAUDE_KEY_2"),
        ("gemini", "GOOGLE_API_KEY"),
        ("cohere", "CO_API_KEY"),
        ("tgi", "HF_TOKEN"),
        ("ollama", "OPENAI_API_KEY"),
    ],
)
def test_a_key_of_its_own_vendor_needs_none(kind: str, variable: str | None) -> None:
    """Nor does one for a server on this machine."""
    adapter = create_adapter(kind, AdapterConfig(api_key="a-secret-key", api_key_env=variable), name="mine")
    assert isinstance(adapter, HttpAdapter)
    assert adapter.base_url == adapter.wire.default_base_url


def test_a_key_in_a_header_needs_an_address_too() -> None:
    """It is a key all the same."""
    config = AdapterConfig(extra_headers={"authorization": "Bearer sk-secret-0123456789"})
    with pytest.raises(ConfigurationError, match="give base_url"):
        create_adapter("openai_compatible", config, name="mine")


@pytest.mark.anyio
@pytest.mark.parametrize("variable", ["GROQ_API_KEY", "OPENAI_API_KEY"])
async def test_models_yaml_tells_the_adapter_where_its_key_comes_from(tmp_path: Path, variable: str) -> None:
    """So that an adapter without an address is refused before its first request."""
    path = tmp_path / "models.yaml"
    path.write_text(
        f"adapters:\n  mine: {{type: openai_compatible, api_key_env: {variable}}}\n"
        "models:\n  mine:m: {adapter: mine, wire_name: m}\n"
    )
    registry = read_models_yaml(path, {variable: "sk-secret-0123456789"})
    config = registry.adapters["mine"].config
    assert (config.api_key, config.api_key_env) == ("sk-secret-0123456789", variable)
    if variable == "GROQ_API_KEY":
        async with Engine(models=registry, trace=False) as engine:
            with pytest.raises(ConfigurationError, match="give base_url"):
                await engine.session("mine:m").send("Hi")
