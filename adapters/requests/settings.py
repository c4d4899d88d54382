"""The portable settings of a request, written into a body. A setting that the protocol lacks gives a warning."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from callboard.bus.errors import ConfigurationError, InvalidRequestError, UnsupportedToolChoiceError
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import ToolChoice
from callboard.bus.values.warning_codes import WarningCode

from ..calls import CallRequest
from ..contract import AdapterCapabilities, CallWarning, CanonicalRequest

PORTABLE = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "user", "verbosity"),
    "background",
)
"""Fields of a CanonicalRequest that only tune the reply, or the way in which it is made."""

Options = TypeVar("Options", bound=msgspec.Struct)

VERBOSITIES = ("low", "medium", "high")


class SharedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `AdapterConfig.options` that all adapters over HTTP know."""

    repair: bool = True
    """Whether a refused request may be repaired and sent again; see `repair`."""
    download_hosts: tuple[str, ...] = ()
    """Names or addresses without a public address from which a reply's files may be downloaded, too."""


def read_options(options: Mapping[str, Json], kind: type[Options], *, name: str, type_name: str) -> Options:
    """`AdapterConfig.options` as a struct of an adapter's own. Raises ConfigurationError that names the key."""
    known = kind.__struct_fields__
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        unknown = next((key for key in options if key not in known), None)
        from difflib import get_close_matches  # only ever needed on the way to an error

        near = [] if unknown is None else get_close_matches(unknown, known, n=1)
        hint = f", did you mean `{near[0]}`?" if near else ""
        said = f"{name}: options of type {type_name}: {error}{hint}; known are {', '.join(known)}"
        raise ConfigurationError(said) from error


def own_options(request: CallRequest, protocol: str, provider: str) -> Iterator[JsonObject]:
    """The fields of a request for one protocol: first those for all of its providers, then those for this
    provider.

    Args:
        request: A request of any kind.
        protocol: The name under which fields for all providers of the protocol stand.
        provider: The name under which fields for this provider stand.

    Raises:
        InvalidRequestError: The fields are no object.
    """
    for name in dict.fromkeys((protocol, provider)):
        options = request.provider_options.get(name, {})
        if not isinstance(options, Mapping):
            raise InvalidRequestError(
                f"provider_options[{name!r}] must be an object: it is merged into the request"
            )
        yield dict(options)


def check_tool_choice(choice: ToolChoice | None, names: Collection[Json]) -> None:
    """Require that the tool choice can be fulfilled.

    Args:
        choice: The tool choice; None is free.
        names: The names of the tools.

    Raises:
        UnsupportedToolChoiceError: The choice demands a call that can't be made.
    """
    if choice is None or choice.mode not in ("required", "named"):
        return
    if not names:
        raise UnsupportedToolChoiceError(f"tool choice {choice.mode!r} needs tools, and the request has none")
    if choice.mode == "named" and choice.tool_name not in names:
        raise UnsupportedToolChoiceError(f"the request demands {choice.tool_name!r}, which is no tool of it")


def may_omit_limit(request: CanonicalRequest, usual: AdapterCapabilities) -> bool:
    """Whether the length of the reply may be left to the server.

    It may where nobody asked for one, and the model's limits aren't known.

    Args:
        request: With the model's capabilities.
        usual: What an adapter says of a model that it doesn't know.
    """
    can = request.capabilities
    return request.default_output_limit and (
        can is None
        or (can.max_context_tokens, can.max_output_tokens) == (usual.max_context_tokens, usual.max_output_tokens)
    )


def short_id(text: str, longest: int = 64) -> str:
    """An id that is short enough for providers. A long id becomes a digest, which is always the same."""
    return text if len(text) <= longest else digest(text)


def digest(text: str) -> str:
    """An id for something that has another one, which may be long, or nobody else's business."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dropped(parameter: str, provider: str, why: str) -> CallWarning:
    """The warning for a setting that was left out of a request."""
    return CallWarning(WarningCode.PARAMETER_DROPPED, f"{parameter} was not sent to {provider}: {why}")


def changed(parameter: str, asked: object, sent: object, why: str) -> CallWarning:
    """The warning for a setting that was sent with another value than the wanted one."""
    return CallWarning(WarningCode.PARAMETER_CHANGED, f"{parameter} {asked!r} was sent as {sent!r}: {why}")


def write_settings(
    body: JsonObject,
    request: CanonicalRequest,
    paths: Mapping[str, str],
    provider: str,
    *,
    refused: Mapping[str, str] | None = None,
    names: Iterable[str] = PORTABLE,
) -> list[CallWarning]:
    """Write the settings that are given into a body.

    Args:
        body: The body, which is changed in place.
        request: The request.
        paths: The place of each setting on this wire, with dots between nested keys (``text.verbosity``). A
            setting without a place doesn't exist on this wire.
        provider: The adapter's name.
        refused: The settings that this model or server refuses, with the reasons.
        names: The settings to write; without it, all of them.

    Returns:
        The warnings for settings that can't be written.
    """
    warnings: list[CallWarning] = []
    for name in names:
        value: Json = getattr(request, name)
        if value is None or value is False:
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
