"""The portable settings of a request, written where a protocol has them; the others are refused with a warning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.json_types import Json, JsonObject

from .contract import CallWarning, CanonicalRequest

PORTABLE = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "user", "verbosity")
"""Fields of a CanonicalRequest that only tune the reply."""

VERBOSITIES = ("low", "medium", "high")


def dropped(parameter: str, provider: str, why: str) -> CallWarning:
    """The warning for what was left out of a request."""
    return CallWarning("parameter_dropped", f"{parameter} was not sent to {provider}: {why}")


def changed(parameter: str, asked: object, sent: object, why: str) -> CallWarning:
    """The warning for what was sent otherwise than it was asked for."""
    return CallWarning("parameter_changed", f"{parameter} {asked!r} was sent as {sent!r}: {why}")


def write_settings(
    body: JsonObject,
    request: CanonicalRequest,
    paths: Mapping[str, str],
    provider: str,
    *,
    refused: Mapping[str, str] | None = None,
    names: Iterable[str] = PORTABLE,
) -> list[CallWarning]:
    """Write the settings that are given into a body; the warnings for those that can't be.

    paths: where a setting stands on this wire, with dots between nested keys (``text.verbosity``); one that is
    not in it doesn't exist there. refused: settings that this model or server refuses, and why. names: which
    settings to write, if not all.
    """
    warnings: list[CallWarning] = []
    for name in names:
        value: Json = getattr(request, name)
        if value is None:
            continue
        if refused is not None and name in refused:
            warnings.append(dropped(name, provider, refused[name]))
        elif name not in paths:
            warnings.append(dropped(name, provider, "the protocol has no such parameter"))
        elif name == "verbosity" and value not in VERBOSITIES:
            warnings.append(dropped(name, provider, f"{value!r} is none of {', '.join(VERBOSITIES)}"))
        else:
            put(body, paths[name], value)
    return warnings


def put(body: JsonObject, path: str, value: Json) -> None:
    """Set what stands at a dotted path, making the objects on the way to it."""
    *outer, last = path.split(".")
    for key in outer:
        inner = body.setdefault(key, {})
        assert isinstance(inner, dict)
        body = inner
    body[last] = value
