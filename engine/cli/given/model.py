"""The model of who names none."""

from __future__ import annotations

import os
import sys

from callboard.bus import ConfigurationError
from callboard.engine import ModelRegistry, get_latest_model
from callboard.engine.models.config import FROM_ENVIRONMENT

from ..common.harmless import note

VARIABLE = "CALLBOARD_MODEL"
"""The environment variable that names a model for those who name none with ``-m``."""


def first_model(registry: ModelRegistry) -> str:
    """The model of $CALLBOARD_MODEL, else the default one, else the first that could be called.

    Without a models.yaml that is the latest model of the provider whose key is set. At a terminal it is named,
    because nobody has chosen it.

    Raises:
        ConfigurationError: None could be called.
    """
    chosen = os.environ.get(VARIABLE) or registry.default_model
    if chosen:
        return chosen
    if registry.source == FROM_ENVIRONMENT and registry.default_provider is not None:
        latest = get_latest_model(registry.default_provider)
        if latest is not None:
            model = f"{registry.default_provider}:{latest.id}"
            if sys.stderr.isatty():
                note(f"({model}; -m names another model, {VARIABLE} another one for always)")
            return model
    for entry in registry.models.values():
        if entry.kind == "chat" and registry.adapters[entry.adapter].state == "configured":
            return entry.aliases[0] if entry.aliases else entry.id
    raise ConfigurationError(f"{registry.source} lists no model that could be called; name one with --model")
