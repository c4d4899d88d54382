"""models.yaml: read, checked and turned into a ModelRegistry. Every complaint names file, key and expectation."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn, cast

from adapters import AdapterConfig
from bus import ConfigurationError
from bus.json_types import Json, JsonObject
from bus.log import Log

from .choice import CAPABILITY_FLAGS, CAPABILITY_LIMITS
from .registry import AdapterEntry, ModelDefaults, ModelEntry, ModelRegistry

_log = Log("engine.config")

_ADAPTER_KEYS = {
    "type",
    "api_key",
    "api_key_env",
    "base_url",
    "timeout_seconds",
    "max_retries",
    "max_concurrency",
    "drain_for_usage",
    "connect_timeout",
    "first_event_timeout",
    "stream_read_timeout",
    "extra_headers",
    "options",
}
_MODEL_KEYS = {
    "adapter",
    "wire_name",
    "tier",
    "can_delegate",
    "aliases",
    "max_output_tokens",
    "fallback",
    "capabilities",
    "defaults",
}
_DEFAULT_KEYS = {"max_output_tokens", "temperature", "effort"}
_TOP_KEYS = {"adapters", "models", "default_model"}

FROM_ENVIRONMENT = "the environment (no models.yaml)"
"""`ModelRegistry.source` where nobody listed the adapters: they stand for what could be configured."""

LOCAL_PROTOCOLS = ("chat", "messages", "responses")


def home_folder() -> Path:
    """Where configuration and the default trace file live: CALLBOARD_HOME, else ~/.callboard."""
    home = os.environ.get("CALLBOARD_HOME")
    return Path(home) if home else Path.home() / ".callboard"


def load_registry(path: Path | None, environ: Mapping[str, str] = os.environ) -> ModelRegistry:
    """The registry of a file; of $CALLBOARD_HOME/models.yaml; or, if there is none, of the keys that are set.

    Raises ConfigurationError.
    """
    if path is not None:
        return read_models_yaml(path, environ)
    default = home_folder() / "models.yaml"
    return read_models_yaml(default, environ) if default.exists() else registry_from_env(environ)


def registry_from_env(environ: Mapping[str, str] = os.environ) -> ModelRegistry:
    """Anthropic, OpenAI and Gemini if their keys are set, and the local model over its three protocols.

    Gemini's key may also be called GOOGLE_API_KEY.
    """
    adapters: dict[str, AdapterEntry] = {}
    for name, variable in (("anthropic", "ANTHROPIC"), ("openai", "OPENAI"), ("gemini", "GEMINI")):
        key = environ.get(f"{variable}_API_KEY")
        if not key and name == "gemini":
            key = environ.get("GOOGLE_API_KEY")
        config = AdapterConfig(api_key=key, base_url=environ.get(f"{variable}_BASE_URL"))
        missing = None if key else f"{variable}_API_KEY"
        adapters[name] = AdapterEntry(name=name, type=name, config=config, missing_key=missing)
    models: dict[str, ModelEntry] = {}
    for protocol in LOCAL_PROTOCOLS:
        name = f"local-{protocol}"
        options: dict[str, Json] = {"protocol": protocol}
        adapters[name] = AdapterEntry(name=name, type="local", config=AdapterConfig(options=options))
        model = ModelEntry(id=f"{name}:smollm2", adapter=name, wire_name="smollm2", aliases=(name,))
        models[model.id] = model
    return ModelRegistry(adapters, models, source=FROM_ENVIRONMENT)


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
        return _Reader(path, environ).registry(document)
    # out here and without its cause, which quotes the line, and with it perhaps a key
    raise ConfigurationError(f"{path}: is no YAML: {fault}")


def _describe_fault(error: Exception) -> str:
    """What is wrong with the YAML, and where, without a word of its text."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {said}" if mark is not None else str(said)


class _Reader:
    """Walks the document with the key path in hand, so that each error can name it."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self.environ = environ

    def registry(self, document: object) -> ModelRegistry:
        top = self._mapping(document if document is not None else {}, "the file")
        self._known(top, _TOP_KEYS, "")
        adapters = self._mapping(top.get("adapters") or {}, "adapters")
        models = self._mapping(top.get("models") or {}, "models")
        return ModelRegistry(
            {name: self._adapter(name, entry) for name, entry in adapters.items()},
            {name: self._model(name, entry) for name, entry in models.items()},
            default_model=self._string(top, "default_model", ""),
            source=str(self.path),
        )

    def _adapter(self, name: str, value: Json) -> AdapterEntry:
        where = f"adapters.{name}"
        entry = self._mapping(value, where)
        self._known(entry, _ADAPTER_KEYS, where)
        kind = self._string(entry, "type", where)
        if kind is None:
            self._fail(f"{where}.type", "an adapter type such as anthropic", None)
        key, missing = self._key(entry, where)
        config = AdapterConfig(
            api_key=key,
            base_url=self._string(entry, "base_url", where),
            timeout_seconds=self._number(entry, "timeout_seconds", where, 600.0),
            max_retries=int(self._number(entry, "max_retries", where, 2)),
            extra_headers=self._strings(entry, "extra_headers", where),
            options=self._mapping(entry.get("options") or {}, f"{where}.options"),
            connect_timeout=self._number(entry, "connect_timeout", where, 10.0),
            first_event_timeout=self._number(entry, "first_event_timeout", where, 120.0),
            stream_read_timeout=self._number(entry, "stream_read_timeout", where, 120.0),
            drain_for_usage=self._number(entry, "drain_for_usage", where, 0.0),
        )
        slots = int(self._number(entry, "max_concurrency", where, 0))
        return AdapterEntry(
            name=name, type=kind, config=config, missing_key=missing, max_concurrency=slots or None
        )

    def _key(self, entry: JsonObject, where: str) -> tuple[str | None, str | None]:
        """The adapter's key, and the variable that should hold it and doesn't."""
        direct = self._string(entry, "api_key", where)
        if direct is not None:
            _log.warning("api_key_in_file", file=str(self.path), key=f"{where}.api_key", better="api_key_env")
            if self.path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                _log.warning("api_key_file_readable_by_others", file=str(self.path), fix="chmod 600")
            return direct, None
        variable = self._string(entry, "api_key_env", where)
        if variable is None:
            return None, None
        key = self.environ.get(variable)
        return (key, None) if key else (None, variable)

    def _model(self, name: str, value: Json) -> ModelEntry:
        where = f"models.{name}"
        entry = self._mapping(value, where)
        self._known(entry, _MODEL_KEYS, where)
        adapter = self._string(entry, "adapter", where)
        if adapter is None:
            self._fail(f"{where}.adapter", "the name of one of adapters", None)
        limit = self._number(entry, "max_output_tokens", where, 0)
        return ModelEntry(
            id=name,
            adapter=adapter,
            wire_name=self._string(entry, "wire_name", where) or name.partition(":")[2] or name,
            tier=self._string(entry, "tier", where),
            can_delegate=self._boolean(entry, "can_delegate", where),
            aliases=self._names(entry, "aliases", where),
            max_output_tokens=int(limit) or None,
            fallback=self._names(entry, "fallback", where),
            capabilities=self._capabilities(entry, where),
            defaults=self._defaults(entry, where),
        )

    def _capabilities(self, entry: JsonObject, where: str) -> dict[str, bool | int]:
        where = f"{where}.capabilities"
        given = self._mapping(entry.get("capabilities") or {}, where)
        self._known(given, CAPABILITY_FLAGS | CAPABILITY_LIMITS, where)
        overrides: dict[str, bool | int] = {}
        for key in given:
            if key in CAPABILITY_FLAGS:
                overrides[key] = self._boolean(given, key, where)
            else:
                overrides[key] = int(self._number(given, key, where, 0))
        return overrides

    def _defaults(self, entry: JsonObject, where: str) -> ModelDefaults:
        where = f"{where}.defaults"
        given = self._mapping(entry.get("defaults") or {}, where)
        self._known(given, _DEFAULT_KEYS, where)
        limit = self._number(given, "max_output_tokens", where, 0)
        return ModelDefaults(
            max_output_tokens=int(limit) or None,
            temperature=self._number(given, "temperature", where, 0) if "temperature" in given else None,
            effort=self._string(given, "effort", where),
        )

    def _names(self, entry: JsonObject, key: str, where: str) -> tuple[str, ...]:
        names = entry.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._fail(f"{where}.{key}", "a list of names", names)
        return tuple(cast("list[str]", names))

    def _mapping(self, value: object, where: str) -> JsonObject:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self._fail(where, "a mapping of names", value)
        return value

    def _string(self, entry: JsonObject, key: str, where: str) -> str | None:
        value = entry.get(key)
        if value is not None and not isinstance(value, str):
            self._fail(f"{where}.{key}".lstrip("."), "a string", value)
        return value

    def _number(self, entry: JsonObject, key: str, where: str, default: float) -> float:
        value = entry.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            self._fail(f"{where}.{key}", "a number, not negative", value)
        return value

    def _boolean(self, entry: JsonObject, key: str, where: str) -> bool:
        value = entry.get(key, False)
        if not isinstance(value, bool):
            self._fail(f"{where}.{key}", "true or false", value)
        return value

    def _strings(self, entry: JsonObject, key: str, where: str) -> dict[str, str]:
        value = self._mapping(entry.get(key) or {}, f"{where}.{key}")
        for name, text in value.items():
            if not isinstance(text, str):
                self._fail(f"{where}.{key}.{name}", "a string", text)
        return cast("dict[str, str]", value)

    def _known(self, entry: JsonObject, known: Collection[str], where: str) -> None:
        for key in entry:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                place = f"{where}.{key}".lstrip(".")
                raise ConfigurationError(
                    f"{self.path}: {place}: unknown key{hint} Expected one of {', '.join(sorted(known))}."
                )

    def _fail(self, where: str, expected: str, found: object) -> NoReturn:
        shown = "nothing" if found is None else f"{type(found).__name__} {found!r}"[:80]
        raise ConfigurationError(f"{self.path}: {where}: expected {expected}, found {shown}")
