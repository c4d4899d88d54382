"""A model for each streaming protocol, all of them on the reply server."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters import AdapterConfig
from callboard.engine import AdapterEntry, ModelEntry, ModelRegistry

PROTOCOLS = {"chat": "openai_compatible", "gemini": "gemini", "messages": "anthropic", "responses": "openai"}
"""The adapter's type for each adapter name here."""


def registry(url: str, headers: Mapping[str, str] | None = None) -> ModelRegistry:
    """An adapter and a model for each protocol, all on the reply server."""
    config = AdapterConfig(api_key="bench", base_url=url, extra_headers=dict(headers or {}))
    adapters = {name: AdapterEntry(name=name, type=kind, config=config) for name, kind in PROTOCOLS.items()}
    models = {
        f"{name}:bench": ModelEntry(id=f"{name}:bench", adapter=name, wire_name="bench", max_output_tokens=1000)
        for name in PROTOCOLS
    }
    return ModelRegistry(adapters, models)
