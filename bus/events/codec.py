"""Event catalogue, and events and envelopes as JSON.

Reading an event never fails: an unknown topic, or data that doesn't fit, becomes an `UnknownEvent`. Writing never
fails either: an event that can't be encoded is replaced by its topic and the reason, so that later events are not
blocked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from ..values.base import JsonObject, as_utf8
from ..values.messages import MessageMetadata
from . import Envelope, Event, UnknownEvent, calls, operation, sessions
from .calls import LlmCallCompleted, LlmCallFailed
from .sessions import SessionMessageAppended

# --- Catalogue of events ---
#
# An event's topic is its tag. Later versions only add fields, with defaults. A changed meaning gets a new topic.
# No event of `llm.*` contains message content. `session.message_appended` refers to the message, which is stored
# only on request.


CatalogueEvent: TypeAlias = (
    calls.LlmCallStarted
    | calls.LlmCallAccepted
    | calls.LlmCallGuarded
    | calls.LlmCallImported
    | calls.LlmCallCompleted
    | calls.LlmCallFailed
    | operation.ActorStarted
    | operation.ActorCrashed
    | operation.ActorRestarted
    | operation.ActorStopped
    | operation.ActorEscalated
    | operation.ProviderAvailabilityChanged
    | operation.ConfigReloaded
    | sessions.SessionCreated
    | sessions.SessionConfigured
    | sessions.SessionModelChanged
    | sessions.SessionRenamed
    | sessions.SessionTurnStarted
    | sessions.SessionTurnCompleted
    | sessions.SessionMessageAppended
    | calls.ToolStarted
    | calls.ToolProgress
    | calls.ToolFinished
    | calls.JobCreated
    | calls.JobProgress
    | calls.JobCompleted
    | calls.JobFailed
    | calls.BatchPlanned
    | calls.BatchSubmitting
    | calls.BatchSubmitted
    | calls.BatchProgress
    | calls.BatchPartEnded
    | calls.BatchCompleted
    | operation.PricingTableLoaded
    | operation.PricingProgress
    | operation.PricingRepriced
    | operation.BudgetReserved
    | operation.BudgetSettled
    | operation.BudgetRefused
    | operation.BudgetLow
    | operation.NodeBrokerChanged
    | operation.NodeLimitsChanged
    | operation.NodeLeaseChanged
    | operation.SessionClaimed
    | operation.SessionLost
    | operation.StoreShippingChanged
    | operation.StoreStateChanged
)
"""Every event of the bus that Callboard itself publishes."""

CATALOGUE: tuple[type[Event], ...] = get_args(CatalogueEvent)
"""The types of `CatalogueEvent`."""


# --- Upcasts of stored events ---
#
# If the default of a new field does not fit old events, the event's class increments its `SCHEMA`. Then
# ``upcast[topic, n]`` converts the fields of version n to version n + 1. Stored text is never rewritten. The JSON
# contains the version under ``@schema``; no field can have this name. Without a number, the version is 1.


Upcast: TypeAlias = Callable[[JsonObject], JsonObject]

upcast: dict[tuple[str, int], Upcast] = {}
"""Upcasts by topic and old version. A host adds upcasts for its own events."""

_KEY = "@schema"
_OPENING = b'{"@schema":'
_fields_decoder: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(JsonObject)


def in_current_form(topic: str, data: bytes | str, schema: int) -> bytes | str:
    """Convert an event's JSON to the version `schema`. Raises ValueError for a newer version."""
    has_schema = data.startswith(_OPENING) if isinstance(data, bytes) else data.startswith(_OPENING.decode())
    if schema == 1 and not has_schema:
        return data
    fields = _fields_decoder.decode(data)
    number = fields.pop(_KEY, 1)
    if not isinstance(number, int) or not 1 <= number <= schema:
        raise ValueError(f"{topic} has schema {number!r}; this version reads schemas up to {schema}")
    for old in range(number, schema):
        step = upcast.get((topic, old))
        if step is not None:
            fields = step(fields)
    return msgspec.json.encode(fields)


# --- Encoding and decoding ---


_encoder = msgspec.json.Encoder()
_TOPICS = {kind: kind.topic_of() for kind in CATALOGUE}
_SCHEMAS = {topic: kind.SCHEMA for kind, topic in _TOPICS.items()}

EventT = TypeVar("EventT", bound=Event)


@functools.cache
def _event_decoder() -> msgspec.json.Decoder[CatalogueEvent]:
    return msgspec.json.Decoder(CatalogueEvent)  # takes 3 ms, so only on the first read


# --- Events ---


def topic_of(event: Event) -> str:
    """The topic of an event. An `UnknownEvent` keeps the topic that it was stored with."""
    kind = type(event)
    if kind in _TOPICS:
        return _TOPICS[kind]
    return event.topic if isinstance(event, UnknownEvent) else _topic_of_type(kind)


@functools.lru_cache(maxsize=1024)
def _topic_of_type(kind: type[Event]) -> str:
    return kind.topic_of()


def encode_event(event: Event) -> bytes:
    """The JSON of an event, content included."""
    return bytes(event.raw) if isinstance(event, UnknownEvent) else encode_part(event, event)


def encode_part(part: msgspec.Struct, event: Event) -> bytes:
    """Encode a part of an event as JSON, with the event's schema version."""
    try:
        encoded = _encoder.encode(part)
        if not encoded.isascii():
            encoded = as_utf8(encoded)
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        encoded = _encode_the_hard_way(part, topic_of(event), error)
    return encoded if event.SCHEMA == 1 else b"%b%d,%b" % (_OPENING, event.SCHEMA, encoded[1:])


def _encode_the_hard_way(part: msgspec.Struct, topic: str, error: Exception) -> bytes:
    # The likely reason is half a surrogate pair from a broken tokenizer. Python's json module can escape it.
    try:
        return json.dumps(msgspec.to_builtins(part)).encode("ascii")
    except Exception:
        note = f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
        return _encoder.encode({"type": topic, "unstorable": note})


def decode_event(topic: str, data: bytes | str) -> Event:
    """The event in a JSON text; an `UnknownEvent` if this version can't read it."""
    try:
        current = in_current_form(topic, data, _SCHEMAS.get(topic, 1))
        if topic in _ENDS and (end := _decode_end(current)) is not None:
            return end
        try:
            return _event_decoder().decode(current)
        except (msgspec.DecodeError, ValueError):
            return _decode_with_raw_usage(current)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):  # the last two are raised by an upcast
        raw = data.encode() if isinstance(data, str) else data
        return UnknownEvent(topic=topic, raw=msgspec.Raw(raw))


def decode_as(kind: type[EventT], event: UnknownEvent) -> EventT | UnknownEvent:
    """Decode an `UnknownEvent` as a host's own type. It is returned unchanged if its data doesn't fit that
    type.
    """
    try:
        return msgspec.json.decode(in_current_form(event.topic, bytes(event.raw), kind.SCHEMA), type=kind)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):
        return event


class _RawUsage(msgspec.Struct):
    raw: msgspec.Raw


class _OfUsage(msgspec.Struct):
    usage: _RawUsage


_of_usage = msgspec.json.Decoder(_OfUsage)


class _OfMetadata(msgspec.Struct):
    metadata: _OfUsage


class _OfMessage(msgspec.Struct):
    message: _OfMetadata


def _decode_with_raw_usage(data: bytes | str) -> Event:
    """Decode an event that has the provider's usage object. msgspec can decode only null into ``Raw | None``."""
    fields = msgspec.json.decode(data)
    if fields["type"] == SessionMessageAppended.topic_of():
        raw = msgspec.json.decode(data, type=_OfMessage).message.metadata.usage.raw
        fields["message"]["metadata"]["usage"]["raw"] = None
        appended = msgspec.convert(fields, SessionMessageAppended)
        assert appended.message.metadata is not None
        metadata = _with_raw(appended.message.metadata, raw)
        return msgspec.structs.replace(
            appended, message=msgspec.structs.replace(appended.message, metadata=metadata)
        )
    fields["usage"]["raw"] = None
    event = msgspec.convert(fields, LlmCallCompleted | LlmCallFailed)
    return _with_raw(event, msgspec.json.decode(data, type=_OfUsage).usage.raw)


def _decode_end(data: bytes | str) -> Event | None:
    """Decode an event with a usage object at the end of a call, fast. Return None if it has none or its JSON is
    unusual.
    """
    encoded = data.encode() if isinstance(data, str) else data
    if b'"raw":{' not in encoded:
        return None
    try:
        raw = _of_usage.decode(encoded).usage.raw
        before, found, after = encoded.partition(b'"raw":%b,' % bytes(raw))
        event = _event_decoder().decode(b'%b"raw":null,%b' % (before, after)) if found else None
    except msgspec.DecodeError:
        return None
    if isinstance(event, LlmCallCompleted):
        return _with_raw(event, raw)
    return _with_raw(event, raw) if isinstance(event, LlmCallFailed) else None


_ENDS = frozenset((LlmCallCompleted.topic_of(), LlmCallFailed.topic_of()))
_WithUsage = TypeVar("_WithUsage", LlmCallCompleted, LlmCallFailed, MessageMetadata)


def _with_raw(thing: _WithUsage, raw: msgspec.Raw) -> _WithUsage:
    """Put the usage object into a value that was just decoded and is not shared yet."""
    assert thing.usage is not None
    msgspec.structs.force_setattr(thing.usage, "raw", raw.copy())
    return thing


# --- Envelopes ---


class EncodedEnvelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An envelope with an encoded event. It has the fields of `Envelope`, and the event's topic."""

    seq: int
    run_id: str
    ts_us: int
    mono_ns: int
    topic: str | None = None
    """The topic of the event; None if the event's own ``type`` gives it."""
    data: msgspec.Raw
    """The JSON of the event."""
    session_id: str | None = None
    turn_id: str | None = None
    request_id: str | None = None
    attempt: int | None = None
    message_id: str | None = None
    caused_by: str | None = None
    tags: dict[str, str] | None = None

    def decoded(self) -> Envelope:
        """The envelope with its event. Raises ValueError if the topic is missing."""
        encoded = bytes(self.data)
        event = decode_event(self.topic or _topic_in(encoded), encoded)
        return Envelope(data=event, **{name: getattr(self, name) for name in _SHARED})


_SHARED = tuple(name for name in Envelope.__struct_fields__ if name != "data")
_envelope_decoder = msgspec.json.Decoder(EncodedEnvelope)


class _TypeField(msgspec.Struct):
    type: str


def _topic_in(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_TypeField).type
    except msgspec.DecodeError as error:
        raise ValueError(f"an event without a topic: {error}") from error


def fields_of(envelope: Envelope) -> dict[str, Any]:
    """The topic of an envelope's event, and the envelope's other fields by name. The event itself is left out."""
    return {"topic": topic_of(envelope.data), **{name: getattr(envelope, name) for name in _SHARED}}


def encode_envelope(envelope: Envelope) -> bytes:
    """An envelope as one JSON object without line breaks, the event's content included."""
    # line breaks occur only between values; in a string they are escaped
    data = encode_event(envelope.data).replace(b"\n", b" ")
    fields = {name: value for name, value in fields_of(envelope).items() if value is not None}
    try:
        return _encoder.encode(fields | {"data": msgspec.Raw(data)})
    except UnicodeError:  # half a surrogate pair, which Python's json module can escape
        return json.dumps(fields | {"data": json.loads(data)}).encode()


def decode_envelope(data: bytes | str) -> Envelope:
    """The envelope in a JSON text.

    Raises:
        ValueError: The text is not an envelope, or is incomplete.
    """
    try:
        return _envelope_decoder.decode(data).decoded()
    except msgspec.DecodeError:
        try:  # only Python's json module reads escaped half surrogate pairs
            fields = json.loads(data)
            fields["data"] = msgspec.Raw(json.dumps(fields["data"]))
            return msgspec.convert(fields, EncodedEnvelope).decoded()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from error
