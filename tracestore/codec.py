"""Events as stored text, and back.

What is stored of an event is its JSON, tagged with its topic. Reading never fails: a topic that this version
doesn't know, or data that doesn't fit it, comes back as an `UnknownEvent` with the text as it was. Writing never
fails either: what can't be encoded is stored as a note that says so, because one bad event of a host's own must
not stop everything behind it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TypeVar, get_args

import msgspec

from bus.events.catalogue import (
    CatalogueEvent,
    LlmCallCompleted,
    LlmCallFailed,
    SessionConfigured,
    SessionMessageAppended,
    ToolProgress,
)
from bus.events.envelope import Envelope, Event, UnknownEvent

from .event_forms import in_current_form, with_schema
from .writing.captured import CapturedMessage, CapturedSetup, SpilledContent, spilled, unspilled

_encoder = msgspec.json.Encoder()
_SCHEMAS = {kind.topic_of(): kind.SCHEMA for kind in get_args(CatalogueEvent)}


@functools.cache
def _decoder() -> msgspec.json.Decoder[CatalogueEvent]:
    return msgspec.json.Decoder(CatalogueEvent)  # 3 ms, for whoever reads events


EventT = TypeVar("EventT", bound=Event)

_WITH_CONTENT = (CapturedMessage, CapturedSetup, SessionMessageAppended, SessionConfigured, ToolProgress)


class StoredEnvelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An envelope as one line of a file; the fields are those of `Envelope`.

    topic: of its event; None where the event's own ``type`` says it. content: of a message or a setup, if it is to
    be stored.
    """

    seq: int
    run_id: str
    ts_us: int
    mono_ns: int
    topic: str | None = None
    data: msgspec.Raw
    session_id: str | None = None
    turn_id: str | None = None
    request_id: str | None = None
    attempt: int | None = None
    message_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] | None = None
    content: SpilledContent | None = None


_line_decoder = msgspec.json.Decoder(StoredEnvelope)


def topic_of(event: Event) -> str:
    """The topic to store; an event that was read back as unknown keeps its own."""
    return event.topic if isinstance(event, UnknownEvent) else _topic_of_type(type(event))


@functools.lru_cache(maxsize=1024)
def _topic_of_type(kind: type[Event]) -> str:
    return kind.topic_of()


class _BareMessage(msgspec.Struct):
    role: str
    id: str | None
    content: tuple[()] = ()


class _BareAppended(msgspec.Struct, tag=SessionMessageAppended.topic_of()):
    """A `SessionMessageAppended` as it is stored."""

    position: int
    message: _BareMessage


_STORED_OTHERWISE = (SessionMessageAppended, SessionConfigured, ToolProgress, UnknownEvent)
"""Of these not all is stored, or not as it is."""


def encode_event(event: Event) -> bytes:
    """The JSON of an event, without any content."""
    stored: msgspec.Struct = event
    if isinstance(event, _STORED_OTHERWISE):
        if isinstance(event, UnknownEvent):
            return bytes(event.raw)
        stored = _without_content(event)
    return with_schema(_encode(stored, event), event.SCHEMA)


def _without_content(event: SessionMessageAppended | SessionConfigured | ToolProgress) -> msgspec.Struct:
    match event:
        case SessionMessageAppended():
            return _BareAppended(event.position, _BareMessage(event.message.role, event.message.id))
        case SessionConfigured():
            return SessionConfigured(history=event.history, begins=event.begins)
        case ToolProgress():
            return msgspec.structs.replace(event, message=None)


def _encode(stored: msgspec.Struct, event: Event) -> bytes:
    try:
        return _as_text(_encoder.encode(stored))
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        return _encode_the_hard_way(stored, topic_of(event), error)


def _as_text(encoded: bytes) -> bytes:
    # A provider's usage object is kept as it came, and may hold bytes that are no text.
    return encoded if encoded.isascii() else encoded.decode("utf-8", "replace").encode()


def _encode_the_hard_way(stored: msgspec.Struct, topic: str, error: Exception) -> bytes:
    # Half a surrogate pair, as a broken tokenizer may yield, is the likely reason: standard JSON can escape it.
    try:
        return json.dumps(msgspec.to_builtins(stored)).encode("ascii")
    except Exception:
        note = f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
        return _encoder.encode({"type": topic, "unstorable": note})


def decode_event(topic: str, data: bytes | str) -> Event:
    """The event behind stored text; an `UnknownEvent` if this version can't read it."""
    try:
        current = in_current_form(topic, data, _SCHEMAS.get(topic, 1))
        try:
            return _decoder().decode(current)
        except (msgspec.DecodeError, ValueError):
            return _decode_with_raw_usage(current)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):  # the latter two out of an upcast
        raw = data.encode() if isinstance(data, str) else data
        return UnknownEvent(topic=topic, raw=msgspec.Raw(raw))


def decode_as(kind: type[EventT], event: UnknownEvent) -> EventT | UnknownEvent:
    """An event of a host's own type, read back as unknown; as it was if it doesn't fit that type."""
    try:
        return msgspec.json.decode(in_current_form(event.topic, bytes(event.raw), kind.SCHEMA), type=kind)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):
        return event


class _RawUsage(msgspec.Struct):
    raw: msgspec.Raw


class _OfUsage(msgspec.Struct):
    usage: _RawUsage


def _decode_with_raw_usage(data: bytes | str) -> Event:
    """An event with the provider's own usage object; msgspec reads nothing but null into ``Raw | None``."""
    raw = _of_usage.decode(data).usage.raw
    fields = msgspec.json.decode(data)
    fields["usage"]["raw"] = None
    event = msgspec.convert(fields, LlmCallCompleted | LlmCallFailed)
    assert event.usage is not None
    usage = msgspec.structs.replace(event.usage, raw=raw.copy())
    return msgspec.structs.replace(event, usage=usage)


_of_usage: msgspec.json.Decoder[_OfUsage] = msgspec.json.Decoder(_OfUsage)


def storable_text(value: str) -> str:
    """Half a surrogate pair, which SQLite doesn't take, becomes a question mark."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def encode_line(envelope: Envelope) -> bytes:
    """An envelope as one line of JSON, newline included."""
    event = envelope.data
    stored = StoredEnvelope(
        seq=envelope.seq,
        run_id=envelope.run_id,
        ts_us=envelope.ts_us,
        mono_ns=envelope.mono_ns,
        topic=topic_of(event),
        data=msgspec.Raw(encode_event(event).replace(b"\n", b" ")),  # between values; in a text it is escaped
        session_id=envelope.session_id,
        turn_id=envelope.turn_id,
        request_id=envelope.request_id,
        attempt=envelope.attempt,
        message_id=envelope.message_id,
        caused_by=envelope.caused_by,
        tags=envelope.tags,
        content=_spilled(event) if isinstance(event, CapturedMessage | CapturedSetup) else None,
    )
    try:
        return _encoder.encode(stored) + b"\n"
    except UnicodeError:
        return _encode_line_the_hard_way(stored)


def encode_lines(envelopes: Sequence[Envelope]) -> bytes:
    """A line for each, which `decode_line` reads as it reads those of `encode_line`.

    Nearly all are encoded in one pass, just as they are: somebody waits for it with an answer in hand.
    """
    try:
        lines = _as_text(_encoder.encode_lines([_line_of(envelope) for envelope in envelopes]))
        if lines.count(b"\n") == len(envelopes):  # what came from a provider as it was may hold line breaks
            return lines
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError):
        pass  # one of them needs care, and has it below
    return b"".join(map(encode_line, envelopes))


def _line_of(envelope: Envelope) -> Envelope | msgspec.Raw:
    """What is encoded as an envelope's line."""
    event = envelope.data
    if _is_stored_as_it_is(type(event)):
        return envelope
    if type(event) is SessionMessageAppended:  # two in every turn
        return msgspec.structs.replace(envelope, data=_without_content(event))
    return msgspec.Raw(encode_line(envelope)[:-1])


@functools.lru_cache(maxsize=1024)
def _is_stored_as_it_is(kind: type[Event]) -> bool:
    config = kind.__struct_config__
    says_its_topic = config.tag_field == "type" and not config.array_like
    return says_its_topic and kind.SCHEMA == 1 and not issubclass(kind, _STORED_OTHERWISE)


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
        return None  # the store could not have taken it either; the event itself goes on


def _decode_line_the_hard_way(line: bytes) -> StoredEnvelope:
    # Only standard JSON reads escaped half surrogate pairs. What is passed on is text that has them escaped again.
    try:
        fields = json.loads(line)
        fields["data"] = msgspec.Raw(json.dumps(fields["data"]))
        content = fields.get("content") or {}
        for part in {"message", "metadata", "setup"} & content.keys():
            content[part] = msgspec.Raw(json.dumps(content[part]))
        return msgspec.convert(fields, StoredEnvelope)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


class _Said(msgspec.Struct):
    type: str


def _said_topic(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_Said).type
    except msgspec.DecodeError as error:
        raise ValueError(f"an event without a topic: {error}") from error


def decode_line(line: bytes) -> Envelope:
    """The envelope behind a line. Raises ValueError if the line is torn or is none of ours."""
    try:
        stored = _line_decoder.decode(line)
    except msgspec.DecodeError:
        stored = _decode_line_the_hard_way(line)
    encoded = bytes(stored.data)
    data = decode_event(stored.topic or _said_topic(encoded), encoded)
    if stored.content is not None:
        match data:
            case SessionMessageAppended() | SessionConfigured():
                data = unspilled(data, stored.content)
            case _:
                pass
    return Envelope(
        seq=stored.seq,
        run_id=stored.run_id,
        ts_us=stored.ts_us,
        mono_ns=stored.mono_ns,
        data=data,
        session_id=stored.session_id,
        turn_id=stored.turn_id,
        request_id=stored.request_id,
        attempt=stored.attempt,
        message_id=stored.message_id,
        caused_by=stored.caused_by,
        tags=stored.tags,
    )
