"""The models beyond the shipped tables: a file that `callboard models update` downloads.

The file is made from the list of models that LiteLLM publishes (MIT). It has the limits and abilities of each
model. The adapters' own tables take precedence over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from callboard.adapters.provider import vendors
from callboard.bus import ConfigurationError
from callboard.bus.values.base import Json, JsonObject

FILE_NAME = "known-models.json"
FORMAT = 1
MOST_BYTES = 64_000_000

_CHATS = ("chat", "responses")
_CAPABILITIES: Mapping[str, str] = {
    "tools": "supports_function_calling",
    "vision": "supports_vision",
    "reasoning": "supports_reasoning",
    "structured": "supports_response_schema",
}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class KnownModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model of the file. None is not known."""

    id: str
    """``provider:name``, with the provider's name in price tables."""
    context_window: int | None = None
    """The largest number of input tokens."""
    max_output: int | None = None
    """The largest number of output tokens."""
    tools: bool | None = None
    """Whether it calls tools."""
    vision: bool | None = None
    """Whether it reads images."""
    reasoning: bool | None = None
    structured: bool | None = None
    """Whether it follows a schema."""
    retires: str | None = None
    """The day from which on it is gone, as YYYY-MM-DD."""


class KnownModels(msgspec.Struct, frozen=True, kw_only=True):
    """A file of known models."""

    kind: Literal["known-models"]
    """A mark that identifies the file format."""
    format: int
    """The version of the file's form."""
    date: str
    """The day of the list, as YYYY-MM-DD."""
    source: str
    """The origin of the list."""
    models: tuple[KnownModel, ...]


NOTHING = KnownModels(kind="known-models", format=FORMAT, date="", source="", models=())


def known_models(home: Path) -> KnownModels:
    """The known models of a folder; none if it has no such file."""
    path = home / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    return decode(data, str(path))


def decode(data: bytes, source: str) -> KnownModels:
    """The contents of such a file."""
    try:
        found = msgspec.json.decode(data, type=KnownModels)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigurationError(f"{source}: not a list of known models: {error}") from error
    if found.format != FORMAT:
        raise ConfigurationError(f"{source}: format {found.format}; this version reads {FORMAT}")
    return found


def encode(known: KnownModels) -> bytes:
    """The bytes of such a file."""
    return msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n"


def convert(data: Json, *, source: str, day: str) -> KnownModels:
    """LiteLLM's list in our form."""
    if not isinstance(data, dict):
        raise ConfigurationError(f"{source}: expected LiteLLM's object of models")
    names = {theirs: vendor.name for vendor in vendors() for theirs in vendor.litellm}
    models = {model.id: model for model in _models(data, names)}
    if not models:
        raise ConfigurationError(f"{source}: it has no model in a known format")
    ordered = tuple(models[name] for name in sorted(models))
    return KnownModels(kind="known-models", format=FORMAT, date=day, source=source, models=ordered)


def _models(data: JsonObject, names: Mapping[str, str]) -> Iterator[KnownModel]:
    """The models that hold conversations. `names` has our names of vendors by LiteLLM's."""
    for name, facts in data.items():
        if isinstance(facts, dict) and facts.get("mode") in _CHATS:
            provider = facts.get("litellm_provider")
            if isinstance(provider, str) and provider:
                yield _model(name.removeprefix(f"{provider}/"), names.get(provider, provider), facts)


def _model(name: str, provider: str, facts: JsonObject) -> KnownModel:
    can: dict[str, Any] = {
        ours: facts[theirs] for ours, theirs in _CAPABILITIES.items() if isinstance(facts.get(theirs), bool)
    }
    retires = facts.get("deprecation_date")
    return KnownModel(
        id=f"{provider}:{name}",
        context_window=_tokens(facts.get("max_input_tokens")),
        max_output=_tokens(facts.get("max_output_tokens")),
        retires=retires if isinstance(retires, str) and _DAY.fullmatch(retires) else None,
        **can,
    )


def _tokens(value: Json) -> int | None:
    """A limit; None for a value that is no number, or that is no limit."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None
