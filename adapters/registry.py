"""Adapters by the name of their type, as `type:` in models.yaml gives it. Imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from typing import TYPE_CHECKING, cast

from bus.clock import SYSTEM_CLOCK, Clock
from bus.errors import ConfigurationError

from .contract import AdapterConfig, ProviderAdapter
from .transport.transport import Transport

if TYPE_CHECKING:
    from .model_table import ModelRow, ModelTable

ADAPTER_TYPES: dict[str, str] = {
    "anthropic": ".providers.anthropic:AnthropicAdapter",
    "cassette": ".cassettes.adapter:cassette_adapter",
    "openai": ".providers.openai:OpenAIAdapter",
    "bedrock": ".providers.bedrock:BedrockAdapter",
    "cohere": ".providers.cohere:CohereAdapter",
    "gemini": ".providers.gemini:GeminiAdapter",
    "openai_compatible": ".providers.openai_compatible:OpenAICompatibleAdapter",
    "local": ".providers.local:LocalAdapter",
    "scripted": ".providers.scripted:ScriptedAdapter",
    "ollama": ".providers.ollama:OllamaAdapter",
    "voyage": ".providers.voyage:VoyageAdapter",
    "tgi": ".providers.tgi:TGIAdapter",
}
"""Registered types; any other is ``package.module:Class``."""


MODEL_TABLES: dict[str, str] = {
    "anthropic": ".providers.anthropic.data",
    "openai": ".providers.openai.data",
    "gemini": ".providers.gemini.data",
}
"""Of which providers there is a table of models, and the module that has it as `TABLE`, with its `find_model`."""


def registered_type(kind: type) -> str | None:
    """The name of the type whose class this is; None if it is not one of `ADAPTER_TYPES`."""
    for name, place in ADAPTER_TYPES.items():
        module, _, class_name = place.partition(":")
        if kind.__name__ == class_name and kind.__module__.startswith(resolve_name(module, __package__)):
            return name
    return None


def model_table(provider: str) -> ModelTable[ModelRow] | None:
    """What is known of a provider's models; None if there is no table of them."""
    module = MODEL_TABLES.get(provider)
    return None if module is None else cast("ModelTable[ModelRow]", import_module(module, __package__).TABLE)


def is_named_like(provider: str, model: str) -> bool:
    """Whether a name is of one of a provider's models, or is taken for one that is to come."""
    module = MODEL_TABLES.get(provider)
    return module is not None and import_module(module, __package__).find_model(model) is not None


def create_adapter(
    type_name: str,
    config: AdapterConfig,
    *,
    name: str,
    clock: Clock = SYSTEM_CLOCK,
    transport: Transport | None = None,
) -> ProviderAdapter:
    """Make an adapter of a type. It opens no connection yet.

    type_name: one of `ADAPTER_TYPES`, or ``package.module:Class``. name: of the provider, before the colon of a
    model's name. clock: of its times and its randomness. transport: replaces the network, for adapters over HTTP;
    others need not take it.
    Raises ConfigurationError if there is no such type, or it can't be imported or doesn't understand its options.
    """
    target = ADAPTER_TYPES.get(type_name, type_name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        known = ", ".join(sorted(ADAPTER_TYPES))
        raise ConfigurationError(f"adapter type {type_name!r} is neither one of {known} nor package.module:Class")
    try:
        factory = cast(
            "Callable[..., ProviderAdapter]", getattr(import_module(module_name, __package__), class_name)
        )
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"adapter type {type_name!r} can't be imported: {error}") from error
    if transport is None:
        return factory(config, name=name, clock=clock)
    return factory(config, name=name, clock=clock, transport=transport)
