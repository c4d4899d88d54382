"""Fields of the Responses API, a lenient decoder, and usage.

Every field is optional, because servers omit any of them. A field of the wrong type is treated as absent. `read`
first decodes a struct as a whole, and field by field only if that fails. Nested values stay raw until needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar, cast

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage, UsageSource, details_of, unusual_tier

from ...operations.openai_media import read_usage as read_image_usage
from ...replies.usage import (
    cache_writes,
    decode_usage,
    first_count,
    only_written,
    reported_cost,
    reported_count,
    reported_detail,
    source_of,
)

EMPTY = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


class Event(msgspec.Struct, gc=False):
    """One event of a stream, of any type. A delta needs the first six fields only."""

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
    content: list[msgspec.Raw] | None = None
    summary: list[msgspec.Raw] | None = None
    input: msgspec.Raw = EMPTY
    caller: msgspec.Raw = EMPTY
    action: msgspec.Raw = EMPTY
    container_id: str | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)


class Part(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    annotations: list[msgspec.Raw] | None = None
    logprobs: list[msgspec.Raw] | None = None


class Response(msgspec.Struct, gc=False):
    """The response object: a whole reply, or part of a stream's first and last event."""

    id: str | None = None
    object: str | None = None
    model: str | None = None
    status: str | None = None
    error: msgspec.Raw = EMPTY
    incomplete_details: msgspec.Raw = EMPTY
    output: list[msgspec.Raw] | None = None
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
        """Whether DETAILS are all absent, as in nearly all replies."""
        return (
            self.access_programs is self.conversation is self.input_transformations is EMPTY
            and self.moderation is self.prompt_cache_diagnostics is EMPTY
        )


DETAILS = ("access_programs", "conversation", "input_transformations", "moderation", "prompt_cache_diagnostics")
"""The fields of a response that are neither content nor usage nor a copy of the request."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _PlainInput(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    cached_tokens: _Count = 0


class _PlainOutput(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    reasoning_tokens: _Count | None = None


class _PlainUsage(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    input_tokens: _Count
    output_tokens: _Count
    input_tokens_details: _PlainInput
    output_tokens_details: _PlainOutput
    total_tokens: _Count = 0


T = TypeVar("T", bound=msgspec.Struct)

_DECODE: dict[type[msgspec.Struct], Callable[[bytes | msgspec.Raw], object]] = {
    kind: msgspec.json.Decoder(kind).decode for kind in (Event, Item, Part, Response)
}
_FIELDS: dict[type[msgspec.Struct], dict[str, tuple[str, msgspec.json.Decoder[object]]]] = {
    kind: {
        field.encode_name: (field.name, msgspec.json.Decoder(field.type)) for field in msgspec.structs.fields(kind)
    }
    for kind in _DECODE
}
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT = msgspec.json.Decoder(JsonObject)
_PLAIN_USAGE = msgspec.json.Decoder(_PlainUsage)
decode_event = msgspec.json.Decoder(Event).decode


def read(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """Decode a struct.

    Raises msgspec's DecodeError for invalid JSON, ValidationError for anything but an object.
    """
    try:
        return cast("T", _DECODE[kind](data))
    except msgspec.ValidationError:
        return _read_fields(kind, data)


def _read_fields(kind: type[T], data: bytes | msgspec.Raw) -> T:
    decoders = _FIELDS[kind]
    fields: dict[str, object] = {}
    for name, raw in _RAW_FIELDS.decode(data).items():
        if name in decoders:
            field, decoder = decoders[name]
            try:
                fields[field] = decoder.decode(raw)
            except msgspec.ValidationError:
                continue
    return kind(**fields)


def read_or_default(kind: type[T], data: msgspec.Raw) -> T:
    """Like `read`, but return an empty struct if there is no object."""
    try:
        return read(kind, data) if is_present(data) else kind()
    except msgspec.ValidationError:
        return kind()


def is_present(data: msgspec.Raw) -> bool:
    return bool(data) and data != _NULL


def as_object(data: msgspec.Raw) -> JsonObject:
    """Decode a JSON object. Raises msgspec's DecodeError for anything else."""
    return _OBJECT.decode(data)


def read_value(data: msgspec.Raw) -> Json:
    return msgspec.json.decode(data, type=Json) if is_present(data) else None


def as_arguments(data: msgspec.Raw) -> str:
    """A call's arguments as text: servers send a string, an object, or null."""
    if not is_present(data):
        return ""
    try:
        return msgspec.json.decode(data, type=str)
    except msgspec.ValidationError:
        return bytes(data).decode()


# --- Usage ---


class ToolFees:
    def __init__(self) -> None:
        self._noted = False  # whether the reply has an item other than a message, reasoning or a function call
        self._searches = 0
        self._file_searches = 0
        self._images = 0
        self._containers: set[str | None] = set()

    def note(self, kind: str, item: Item) -> None:
        """Count a complete item. Opening a page, or searching in it, is not a search."""
        self._noted = True
        match kind:
            case "web_search_call":
                action = read_value(item.action)
                what = action.get("type") if isinstance(action, dict) else None
                self._searches += what in (None, "search")
            case "file_search_call":
                self._file_searches += 1
            case "code_interpreter_call":
                self._containers.add(item.container_id)
            case "image_generation_call":
                self._images += 1
            case _:
                pass

    def counts(self, tool_usage: msgspec.Raw, usage: msgspec.Raw) -> dict[str, int]:
        if not self._noted and not is_present(tool_usage):
            return _named(usage)
        searches, drawn = 0, None
        if is_present(tool_usage):
            reported = _object(read_value(tool_usage))
            searches = reported_count(_object(reported.get("web_search")).get("num_requests")) or 0
            drawn = drawn_with(tool_usage)
        counts = details_of(
            web_search=max(searches, self._searches),
            file_search=self._file_searches,
            code_interpreter=len(self._containers),
            image_tool=0 if drawn else self._images,
        )
        return {**(counts or {}), **(drawn or {}), **_named(usage)}


_NAMED = b"server_side_tool_usage_details"
_FREE = "mcp"
"""The tool whose calls cost nothing."""


def _named(usage: msgspec.Raw) -> dict[str, int]:
    """The counts that xAI reports for its own tools."""
    if _NAMED not in bytes(usage):
        return {}
    found = _object(_object(read_value(usage)).get(_NAMED.decode()))
    counts = {name.removesuffix("_calls"): reported_count(count) for name, count in found.items()}
    return {name: count for name, count in counts.items() if count and name != _FREE and name.isidentifier()}


def drawn_with(tool_usage: msgspec.Raw) -> dict[str, int] | None:
    """The tokens of the image tool's model, as counts with separate prices; None if not reported."""
    if not is_present(tool_usage):
        return None
    drawn = read_image_usage(msgspec.json.encode(_object(read_value(tool_usage)).get("image_gen")))
    if drawn is None:
        return None
    pictured = (drawn.details or {}).get("image_input", 0)
    return details_of(
        image_tool_input=drawn.input_tokens - pictured,
        image_tool_image_input=pictured,
        image_tool_cached=drawn.cached_input_tokens,
        image_tool_output=drawn.output_tokens,
    )


def with_tool_usage(usage: msgspec.Raw, tool_usage: msgspec.Raw) -> msgspec.Raw:
    if not is_present(tool_usage) or not _used(read_value(tool_usage)):
        return msgspec.Raw(bytes(usage))
    fields = msgspec.json.decode(usage, type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({**fields, "tool_usage": tool_usage}))


def _used(value: Json) -> bool:
    return any(map(_used, value.values())) if isinstance(value, dict) else bool(value)


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def read_usage(
    data: msgspec.Raw,
    service_tier: str | None = None,
    *,
    fees: Mapping[str, int] | None = None,
    tool_usage: msgspec.Raw = EMPTY,
) -> TokenUsage | None:
    plain = None if fees or tool_usage else _read_plain_usage(data, service_tier)
    return plain or _read_any_usage(data, service_tier, fees, tool_usage)


def _read_plain_usage(data: msgspec.Raw, service_tier: str | None) -> TokenUsage | None:
    """The counts of a consistent `_PlainUsage`, as `_read_any_usage` returns them; None if the usage is not
    consistent.
    """
    try:
        wire = _PLAIN_USAGE.decode(data)
    except msgspec.MsgspecError:
        return None
    total, output = wire.input_tokens, wire.output_tokens
    cached, thought = wire.input_tokens_details.cached_tokens, wire.output_tokens_details.reasoning_tokens
    if cached > total or (thought or 0) > output:
        return None
    return TokenUsage(
        total - cached,
        output,
        cached,
        reasoning_tokens=thought,
        raw=data.copy(),  # otherwise the raw value would keep the whole reply alive
        service_tier=unusual_tier(service_tier),
    )


def _read_any_usage(
    data: msgspec.Raw, service_tier: str | None, fees: Mapping[str, int] | None, tool_usage: msgspec.Raw
) -> TokenUsage | None:
    try:
        usage = decode_usage(data) if is_present(data) else {}
    except msgspec.ValidationError:
        usage = {}
    prompt, completion = reported_count(usage.get("input_tokens")), reported_count(usage.get("output_tokens"))
    if prompt is None and completion is None:
        return TokenUsage(details=dict(fees), source=UsageSource.PARTIAL) if fees else None
    read_in = usage.get("input_tokens_details")
    total, output = prompt or 0, completion or 0
    # Gateways for Claude report cache reads and writes next to the prompt's details.
    flat = reported_count(usage.get("cache_read_input_tokens"))
    cached = first_count(reported_detail(read_in, "cached_tokens"), flat) or 0
    written, written_1h = cache_writes(
        read_in, usage.get("cache_creation_input_tokens"), usage.get("cache_creation")
    )
    written = only_written(cached, written, total)
    thought = reported_detail(usage.get("output_tokens_details"), "reasoning_tokens")
    stated = reported_cost(  # OpenRouter's cost, in US dollars, or xAI's
        usage.get("cost"), usage.get("is_byok"), usage.get("cost_details"), usage.get("cost_in_usd_ticks")
    )
    return TokenUsage(
        input_tokens=max(0, total - cached - written),
        output_tokens=output,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=min(written_1h, written),
        reasoning_tokens=None if thought is None else min(thought, output),
        source=source_of((cached + written, total), (thought, output), raw=data),
        reported_cost_nano_usd=stated.total,
        upstream_cost_nano_usd=stated.upstream,
        details=dict(fees) if fees else None,
        raw=with_tool_usage(data, tool_usage),
        service_tier=unusual_tier(service_tier),
    )
