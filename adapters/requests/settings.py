"""Portable settings, options and limits of a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from callboard.bus.errors import (
    CapabilityError,
    ConfigurationError,
    InvalidRequestError,
    UnsupportedToolChoiceError,
    WarningCode,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock, ToolUseBlock
from callboard.bus.values.messages import CallWarning, Message, ToolChoice, ToolDefinition

from ..contract import AdapterCapabilities, CallRequest, CanonicalRequest
from .content import current_turn, is_empty, media_type_of

PORTABLE = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "user", "verbosity"),
    "background",
)
"""Fields of a CanonicalRequest that only tune the reply. They may be dropped with a warning."""

Options = TypeVar("Options", bound=msgspec.Struct)

VERBOSITIES = ("low", "medium", "high")


class SharedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options that all adapters over HTTP support."""

    repair: bool = True
    """Whether a refused request may be repaired and sent again."""
    download_hosts: tuple[str, ...] = ()
    """Hosts with private addresses that files of a reply may be downloaded from."""


def read_options(options: Mapping[str, Json], kind: type[Options], *, name: str, type_name: str) -> Options:
    """Parse `AdapterConfig.options` into an adapter's own struct. Raises ConfigurationError with the key."""
    fields = kind.__struct_fields__
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        unknown = next((key for key in options if key not in fields), None)
        from difflib import get_close_matches  # only needed for an error

        near = [] if unknown is None else get_close_matches(unknown, fields, n=1)
        hint = f", did you mean `{near[0]}`?" if near else "."
        message = f"{name}: options of type {type_name}: {error}{hint} Expected {', '.join(fields)}"
        raise ConfigurationError(message) from error


def own_options(request: CallRequest, protocol: str, provider: str) -> Iterator[JsonObject]:
    """A request's fields for one protocol: first those for all its providers, then those for this provider."""
    for name in dict.fromkeys((protocol, provider)):
        options = request.provider_options.get(name, {})
        if not isinstance(options, Mapping):
            raise InvalidRequestError(
                f"provider_options[{name!r}] must be an object: it is merged into the request"
            )
        yield dict(options)


def check_tool_choice(choice: ToolChoice | None, names: Collection[Json]) -> None:
    if choice is None or choice.mode not in ("required", "named"):
        return
    if not names:
        raise UnsupportedToolChoiceError(f"tool choice {choice.mode!r} needs tools, but the request has none")
    if choice.mode == "named" and choice.tool_name not in names:
        raise UnsupportedToolChoiceError(f"the tool choice {choice.tool_name!r} is not a tool of the request")


def may_omit_limit(request: CanonicalRequest, usual: AdapterCapabilities) -> bool:
    """Whether the reply's length limit may be omitted: it is a default and the model's limits are unknown."""
    can = request.capabilities
    return request.default_output_limit and (
        can is None
        or (can.max_context_tokens, can.max_output_tokens) == (usual.max_context_tokens, usual.max_output_tokens)
    )


def short_id(text: str, longest: int = 64) -> str:
    """An id that is short enough for providers. A long id becomes its digest."""
    return text if len(text) <= longest else digest(text)


def digest(text: str) -> str:
    """A digest of an id that may be long or private."""
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dropped(parameter: str, provider: str, why: str) -> CallWarning:
    """The warning for a setting that was dropped."""
    return CallWarning(WarningCode.PARAMETER_DROPPED, f"{parameter} was not sent to {provider}: {why}")


def changed(parameter: str, requested: object, sent: object, why: str) -> CallWarning:
    return CallWarning(WarningCode.PARAMETER_CHANGED, f"{parameter} {requested!r} was sent as {sent!r}: {why}")


def write_settings(
    body: JsonObject,
    request: CanonicalRequest,
    paths: Mapping[str, str],
    provider: str,
    *,
    refused: Mapping[str, str] | None = None,
    names: Iterable[str] = PORTABLE,
) -> list[CallWarning]:
    warnings: list[CallWarning] = []
    for name in names:
        value: Json = getattr(request, name)
        if value is None or value is False:
            continue
        if refused is not None and name in refused:
            warnings.append(dropped(name, provider, refused[name]))
        elif name not in paths:
            warnings.append(dropped(name, provider, "the protocol or this server does not accept it"))
        elif name == "verbosity" and value not in VERBOSITIES:
            warnings.append(dropped(name, provider, f"{value!r} must be one of {', '.join(VERBOSITIES)}"))
        else:
            put(body, paths[name], value)
    return warnings


def put(body: JsonObject, path: str, value: Json) -> None:
    """Set a value at a dotted path, creating the objects on the way."""
    *outer, last = path.split(".")
    for key in outer:
        inner = body.setdefault(key, {})
        assert isinstance(inner, dict)
        body = inner
    body[last] = value


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All efforts, in increasing order."""


def nearest_effort(requested: str, levels: tuple[str, ...]) -> str:
    """The nearest known effort; the lower one if two are equally near. An unknown word is returned unchanged."""
    if requested in levels or requested not in EFFORTS:
        return requested
    place = EFFORTS.index(requested)
    return min(levels, key=lambda effort: (abs(EFFORTS.index(effort) - place), EFFORTS.index(effort)))


# --- Free-form tools ---

CUSTOM = "custom"
"""OpenAI's type of a free-form tool."""

INPUT = "input"
"""The one argument of a free-form tool's call."""


def is_free_form(tool: ToolDefinition, options: JsonObject) -> bool:
    if options.get("type") != CUSTOM:
        return False
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, dict) or list(properties) != [INPUT]:
        raise InvalidRequestError(
            f"tool {tool.name!r} has the type {CUSTOM!r}, so `{INPUT}` must be its only argument and a text"
        )
    return True


def free_text(block: ToolUseBlock) -> str | None:
    """The text of a call to a free-form tool; None if it is another call."""
    text = block.input.get(INPUT)
    return text if isinstance(text, str) and len(block.input) == 1 else None


# --- Checks against the capabilities of the model ---

MEDIA = (ImageBlock, AudioBlock, DocumentBlock)
FORCING = ("required", "named")
"""The tool choices that require a call."""


def check_demands(request: CanonicalRequest, capabilities: AdapterCapabilities | None, provider: str) -> None:
    effort = request.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequestError(
            f"reasoning_effort {effort!r} must be one of {', '.join(EFFORTS)}", request_id=request.request_id
        )
    if capabilities is None:
        return
    for lack in _lacks(request, capabilities):
        raise CapabilityError(f"{request.model} {lack}", provider=provider, request_id=request.request_id)
    choice = request.tool_choice
    if choice is not None and choice.mode in FORCING and not capabilities.supports_tool_choice:
        raise UnsupportedToolChoiceError(
            f"{request.model} can't be forced to call a tool (tool choice {choice.mode!r})", provider=provider
        )


def _lacks(request: CanonicalRequest, capabilities: AdapterCapabilities) -> Iterator[str]:
    for message in current_turn(request.messages):
        media = [block for block in message.content if isinstance(block, MEDIA)]
        if media:
            yield from media_lacks(message, capabilities)
        if any(map(is_empty, media)):
            yield "does not accept media without content"
    if request.tools and not capabilities.supports_tools:
        yield "can't call tools"
    if request.output_schema is not None and not capabilities.supports_structured_output:
        yield "does not support output schemas"


def media_lacks(message: Message, capabilities: AdapterCapabilities) -> Iterator[str]:
    """Yield a text for each medium in a message that the model does not support. The text continues a sentence
    after the model's name.
    """
    for block in message.content:
        match block:
            case ImageBlock():
                kind, supported = "images", capabilities.supports_images
                accepted = capabilities.accepted_image_media_types
            case AudioBlock():
                kind, supported = "audio", capabilities.supports_audio
                accepted = capabilities.accepted_audio_media_types
            case DocumentBlock():
                kind, supported = "documents", capabilities.supports_documents
                accepted = capabilities.accepted_document_media_types
            case _:
                continue
        if not supported:
            yield f"does not accept {kind}"
        media_type = media_type_of(block)
        if accepted is not None and media_type and media_type not in accepted:
            yield f"does not accept {media_type} {kind}, only {', '.join(accepted)}"


# --- Fields of the host ---

JOINED = frozenset({"tools", "include"})
"""Lists to which the host's entries are added. All other lists are replaced."""

PROTECTED = frozenset({"model", "stream", "stream_options.include_usage"})
"""Dotted paths of values that a host can't change: the model, and the form of the reply and its usage."""

OF_REPLIES = frozenset(
    {"id", "item_id", "call_id", "after", "type", "status", "phase", "annotations", "logprobs", "emulated"}
)
"""Fields of a reply's blocks that must not be sent in a request."""


def merge_options(body: JsonObject, options: JsonObject, *, protected: Collection[str] = PROTECTED) -> None:
    """Merge the host's fields into a body, in place."""
    if options:
        _merge(body, options, "", protected)


def merge_own_options(
    body: JsonObject,
    request: CallRequest,
    protocol: str,
    provider: str,
    *,
    protected: Collection[str] = PROTECTED,
) -> None:
    """Merge a request's fields for one protocol into a body, in place."""
    if request.provider_options:
        for options in own_options(request, protocol, provider):
            merge_options(body, options, protected=protected)


def joined_options(request: CallRequest, protocol: str, provider: str) -> JsonObject:
    """A request's fields for one protocol as one object, for a later merge."""
    options: JsonObject = {}
    merge_own_options(options, request, protocol, provider, protected=())
    return options


def add_host_fields(part: JsonObject, fields: JsonObject) -> JsonObject:
    if fields:
        merge_options(part, {name: fields[name] for name in fields if name not in OF_REPLIES}, protected=())
    return part


def tool_options(tool: ToolDefinition, protocol: str, provider: str) -> JsonObject:
    """A tool's extra fields for one protocol. Fields for this provider override fields for all providers of the
    protocol.
    """
    found: JsonObject = {}
    for name in dict.fromkeys((protocol, provider)) if tool.provider_options else ():
        options = tool.provider_options.get(name, {})
        if not isinstance(options, dict):
            raise InvalidRequestError(
                f"tool {tool.name!r}: provider_options[{name!r}] must be an object: it is merged into the tool"
            )
        merge_options(found, options, protected=())
    if found.get("name", tool.name) != tool.name:
        raise InvalidRequestError(f"tool {tool.name!r}: provider_options can't rename it to {found['name']!r}")
    return found


def _merge(body: JsonObject, options: JsonObject, above: str, protected: Collection[str]) -> None:
    for name, value in options.items():
        place = f"{above}{name}"
        present = body.get(name)
        if place in protected:
            ours = body.get(name, False if name == "stream" else value)
            if value != ours:
                raise InvalidRequestError(
                    f"provider_options can't set {place!r} to {value!r}: the call uses {ours!r}"
                )
        elif isinstance(present, dict) and isinstance(value, dict) and not _are_two_kinds(present, value):
            inner = dict(present)
            _merge(inner, value, f"{place}.", protected)
            body[name] = inner
        elif place in JOINED and present:
            if not isinstance(present, list) or not isinstance(value, list):
                raise InvalidRequestError(f"provider_options: {place} must be a list, because it is added to ours")
            body[name] = present + [entry for entry in value if entry not in present]
        elif isinstance(present, dict) and value is not None and not isinstance(value, dict) and above == "":
            raise InvalidRequestError(
                f"provider_options: {place} must be an object, because it is merged into ours"
            )
        else:
            body[name] = value


def _are_two_kinds(ours: JsonObject, theirs: JsonObject) -> bool:
    return "type" in ours and "type" in theirs and ours["type"] != theirs["type"]
