"""Where a registry comes from: a models.yaml, or the keys in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from callboard.adapters import AdapterConfig
from callboard.adapters.keys.addresses import address_variable
from callboard.adapters.provider import Preset, Provider, providers
from callboard.bus import ConfigurationError
from callboard.bus.log import Log
from callboard.bus.values.json import Json
from callboard.tracestore.home import home_folder

from ..keys.key_file import Variables, keys_file, read_keys, source_of
from .entries import AdapterEntry, ModelEntry
from .models_yaml import Reader
from .registry import ModelRegistry
from .yaml_text import read_yaml

_log = Log("engine.config")

FROM_ENVIRONMENT = "the environment (no models.yaml)"
"""`ModelRegistry.source` if nobody listed the adapters. They stand for all that could be configured."""


def key_variables() -> Mapping[str, str]:
    """The variables in which keys are looked for: the environment's, and then those of `callboard keys`.

    A file of keys that others may read is ignored with a warning.
    """
    stored = read_keys(keys_file())
    if stored.fault is not None:
        _log.warning("keys_ignored", file=str(stored.path), reason=stored.fault, fix=stored.fix)
    return Variables(os.environ, stored)


def load_registry(path: Path | None, environ: Mapping[str, str] | None = None) -> ModelRegistry:
    """The registry of a file, of $CALLBOARD_HOME/models.yaml, or, without such a file, of the keys that are set.

    Args:
        path: The file; None looks in $CALLBOARD_HOME, or ~/.callboard.
        environ: The variables in which keys are found. None is the environment, and behind it the keys that
            `callboard keys` keeps.

    Raises:
        ConfigurationError: The file is wrong. The text names the file and the key, and says what was expected.
    """
    environ = key_variables() if environ is None else environ
    if path is not None:
        return read_models_yaml(path, environ)
    default = home_folder() / "models.yaml"
    return read_models_yaml(default, environ) if default.exists() else registry_from_env(environ)


def registry_from_env(environ: Mapping[str, str]) -> ModelRegistry:
    """The providers whose keys are set, the expected providers, and the model on this machine, which needs no key.

    A provider's descriptor names the variables of its key and its address. The default provider is the first that
    has a key and holds conversations.
    """
    adapters: dict[str, AdapterEntry] = {}
    models: dict[str, ModelEntry] = {}
    default: str | None = None
    for provider in providers():
        entry = _with_key(provider, environ)
        if entry is not None:
            adapters[entry.name] = entry
            if default is None and entry.missing_key is None and "chat" in provider.kinds:
                default = entry.name
    for provider in providers():
        for preset in provider.presets:
            config = AdapterConfig(options=preset.options)
            adapters[preset.name] = AdapterEntry(name=preset.name, type=provider.name, config=config, offered=True)
            model = _of_preset(preset)
            models[model.id] = model
    return ModelRegistry(adapters, models, default_provider=default, source=FROM_ENVIRONMENT)


def _with_key(provider: Provider, environ: Mapping[str, str]) -> AdapterEntry | None:
    """A provider's adapter with the key of the environment; None for an unexpected provider without a key."""
    variable = next((name for name in provider.key_variables if environ.get(name)), None)
    if variable is None and not provider.expected:
        return None
    address_from = address_variable(provider.name, variable, environ)
    url = None if address_from is None else environ[address_from]
    options: dict[str, Json] = {"find_protocol": True} if provider.name == "openai" and url is not None else {}
    return AdapterEntry(
        name=provider.name,
        type=provider.name,
        config=AdapterConfig(api_key=environ[variable] if variable else None, base_url=url, options=options),
        missing_key=None if variable else provider.key_variables[0],
        key_from=source_of(environ, variable) if variable else None,
        address_from=address_from,
        offered=True,
    )


def _of_preset(preset: Preset) -> ModelEntry:
    return ModelEntry(
        id=f"{preset.name}:{preset.model}",
        adapter=preset.name,
        wire_name=preset.model,
        aliases=(preset.name,),
        kind=preset.kind,
    )


def read_models_yaml(path: Path, environ: Mapping[str, str] | None = None) -> ModelRegistry:
    """The registry of one models.yaml and, unless it says `only: true`, of the environment.

    See `load_registry`. An adapter, a model or an alias of the file replaces one of the environment. Without a
    `default_provider` the environment's holds.

    Raises:
        ConfigurationError: The file is wrong.
    """
    environ = key_variables() if environ is None else environ
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return Reader(path, environ, registry_from_env(environ)).registry(read_yaml(text, str(path)))
