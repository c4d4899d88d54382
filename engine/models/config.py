"""Where the registry comes from: a models.yaml, or the keys in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from adapters import AdapterConfig
from bus import ConfigurationError
from bus.values.json import Json

from ..home import home_folder
from .entries import AdapterEntry, ModelEntry
from .reader import Reader
from .registry import ModelRegistry

FROM_ENVIRONMENT = "the environment (no models.yaml)"
"""`ModelRegistry.source` where nobody listed the adapters: they stand for what could be configured."""

LOCAL_PROTOCOLS = ("chat", "messages", "responses")
LOCAL_EMBEDDINGS = "local-embed"


def load_registry(path: Path | None, environ: Mapping[str, str] = os.environ) -> ModelRegistry:
    """The registry of a file; of $CALLBOARD_HOME/models.yaml; or, if there is none, of the keys that are set.

    path: of the file; None looks in $CALLBOARD_HOME, or ~/.callboard. environ: where keys are found.
    Raises ConfigurationError, naming the file, the key and what was expected.
    """
    if path is not None:
        return read_models_yaml(path, environ)
    default = home_folder() / "models.yaml"
    return read_models_yaml(default, environ) if default.exists() else registry_from_env(environ)


def registry_from_env(environ: Mapping[str, str] = os.environ) -> ModelRegistry:
    """Anthropic, OpenAI and Gemini if their keys are set, and the local model over its three protocols.

    Gemini's key may also be called GOOGLE_API_KEY. The default provider is the first that has a key. To embed
    there is the local model as well, and Voyage and Cohere if their keys are set.
    """
    adapters: dict[str, AdapterEntry] = {}
    for name, variable in (("openai", "OPENAI"), ("anthropic", "ANTHROPIC"), ("gemini", "GEMINI")):
        key = environ.get(f"{variable}_API_KEY")
        if not key and name == "gemini":
            key = environ.get("GOOGLE_API_KEY")
        config = AdapterConfig(api_key=key, base_url=environ.get(f"{variable}_BASE_URL"))
        missing = None if key else f"{variable}_API_KEY"
        adapters[name] = AdapterEntry(name=name, type=name, config=config, missing_key=missing)
    default = next((name for name, entry in adapters.items() if entry.missing_key is None), None)
    for name in ("voyage", "cohere"):  # which most have no use for, so they are not listed as missing
        if key := environ.get(f"{name.upper()}_API_KEY"):
            adapters[name] = AdapterEntry(name=name, type=name, config=AdapterConfig(api_key=key))
    models: dict[str, ModelEntry] = {}
    for protocol in LOCAL_PROTOCOLS:
        name = f"local-{protocol}"
        options: dict[str, Json] = {"protocol": protocol}
        adapters[name] = AdapterEntry(name=name, type="local", config=AdapterConfig(options=options))
        model = ModelEntry(id=f"{name}:smollm2", adapter=name, wire_name="smollm2", aliases=(name,))
        models[model.id] = model
    config = AdapterConfig(options={"embeddings": "mean", "context_tokens": 2048, "slots": 2})
    adapters[LOCAL_EMBEDDINGS] = AdapterEntry(name=LOCAL_EMBEDDINGS, type="local", config=config)
    model = ModelEntry(
        id=f"{LOCAL_EMBEDDINGS}:smollm2",
        adapter=LOCAL_EMBEDDINGS,
        wire_name="smollm2",
        aliases=(LOCAL_EMBEDDINGS,),
        kind="embedding",
    )
    models[model.id] = model
    return ModelRegistry(adapters, models, default_provider=default, source=FROM_ENVIRONMENT)


def read_models_yaml(path: Path, environ: Mapping[str, str] = os.environ) -> ModelRegistry:
    """Read one models.yaml. Raises ConfigurationError."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        fault = _describe_fault(error)
    else:
        return Reader(path, environ).registry(document)
    # out here and without its cause, which quotes the line, and with it perhaps a key
    raise ConfigurationError(f"{path}: is no YAML: {fault}")


def _describe_fault(error: Exception) -> str:
    """What is wrong with the YAML, and where, without a word of its text."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {said}" if mark is not None else str(said)
