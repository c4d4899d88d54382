"""Whose published prices an adapter's models have."""

from __future__ import annotations

import pytest

from callboard import AdapterConfig, AdapterEntry, JsonObject, ModelEntry
from callboard.engine.models.published_prices import published_name


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
