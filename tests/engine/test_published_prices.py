"""Whose published prices an adapter's models have."""

from __future__ import annotations

import pytest

from callboard import AdapterConfig, AdapterEntry, JsonObject, ModelEntry
from callboard.engine.models.registry import published_name


@pytest.mark.parametrize(
    ("name", "kind", "url", "options", "prices_as", "expected"),
    [
        ("anthropic", "anthropic", None, {}, None, None),
        ("work", "anthropic", None, {}, None, "anthropic:m"),
        ("work", "anthropic", None, {}, "azure", "azure:m"),
        ("work", "anthropic", "https://proxy.example/v1", {}, None, "anthropic:m"),
        ("work", "openai_compatible", "https://openrouter.ai/api/v1", {}, None, "openrouter:m"),
        ("work", "openai_compatible", "https://proxy.example", {"quirks": "groq"}, None, "groq:m"),
        ("work", "openai_compatible", "https://proxy.example", {}, None, None),
        ("box", "ollama", None, {}, None, "ollama:m"),
        ("box", "openai_compatible", "http://localhost:1234/v1", {}, None, "local:m"),
    ],
)
def test_it_is_the_setting_the_address_or_the_type(
    name: str, kind: str, url: str | None, options: JsonObject, prices_as: str | None, expected: str | None
) -> None:
    """In this order; a type that many servers share says nothing."""
    config = AdapterConfig(base_url=url, options=options)
    adapter = AdapterEntry(name=name, type=kind, config=config, prices_as=prices_as)
    assert published_name(adapter, ModelEntry(id="x:y", adapter=name, wire_name="m")) == expected


def test_a_vendors_model_behind_any_address_has_the_vendors_prices() -> None:
    """The trace keeps under which name; a model that no vendor's table has stays unpriced."""
    config = AdapterConfig(api_key="k", base_url="http://127.0.0.1:9/v1")
    gateway = AdapterEntry(name="gateway", type="openai_compatible", config=config)
    known = ModelEntry(id="gateway:gpt-5.2", adapter="gateway", wire_name="gpt-5.2")
    assert published_name(gateway, known) == "openai:gpt-5.2"
    assert published_name(gateway, ModelEntry(id="gateway:mine", adapter="gateway", wire_name="mine")) is None
