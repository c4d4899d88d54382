"""The fields of the Responses API that are read here, and a lenient way to read them.

Every field is optional, because servers of this protocol leave out any of them. A field of the wrong type counts
as absent, so that it doesn't fail the reply. For this `read` first decodes a struct in one go. Only if that fails,
`read` decodes the fields one by one. Nested values stay raw until they are asked for, so one odd part spoils no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from callboard.bus.values.json import Json, JsonObject

EMPTY = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """One event of a stream, of any type: a delta needs the first six fields only."""

    type: str | None = None
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    arguments: msgspec.Raw = EMPTY
    name: str | None = None
    part: msgspec.Raw = EMPTY
    item: msgspec.Raw = EMPTY
    response: msgspec.Raw = EMPTY
    error: msgspec.Raw = EMPTY
    input: msgspec.Raw = EMPTY


class Item(msgspec.Struct, gc=False):
    """One output item, of any type."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    execution: str | None = None
    encrypted_content: str | None = None
    arguments: msgspec.Raw = EMPTY
    content: msgspec.Raw = EMPTY
    summary: msgspec.Raw = EMPTY
    input: msgspec.Raw = EMPTY
    caller: msgspec.Raw = EMPTY
    action: msgspec.Raw = EMPTY
    container_id: str | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)


class Part(msgspec.Struct, gc=False):
    """One part of an item's content or summary."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    annotations: msgspec.Raw = EMPTY
    logprobs: msgspec.Raw = EMPTY


class Response(msgspec.Struct, gc=False):
    """The response object: a whole reply, or what a stream says at its beginning and end."""

    id: str | None = None
    object: str | None = None
    model: str | None = None
    status: str | None = None
    error: msgspec.Raw = EMPTY
    incomplete_details: msgspec.Raw = EMPTY
    output: msgspec.Raw = EMPTY
    usage: msgspec.Raw = EMPTY
    tool_usage: msgspec.Raw = EMPTY
    service_tier: str | None = None
    access_programs: msgspec.Raw = EMPTY
    conversation: msgspec.Raw = EMPTY
    input_transformations: msgspec.Raw = EMPTY
    moderation: msgspec.Raw = EMPTY
    prompt_cache_diagnostics: msgspec.Raw = EMPTY

    @property
    def has_no_details(self) -> bool:
        """Whether none of DETAILS was sent, as in nearly all replies."""
        return (
            self.access_programs is self.conversation is self.input_transformations is EMPTY
            and self.moderation is self.prompt_cache_diagnostics is EMPTY
        )


DETAILS = (
    "access_programs",
    "conversation",
    "input_transformations",
    "moderation",
    "prompt_cache_diagnostics",
)
"""The fields of a response that say something beside its content, and not what the request said."""


class IncompleteDetails(msgspec.Struct, gc=False):
    reason: str | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts, which some proxies send as floats."""

    input_tokens: int | float | None = None
    output_tokens: int | float | None = None
    input_tokens_details: msgspec.Raw = EMPTY
    output_tokens_details: msgspec.Raw = EMPTY
    cost: Json = None  # OpenRouter's, in US dollars
    cost_details: Json = None
    is_byok: Json = None
    cost_in_usd_ticks: Json = None  # xAI's
    cache_read_input_tokens: Json = None  # gateways in front of Claude, as are the next two
    cache_creation_input_tokens: Json = None
    cache_creation: Json = None


class UsageDetails(msgspec.Struct, gc=False):
    """The parts of either count."""

    reasoning_tokens: int | float | None = None


T = TypeVar("T", bound=msgspec.Struct)

_DECODE: dict[type[msgspec.Struct], Callable[[bytes | msgspec.Raw], object]] = {
    kind: msgspec.json.Decoder(kind).decode
    for kind in (Event, Item, Part, Response, IncompleteDetails, Usage, UsageDetails)
}
_FIELDS: dict[type[msgspec.Struct], dict[str, tuple[str, msgspec.json.Decoder[object]]]] = {
    kind: {
        field.encode_name: (field.name, msgspec.json.Decoder(field.type)) for field in msgspec.structs.fields(kind)
    }
    for kind in _DECODE
}
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(JsonObject)
decode_event = msgspec.json.Decoder(Event).decode


def read(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """A struct of that kind. Raises msgspec's DecodeError for what is no JSON, ValidationError for no object."""
    try:
        return cast("T", _DECODE[kind](data))
    except msgspec.ValidationError:
        return _read_fields(kind, data)


def _read_fields(kind: type[T], data: bytes | msgspec.Raw) -> T:
    decoders = _FIELDS[kind]
    kept: dict[str, object] = {}
    for name, raw in _RAW_FIELDS.decode(data).items():
        if name in decoders:
            field, decoder = decoders[name]
            try:
                kept[field] = decoder.decode(raw)
            except msgspec.ValidationError:
                continue
    return kind(**kept)


def read_or_default(kind: type[T], data: msgspec.Raw) -> T:
    """As `read`, but an empty struct where there is no object."""
    try:
        return read(kind, data) if is_present(data) else kind()
    except msgspec.ValidationError:
        return kind()


def is_present(data: msgspec.Raw) -> bool:
    """True unless the field was absent or null."""
    return data is not EMPTY and bytes(data) not in (b"", b"null")


def elements(data: msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a list; none of anything else."""
    try:
        return _RAW_LIST.decode(data) if is_present(data) else []
    except msgspec.ValidationError:
        return []


def as_object(data: msgspec.Raw) -> JsonObject:
    """A JSON object as it came. Raises msgspec's DecodeError if it is none."""
    return _OBJECT.decode(data)


def read_value(data: msgspec.Raw) -> Json:
    """Any JSON value; None if the field was absent."""
    return msgspec.json.decode(data, type=Json) if is_present(data) else None


def as_arguments(data: msgspec.Raw) -> str:
    """A call's arguments as text: servers send them as a string, some as an object, some as null."""
    if not is_present(data):
        return ""
    try:
        return msgspec.json.decode(data, type=str)
    except msgspec.ValidationError:
        return bytes(data).decode()
