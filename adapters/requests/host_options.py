"""Merging the host's own fields into a request. Pure, and the only place for it.

Objects are merged key by key, at every depth. If two objects differ in ``type``, the host's is used. Lists of
tools and of includes are joined, ours first. Any other value of the host replaces ours, except for values that
reading and billing the reply depend on.
"""

from __future__ import annotations

from collections.abc import Collection

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition

from ..contract import CallRequest
from .settings import own_options

JOINED = frozenset({"tools", "include"})
"""Lists that the host adds to."""

PROTECTED = frozenset({"model", "stream", "stream_options.include_usage"})
"""Values that a host can't change, by dotted paths: the model, and the form of reply and usage."""

OF_REPLIES = frozenset(
    {"id", "item_id", "call_id", "after", "type", "status", "phase", "annotations", "logprobs", "emulated"}
)
"""Fields of a reply's blocks that no request has."""


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
    """A tool's fields for one protocol: those for all its providers, and those for this one."""
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
            _keep(body, name, place, value)
        elif isinstance(present, dict) and isinstance(value, dict) and not _are_two_kinds(present, value):
            inner = dict(present)
            _merge(inner, value, f"{place}.", protected)
            body[name] = inner
        elif place in JOINED and present:
            body[name] = _joined(present, value, place)
        elif isinstance(present, dict) and value is not None and not isinstance(value, dict) and above == "":
            raise InvalidRequestError(f"provider_options: {place} must be an object, for it is merged into ours")
        else:
            body[name] = value


def _keep(body: JsonObject, name: str, place: str, value: Json) -> None:
    ours = body.get(name, False if name == "stream" else value)
    if value != ours:
        raise InvalidRequestError(
            f"provider_options can't set {place!r} to {value!r}: the call is made with {ours!r}"
        )


def _are_two_kinds(ours: JsonObject, theirs: JsonObject) -> bool:
    return "type" in ours and "type" in theirs and ours["type"] != theirs["type"]


def _joined(ours: Json, theirs: Json, place: str) -> Json:
    if not isinstance(ours, list) or not isinstance(theirs, list):
        raise InvalidRequestError(f"provider_options: {place} must be a list, for it is added to ours")
    return ours + [entry for entry in theirs if entry not in ours]
