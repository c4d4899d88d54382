"""Reads models.yaml into a registry, and checks each key. Every error names the file, the key and the expected
value.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast, get_args

import msgspec

from callboard.adapters import AdapterConfig, KeyFile, KeySource, RetryPolicy
from callboard.adapters.keys import address_variable
from callboard.adapters.provider import adapter_types, is_adapter_type
from callboard.bus import ConfigurationError
from callboard.bus.log import Log, warn_of_old_name
from callboard.bus.values.base import Json, JsonObject

from ..keys import source_of
from ..routing.model_choice import CAPABILITY_FLAGS, CAPABILITY_LIMITS
from .catalogue import nearest
from .entries import AdapterEntry, ModelDefaults, ModelEntry, ModelKind, ToolSettings
from .registry import ModelRegistry

if TYPE_CHECKING:
    import yaml


_log = Log("engine.config")

_SHARED_KEYS = ("capabilities", "defaults", "prompt_addendum", "retry", "tools")
"""The keys that can be set for an adapter, for all its models, and for a model."""

_ADAPTER_KEYS = {
    "type", "api_key", "api_key_env", "api_key_file", "keys", "key_pool", "base_url", "timeout", "max_retries",
    "max_concurrency", "requests_per_minute", "tokens_per_minute", "max_wait_seconds", "drain_for_usage",
    "connect_timeout", "first_event_timeout", "stream_read_timeout", "extra_headers", "options", "prices_as",
    *_SHARED_KEYS,
}  # fmt: skip
_KEY_KEYS = {"api_key", "api_key_env", "api_key_file"}
_MODEL_KEYS = {
    "adapter", "wire_name", "tier", "can_delegate", "aliases", "max_output_tokens", "max_retries", "retry_empty",
    "fallback", "kind", "embedding_space", *_SHARED_KEYS,
}  # fmt: skip
_DEFAULT_KEYS = {"max_output_tokens", "temperature", "effort"}
_TOOL_KEYS = {"strict", "max", "core", "parallel", "force_first_turn"}
_TOP_KEYS = {"adapters", "models", "default_model", "default_provider", "gateway", "only"}
_GATEWAY_KEYS = {"names"}


class Reader:
    """Reads the document and keeps track of the key path, so that each error names the path."""

    def __init__(self, path: Path, environ: Mapping[str, str], offered: ModelRegistry) -> None:
        self.path = path
        self.environ = environ
        self.offered = offered

    def registry(self, document: object) -> ModelRegistry:
        top = self._mapping(document if document is not None else {}, "the file")
        self._check_keys(top, _TOP_KEYS, "")
        adapter_entries = self._mapping(top.get("adapters") or {}, "adapters")
        models = self._mapping(top.get("models") or {}, "models")
        default_provider = self._string(top, "default_provider", "")
        configured = {name: self._adapter(name, entry) for name, entry in adapter_entries.items()}
        if self._boolean(top, "only", ""):
            adapters = configured
            offered: dict[str, ModelEntry] = {}
        else:
            usable = {name: each for name, each in self.offered.adapters.items() if each.missing_key is None}
            adapters = {**configured, **{name: each for name, each in usable.items() if name not in configured}}
            offered = {name: each for name, each in self.offered.models.items() if each.adapter not in configured}
            default_provider = default_provider or self.offered.default_provider
        listed = {name: self._model(name, entry, adapters) for name, entry in models.items()}
        taken_names = {*listed, *(alias for each in listed.values() for alias in each.aliases)}
        return ModelRegistry(
            adapters,
            {
                **listed,
                **{name: each for name, each in offered.items() if not taken_names & {name, *each.aliases}},
            },
            default_model=self._string(top, "default_model", ""),
            default_provider=default_provider,
            source=str(self.path),
            client_names=self._client_names(top),
        )

    def _client_names(self, top: JsonObject) -> dict[str, tuple[str, ...]]:
        """The names for clients of a gateway, each with the models that serve it."""
        section = self._section(top.get("gateway") or {}, _GATEWAY_KEYS, "gateway")
        names: dict[str, tuple[str, ...]] = {}
        for name, value in self._mapping(section.get("names") or {}, "gateway.names").items():
            models = value if isinstance(value, list) else [value]
            if not models or not all(isinstance(model, str) and model for model in models):
                self._fail(f"gateway.names.{name}", "the name of a model, or a list of names", value)
            names[name] = tuple(cast("list[str]", models))
        return names

    def _adapter(self, name: str, value: Json) -> AdapterEntry:
        where = f"adapters.{name}"
        entry = self._section(value, _ADAPTER_KEYS | {"timeout_seconds"}, where)
        if "timeout_seconds" in entry:
            warn_of_old_name(f"{where}.timeout_seconds is deprecated: use {where}.timeout")
            entry = {"timeout": entry["timeout_seconds"], **entry}
        kind = self._string(entry, "type", where)
        if kind is None:
            self._fail(f"{where}.type", "an adapter type such as anthropic", None)
        if not is_adapter_type(kind):
            near = nearest(kind, adapter_types())
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(adapter_types())}."
            raise ConfigurationError(
                f"{self.path}: {where}.type: unknown adapter type {kind!r}: {hint} For your own adapter, "
                f"use package.module:Class."
            )
        key, missing = self._key(entry, where)
        key_from = None if key is None else self._key_from(entry, where)
        base_url, address_from = self._address(entry, kind, where)
        found: JsonObject = {"find_protocol": True} if kind == "openai" and address_from is not None else {}
        config = AdapterConfig(
            api_key=key,
            base_url=base_url,
            timeout_seconds=self._number(entry, "timeout", where, 600.0),
            max_retries=int(self._number(entry, "max_retries", where, 2)),
            extra_headers=self._strings(entry, "extra_headers", where),
            options={**found, **self._mapping(entry.get("options") or {}, f"{where}.options")},
            connect_timeout=self._number(entry, "connect_timeout", where, 10.0),
            first_event_timeout=self._number(entry, "first_event_timeout", where, 120.0),
            stream_read_timeout=self._number(entry, "stream_read_timeout", where, 120.0),
            drain_for_usage=self._number(entry, "drain_for_usage", where, 0.0),
            api_key_env=self._string(entry, "api_key_env", where),
            retry=self._retry(entry, where, RetryPolicy()),
            keys=self._named_keys(entry, where),
            key_pool=self._pool(entry, where),
            requests_per_minute=self._rate(entry, "requests_per_minute", where),
            tokens_per_minute=self._rate(entry, "tokens_per_minute", where),
            max_wait_seconds=self._number(entry, "max_wait_seconds", where, 0)
            if "max_wait_seconds" in entry
            else None,
        )
        slots = int(self._number(entry, "max_concurrency", where, 0))
        return AdapterEntry(
            name=name,
            type=kind,
            config=config,
            prices_as=self._string(entry, "prices_as", where),
            missing_key=missing,
            key_from=key_from,
            address_from=address_from,
            max_concurrency=slots or None,
            capabilities=self._capabilities(entry, where),
            defaults=self._defaults(entry, where),
            tools=self._tools(entry, where),
            prompt_addendum=self._string(entry, "prompt_addendum", where),
        )

    def _address(self, entry: JsonObject, kind: str, where: str) -> tuple[str | None, str | None]:
        """The adapter's address, and the environment variable that contains it, if any."""
        stated = self._string(entry, "base_url", where)
        if stated is not None:
            return stated, None
        variable = address_variable(kind, self._string(entry, "api_key_env", where), self.environ)
        return None if variable is None else self.environ[variable], variable

    def _key(self, entry: JsonObject, where: str) -> tuple[str | KeySource | None, str | None]:
        """The adapter's key; if its variable is not set, the name of the variable instead."""
        direct = self._string(entry, "api_key", where)
        if direct is not None:
            _log.warning("api_key_in_file", file=str(self.path), key=f"{where}.api_key", better="api_key_env")
            if self.path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                _log.warning("api_key_file_readable_by_others", file=str(self.path), fix="chmod 600")
            return direct, None
        file = self._string(entry, "api_key_file", where)
        if file is not None:
            return KeyFile(str(self.path.parent / Path(file).expanduser())), None
        variable = self._string(entry, "api_key_env", where)
        if variable is None:
            return None, None
        key = self.environ.get(variable)
        return (key, None) if key else (None, variable)

    def _key_from(self, entry: JsonObject, where: str) -> str:
        """The source of the key that `_key` found, as text."""
        if "api_key" in entry:
            return f"api_key in {self.path}"
        if "api_key_file" in entry:
            return f"api_key_file in {self.path}"
        return source_of(self.environ, self._string(entry, "api_key_env", where) or "")

    def _named_keys(self, entry: JsonObject, where: str) -> dict[str, str | KeySource]:
        keys: dict[str, str | KeySource] = {}
        for name, value in self._mapping(entry.get("keys") or {}, f"{where}.keys").items():
            place = f"{where}.keys.{name}"
            if not isinstance(value, dict):  # The value may be the key, so the error must not quote it.
                raise ConfigurationError(
                    f"{self.path}: {place}: expected a mapping with api_key_env or api_key_file"
                )
            fields = self._section(value, _KEY_KEYS, place)
            key, missing = self._key(fields, place)
            if key is None:
                source = (
                    (f"the environment variable {missing} is not set")
                    if missing
                    else "set api_key_env or api_key_file"
                )
                raise ConfigurationError(f"{self.path}: {place}: no key: {source}")
            keys[name] = key
        return keys

    def _pool(self, entry: JsonObject, where: str) -> tuple[str, ...]:
        names = self._names(entry, "key_pool", where)
        keys = self._mapping(entry.get("keys") or {}, f"{where}.keys")
        for name in names:
            if name not in keys:
                self._fail(f"{where}.key_pool", f"names of {where}.keys", name)
        return names

    def _model(self, name: str, value: Json, adapters: Mapping[str, AdapterEntry]) -> ModelEntry:
        where = f"models.{name}"
        entry = self._section(value, _MODEL_KEYS, where)
        adapter = self._string(entry, "adapter", where)
        if adapter is None:
            self._fail(f"{where}.adapter", "the name of one of adapters", None)
        limit = self._number(entry, "max_output_tokens", where, 0)
        policy = adapters[adapter].config.retry if adapter in adapters else RetryPolicy()
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
            tools=self._tools(entry, where),
            prompt_addendum=self._string(entry, "prompt_addendum", where),
            max_retries=int(self._number(entry, "max_retries", where, 0)) if "max_retries" in entry else None,
            retry=self._retry(entry, where, policy) if "retry" in entry else None,
            retry_empty=int(self._number(entry, "retry_empty", where, 0)) if "retry_empty" in entry else None,
            kind=self._kind(entry, where),
            embedding_space=self._string(entry, "embedding_space", where),
        )

    def _kind(self, entry: JsonObject, where: str) -> ModelKind:
        kind = self._string(entry, "kind", where)
        if kind is not None and kind not in get_args(ModelKind):
            self._fail(f"{where}.kind", "chat, embedding, image or video", kind)
        return cast("ModelKind", "chat" if kind is None else kind)

    def _capabilities(self, entry: JsonObject, where: str) -> dict[str, bool | int]:
        where = f"{where}.capabilities"
        fields = self._section(entry.get("capabilities") or {}, CAPABILITY_FLAGS | CAPABILITY_LIMITS, where)
        overrides: dict[str, bool | int] = {}
        for key in fields:
            if key in CAPABILITY_FLAGS:
                overrides[key] = self._boolean(fields, key, where)
            else:
                overrides[key] = int(self._number(fields, key, where, 0))
        return overrides

    def _defaults(self, entry: JsonObject, where: str) -> ModelDefaults:
        where = f"{where}.defaults"
        fields = self._section(entry.get("defaults") or {}, _DEFAULT_KEYS, where)
        limit = self._number(fields, "max_output_tokens", where, 0)
        return ModelDefaults(
            max_output_tokens=int(limit) or None,
            temperature=self._number(fields, "temperature", where, 0) if "temperature" in fields else None,
            effort=self._string(fields, "effort", where),
        )

    def _tools(self, entry: JsonObject, where: str) -> ToolSettings:
        where = f"{where}.tools"
        fields = self._section(entry.get("tools") or {}, _TOOL_KEYS, where)
        limit, core = fields.get("max"), self._names(fields, "core", where)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            self._fail(f"{where}.max", "a whole number, at least 1", limit)
        if limit is not None and len(core) > limit:
            self._fail(f"{where}.core", f"at most {limit} names (see {where}.max)", core)
        flags = {name: self._boolean(fields, name, where) for name in fields if name not in ("max", "core")}
        return ToolSettings(max=limit, core=core or None, **flags)

    def _retry(self, entry: JsonObject, where: str, policy: RetryPolicy) -> RetryPolicy:
        where = f"{where}.retry"
        fields = self._section(
            entry.get("retry") or {}, [name for name in RetryPolicy.__struct_fields__ if name != "on_retry"], where
        )
        settings: dict[str, bool | float] = {}
        for key in fields:
            flag = isinstance(getattr(policy, key), bool)
            settings[key] = self._boolean(fields, key, where) if flag else self._number(fields, key, where, 0)
        return msgspec.structs.replace(policy, **settings)

    def _names(self, entry: JsonObject, key: str, where: str) -> tuple[str, ...]:
        names = entry.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._fail(f"{where}.{key}", "a list of names", names)
        return tuple(cast("list[str]", names))

    def _section(self, value: object, keys: Collection[str], where: str) -> JsonObject:
        """Check that a value is a mapping with known keys only."""
        section = self._mapping(value, where)
        self._check_keys(section, keys, where)
        return section

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
            self._fail(f"{where}.{key}", "a number of at least 0", value)
        return value

    def _rate(self, entry: JsonObject, key: str, where: str) -> int | None:
        """A limit per minute; None if there is none."""
        value = entry.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            self._fail(f"{where}.{key}", "a whole number, at least 1", value)
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

    def _check_keys(self, entry: JsonObject, keys: Collection[str], where: str) -> None:
        for key in entry:
            if key not in keys:
                near = nearest(key, keys)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                place = f"{where}.{key}".lstrip(".")
                raise ConfigurationError(
                    f"{self.path}: {place}: unknown key{hint} Expected one of {', '.join(sorted(keys))}."
                )

    def _fail(self, where: str, expected: str, found: object) -> NoReturn:
        shown = "nothing" if found is None else f"{type(found).__name__} {found!r}"[:80]
        raise ConfigurationError(f"{self.path}: {where}: expected {expected}, found {shown}")


# --- Parsing and writing YAML ---


def read_yaml(text: str, source: str) -> object:
    """The value of a YAML text; None for an empty text."""
    import yaml

    try:
        found: object = yaml.safe_load(text)
        return found
    except yaml.YAMLError as error:
        fault = _describe_fault(error)
    # raised outside of `except`, because the cause quotes the line
    raise ConfigurationError(f"{source}: is not valid YAML: {fault}")


def _describe_fault(error: Exception) -> str:
    """The problem in the YAML and its position, without quoting the YAML."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark is not None else str(problem)


def write_yaml(value: Mapping[str, object]) -> str:
    """Format a mapping as YAML, in its order. A text of several lines is written as readable lines."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(str, _text)
    written: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)
