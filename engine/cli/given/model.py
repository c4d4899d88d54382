"""The model of who names none."""

from __future__ import annotations

from bus import ConfigurationError
from engine import ModelRegistry


def first_model(registry: ModelRegistry) -> str:
    """The default model, or else the first that could be called.

    Raises:
        ConfigurationError: None could.
    """
    if registry.default_model:
        return registry.default_model
    for model in registry.models.values():
        if model.kind == "chat" and registry.adapters[model.adapter].state == "configured":
            return model.aliases[0] if model.aliases else model.id
    raise ConfigurationError(f"{registry.source} lists no model that could be called; name one with --model")
