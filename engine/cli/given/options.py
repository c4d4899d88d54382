"""Options of a turn as words: ``-o temperature 0.2``, and a provider's own as ``-o anthropic.top_k 40``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.values.json import Json, JsonObject
from callboard.engine import TurnOptions
from callboard.engine.models.nearest_names import nearest

KINDS: Mapping[str, object] = {
    "temperature": float,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "seed": int,
    "max_output_tokens": int,
    "stop_sequences": list[str],
    "reasoning_effort": str,
    "verbosity": str,
    "user": str,
    "parallel_tool_calls": bool,
    "max_tool_rounds": int,
    "max_retries": int,
    "retry_empty": int,
    "timeout": float,
    "call_timeout": float,
    "background": bool,
    "continue_broken": bool,
    "include_raw": bool,
    "drain_for_usage": float,
    "fallback": list[str],
}
"""The options that can be said in a word or a number, and what they are."""


def options_of(given: Iterable[tuple[str, Json]]) -> TurnOptions:
    """The options that a person says, in their order. Of an option that is said twice, the last one counts.

    Args:
        given: Names and values. A value that is text is read as what the option is. Lists are said as JSON, or by
            saying their one element. A name with a dot is an option of a provider: its value is JSON, or text.

    Raises:
        ConfigurationError: There is no such option, or its value doesn't fit.
    """
    found: dict[str, object] = {}
    of_providers: dict[str, JsonObject] = {}
    for name, value in given:
        provider, dot, option = name.partition(".")
        if dot and provider and option:
            of_providers.setdefault(provider, {})[option] = _as_json(value)
        else:
            found[name] = _value(name, value)
    if of_providers:
        found["provider_options"] = of_providers
    return cast("TurnOptions", found)


def as_said(options: TurnOptions) -> JsonObject:
    """Options as names and values that `options_of` reads as the same, for a file."""
    said = {name: cast("Json", value) for name, value in options.items() if name != "provider_options"}
    for provider, own in (options.get("provider_options") or {}).items():
        said |= {f"{provider}.{name}": value for name, value in cast("JsonObject", own).items()}
    return said


def _value(name: str, value: Json) -> object:
    kind = KINDS.get(name)
    if kind is None:
        near = nearest(name, KINDS)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}."
        raise ConfigurationError(
            f"there is no option {name!r}: {hint} An option of one provider is named PROVIDER.OPTION."
        )
    if kind == list[str] and isinstance(value, str):
        value = _as_json(value) if value.lstrip().startswith("[") else [value]
    if isinstance(value, str) and kind is not str:
        value = value.strip()
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise ConfigurationError(f"-o {name} takes {_SAID[kind]}, not {value!r}") from None


_SAID: Mapping[object, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a word",
    list[str]: "a text, or a JSON list of texts",
}


def _as_json(value: Json) -> Json:
    """A text as the JSON that it is, or else as itself."""
    if not isinstance(value, str):
        return value
    try:
        read: Json = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return value
    return read
