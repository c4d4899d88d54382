"""Events as a trace stores them, and envelopes as lines of a spill file.

Stored events have no content. Lines of a spill file have the captured content. `bus.events.codec` reads and writes
the JSON itself.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from callboard.bus.events import Envelope, Event, UnknownEvent
from callboard.bus.events.calls import LlmCallGuarded, ToolProgress
from callboard.bus.events.codec import CATALOGUE, EncodedEnvelope, encode_part, fields_of
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended, SessionTurnCompleted
from callboard.bus.values.base import as_utf8

from .writing.content import CapturedMessage, CapturedSetup, SpilledContent, spilled, unspilled

_encoder = msgspec.json.Encoder()


class StoredEnvelope(EncodedEnvelope, frozen=True, omit_defaults=True, kw_only=True):
    """An envelope as one line of a file."""

    content: SpilledContent | None = None
    """The content of a message or a setup; None if it is not stored."""


_line_decoder = msgspec.json.Decoder(StoredEnvelope)


class _BareMessage(msgspec.Struct):
    role: str
    id: str | None
    content: tuple[()] = ()
    steers: bool | msgspec.UnsetType = msgspec.UNSET


class _BareAppended(msgspec.Struct, tag=SessionMessageAppended.topic_of()):
    """A `SessionMessageAppended` without its message, as it is stored."""

    position: int
    message: _BareMessage
    epoch: int | msgspec.UnsetType = msgspec.UNSET


class _BareConfigured(msgspec.Struct, tag=SessionConfigured.topic_of()):
    history: int
    begins: bool
    setup: None = None
    epoch: int | msgspec.UnsetType = msgspec.UNSET


_STORED_OTHERWISE = (SessionMessageAppended, SessionConfigured, ToolProgress, UnknownEvent)
"""The events that are stored without a part, or changed."""


def encode_event(event: Event) -> bytes:
    """The JSON of an event, without any content."""
    stored: msgspec.Struct = event
    if isinstance(event, _STORED_OTHERWISE):
        if isinstance(event, UnknownEvent):
            return bytes(event.raw)
        stored = _without_content(event)
    return encode_part(stored, event)


def encode_events(envelopes: Sequence[Envelope]) -> list[str]:
    """The JSON of each event, without any content."""
    encode, plain = _encoder.encode, _STORED_AS_THEY_ARE
    try:
        return [
            encode(event if type(event := envelope.data) in plain else _bare(event)).decode()
            for envelope in envelopes
        ]
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError):
        # one of the events can't be encoded, so each is encoded separately
        return [encode_event(envelope.data).decode("utf-8", "replace") for envelope in envelopes]


def _bare(event: Event) -> msgspec.Struct | msgspec.Raw:
    """The event without content, in the form that is encoded."""
    if type(event) is SessionMessageAppended:  # two such events in every turn
        return _bare_message(event)
    return event if _is_stored_as_it_is(type(event)) else msgspec.Raw(encode_event(event))


def _bare_message(event: SessionMessageAppended) -> _BareAppended:
    message, unset = event.message, msgspec.UNSET
    return _BareAppended(
        event.position, _BareMessage(message.role, message.id, (), message.steers or unset), event.epoch or unset
    )


def _without_content(event: SessionMessageAppended | SessionConfigured | ToolProgress) -> msgspec.Struct:
    match event:
        case SessionMessageAppended():
            return _bare_message(event)
        case SessionConfigured():
            return _BareConfigured(event.history, event.begins, epoch=event.epoch or msgspec.UNSET)
        case ToolProgress():
            return msgspec.structs.replace(event, message=None)


def storable_text(value: str) -> str:
    """Replace half surrogate pairs, which SQLite rejects, by question marks."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def encode_line(envelope: Envelope) -> bytes:
    """An envelope as one line of JSON, newline included."""
    event = envelope.data
    stored = StoredEnvelope(
        **fields_of(envelope),
        # Line breaks occur only between values; in strings they are escaped.
        data=msgspec.Raw(encode_event(event).replace(b"\n", b" ")),
        content=_spilled(event) if isinstance(event, CapturedMessage | CapturedSetup) else None,
    )
    try:
        return _encoder.encode(stored) + b"\n"
    except UnicodeError:
        return _encode_line_the_hard_way(stored)


def encode_lines(envelopes: Sequence[Envelope]) -> bytes:
    """A line for each envelope, with the format of `encode_line`.

    Nearly all events are encoded unchanged in one pass. This must be fast, because a reply waits for it.
    """
    plain = _STORED_AS_THEY_ARE
    try:
        lines = as_utf8(
            _encoder.encode_lines(
                [envelope if type(envelope.data) in plain else _line_of(envelope) for envelope in envelopes]
            )
        )
        # Raw JSON of a provider may contain line breaks. `replace` finds them faster than `count` and `split`.
        if len(lines) - len(lines.replace(b"\n", b"")) == len(envelopes):
            return lines
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError):
        pass  # one event can't be encoded in this pass, so each event is encoded below
    return b"".join(map(encode_line, envelopes))


def _line_of(envelope: Envelope) -> Envelope | msgspec.Raw:
    event = envelope.data
    if type(event) is SessionMessageAppended:  # two such events in every turn
        return msgspec.structs.replace(envelope, data=_bare_message(event))
    return envelope if _is_stored_as_it_is(type(event)) else msgspec.Raw(encode_line(envelope)[:-1])


@functools.lru_cache(maxsize=1024)
def _is_stored_as_it_is(kind: type[Event]) -> bool:
    config = kind.__struct_config__
    has_topic = config.tag_field == "type" and not config.array_like
    return has_topic and kind.SCHEMA == 1 and not issubclass(kind, _STORED_OTHERWISE)


_STORED_AS_THEY_ARE = frozenset(kind for kind in CATALOGUE if _is_stored_as_it_is(kind))
"""Callboard's own events that are stored unchanged. Nearly all events are among them."""


def _encode_line_the_hard_way(stored: StoredEnvelope) -> bytes:
    plain = {name: value for name, value in msgspec.structs.asdict(stored).items() if value is not None}
    plain["data"] = json.loads(bytes(stored.data))
    if stored.content is not None:
        plain["content"] = json.loads(_encoder.encode(stored.content))
    return json.dumps(plain).encode() + b"\n"


def _spilled(event: CapturedMessage | CapturedSetup) -> SpilledContent | None:
    try:
        return spilled(event)
    except (TypeError, ValueError, RecursionError):
        return None  # the store could not store this content either, so the event is written without it


def _decode_line_the_hard_way(line: bytes) -> StoredEnvelope:
    # Only Python's json module reads escaped half surrogate pairs. They are escaped again in the result.
    try:
        fields = json.loads(line)
        fields["data"] = msgspec.Raw(json.dumps(fields["data"]))
        content = fields.get("content") or {}
        for part in {"message", "metadata", "setup"} & content.keys():
            content[part] = msgspec.Raw(json.dumps(content[part]))
        return msgspec.convert(fields, StoredEnvelope)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def decode_line(line: bytes) -> Envelope:
    """The envelope in a line. Raises ValueError if the line is torn or has another format."""
    try:
        stored = _line_decoder.decode(line)
    except msgspec.DecodeError:
        stored = _decode_line_the_hard_way(line)
    envelope = stored.decoded()
    if stored.content is None:
        return envelope
    match envelope.data:
        case SessionMessageAppended() | SessionConfigured() as event:
            return msgspec.structs.replace(envelope, data=unspilled(event, stored.content))
        case _:
            return envelope


# --- Erasing the content of events ---
#
# Names, tags, texts of errors and names of tools may quote content. So only numbers and the listed text fields are
# kept: ids, and names of models and providers. A new field is erased unless it is added to the list.


KEPT = frozenset(
    (
        # models and providers
        *("provider", "model", "requested_model", "served_model", "priced_as", "requested", "resolved_by"),
        *("previous", "current", "fallback_of", "service_tier", "server_address", "reasoning_effort"),
        "output_type",
        # ids
        *("forked_from", "batch_id", "call_id", "job_id", "response_id", "provider_request_id", "tool_use_id"),
        *("trace_parent", "node", "digest", "message_id", "id"),
        *("parent_call_id", "parent_tool_use_id", "parent_turn_id", "root_turn_id"),
        # words of a fixed list
        *("operation", "reason", "stop_reason", "raw_stop_reason", "status", "error_class", "error_type", "code"),
        *("provider_code", "warnings", "action", "scope", "why", "how", "kind", "size", "role", "type"),
        *("source", "origin"),
        # configuration
        *("pricing_version", "key", "guardrail"),
    )
)
"""The text fields that are kept, at any depth."""

_ERASED_HERE = frozenset(((LlmCallGuarded, "reason"),))
"""Fields that are erased in one event although their name is in `KEPT`: a guardrail's reason is a text of the
host.
"""

StructT = TypeVar("StructT", bound=msgspec.Struct)


def figures_of(event: Event, *, keeps_tags: bool = False) -> Event:
    """The event without all fields that may quote content."""
    if isinstance(event, UnknownEvent):
        return UnknownEvent(topic=event.topic, raw=msgspec.Raw(msgspec.json.encode({"type": event.topic})))
    if isinstance(event, SessionMessageAppended | SessionConfigured):  # they never have content in the trace
        return event
    bare = _without_text(event, ("tags", "value") if keeps_tags else ())
    if isinstance(event, SessionTurnCompleted) and event.error is not None:
        kind = event.error.partition(":")[0]
        return msgspec.structs.replace(bare, error=kind if kind.isidentifier() else "")
    return bare


def _without_text(thing: StructT, more: tuple[str, ...] = ()) -> StructT:
    erased: dict[str, object] = {}
    for field in msgspec.structs.fields(type(thing)):
        value = getattr(thing, field.name)
        is_kept = field.name in more or (field.name in KEPT and (type(thing), field.name) not in _ERASED_HERE)
        if is_kept and isinstance(value, str | tuple | dict):
            continue
        bare = _bare_value(value, field)
        if bare is not value:
            erased[field.name] = bare
    return msgspec.structs.replace(thing, **erased) if erased else thing


def _bare_value(value: object, field: msgspec.structs.FieldInfo) -> object:
    match value:
        case None | bool() | int() | float() | Enum():
            return value
        case msgspec.Struct():
            return _without_text(value)
        case tuple() if value and all(isinstance(each, msgspec.Struct) for each in value):
            return tuple(_without_text(each) for each in value)
        case tuple() if all(isinstance(each, int | float) for each in value):
            return value
        case dict() if all(isinstance(each, int | float) for each in value.values()):
            return value
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return type(value)() if isinstance(value, str | tuple | dict) else None
