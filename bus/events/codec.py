"""The catalogue of events, and events as JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from ..values.base import JsonObject
from ..values.messages import MessageMetadata
from .calls import (
    BatchCompleted,
    BatchPartEnded,
    BatchPlanned,
    BatchProgress,
    BatchSubmitted,
    BatchSubmitting,
    JobCompleted,
    JobCreated,
    JobFailed,
    JobProgress,
    LlmCallAccepted,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallGuarded,
    LlmCallStarted,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from .envelope import Envelope, Event, UnknownEvent
from .operation import (
    ActorCrashed,
    ActorEscalated,
    ActorRestarted,
    ActorStarted,
    ActorStopped,
    BudgetLow,
    BudgetRefused,
    BudgetReserved,
    BudgetSettled,
    ConfigReloaded,
    NodeBrokerChanged,
    NodeLeaseChanged,
    NodeLimitsChanged,
    PricingProgress,
    PricingRepriced,
    PricingTableLoaded,
    ProviderAvailabilityChanged,
    SessionClaimed,
    SessionLost,
    StoreShippingChanged,
    StoreStateChanged,
)
from .sessions import (
    SessionConfigured,
    SessionCreated,
    SessionMessageAppended,
    SessionModelChanged,
    SessionRenamed,
    SessionTurnCompleted,
    SessionTurnStarted,
)

# -- The event catalogue: every event that Callboard itself publishes
#
# An event's topic is its tag. Fields are only ever added, with defaults; a changed meaning is a new topic. Where a
# stored event needs more than a default to be read today, its class counts its `SCHEMA` up, and the trace store's
# `upcast` says how the old form becomes the new one. No event of `llm.*` carries message content: content travels
# in `session.message_appended`, by reference, and is persisted only if the host asks for it.


CatalogueEvent: TypeAlias = (
    LlmCallStarted
    | LlmCallAccepted
    | LlmCallGuarded
    | LlmCallCompleted
    | LlmCallFailed
    | ActorStarted
    | ActorCrashed
    | ActorRestarted
    | ActorStopped
    | ActorEscalated
    | ProviderAvailabilityChanged
    | ConfigReloaded
    | SessionCreated
    | SessionConfigured
    | SessionModelChanged
    | SessionRenamed
    | SessionTurnStarted
    | SessionTurnCompleted
    | SessionMessageAppended
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | JobCreated
    | JobProgress
    | JobCompleted
    | JobFailed
    | BatchPlanned
    | BatchSubmitting
    | BatchSubmitted
    | BatchProgress
    | BatchPartEnded
    | BatchCompleted
    | PricingTableLoaded
    | PricingProgress
    | PricingRepriced
    | BudgetReserved
    | BudgetSettled
    | BudgetRefused
    | BudgetLow
    | NodeBrokerChanged
    | NodeLimitsChanged
    | NodeLeaseChanged
    | SessionClaimed
    | SessionLost
    | StoreShippingChanged
    | StoreStateChanged
)
"""Every event of the bus that Callboard itself publishes."""


# -- Old forms of stored events, brought to today's
#
# Fields that are added need nothing here: they have defaults. Where that is not enough, the event's class counts
# its `SCHEMA` up, and ``upcast[topic, n]`` turns the fields of form n into those of form n + 1. Stored text is
# never rewritten; it is brought up as it is read. The number stands in an event's JSON under ``@schema``, which
# can be no field's name. Without it the form is 1.


Upcast: TypeAlias = Callable[[JsonObject], JsonObject]

upcast: dict[tuple[str, int], Upcast] = {}
"""By topic and old number. A host adds those of its own events."""

_KEY = "@schema"
_OPENING = b'{"@schema":'
_fields_decoder: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(JsonObject)


def with_schema(encoded: bytes, schema: int) -> bytes:
    """The JSON object of an event, with the number of its form if that isn't 1."""
    return encoded if schema == 1 else b"%b%d,%b" % (_OPENING, schema, encoded[1:])


def in_current_form(topic: str, data: bytes | str, schema: int) -> bytes | str:
    """The JSON of an event as `schema` has it. Raises ValueError for a form that is newer than that."""
    if schema == 1 and not _says_its_form(data):
        return data
    fields = _fields_decoder.decode(data)
    number = fields.pop(_KEY, 1)
    if not isinstance(number, int) or not 1 <= number <= schema:
        raise ValueError(f"{topic} of form {number!r}: this version reads forms up to {schema}")
    for old in range(number, schema):
        step = upcast.get((topic, old))
        if step is not None:
            fields = step(fields)
    return msgspec.json.encode(fields)


def _says_its_form(data: bytes | str) -> bool:
    return data.startswith(_OPENING) if isinstance(data, bytes) else data.startswith(_OPENING.decode())


# -- Events and envelopes as JSON, and back: for a trace, for another process, or for a file
#
# Reading an event never fails. An event of a topic that this version doesn't know, or with data that doesn't fit
# the topic, comes back as an `UnknownEvent` with its text. Writing never fails either: an event that can't be
# encoded becomes a note that says so, because one bad event of a host's own must not stop everything behind it.


_encoder = msgspec.json.Encoder()
_SCHEMAS = {kind.topic_of(): kind.SCHEMA for kind in get_args(CatalogueEvent)}

EventT = TypeVar("EventT", bound=Event)


@functools.cache
def _event_decoder() -> msgspec.json.Decoder[CatalogueEvent]:
    return msgspec.json.Decoder(CatalogueEvent)  # 3 ms, for whoever reads events


# -- Events


def topic_of(event: Event) -> str:
    """The topic of an event. An event that was read back as unknown keeps its own."""
    return event.topic if isinstance(event, UnknownEvent) else _topic_of_type(type(event))


@functools.lru_cache(maxsize=1024)
def _topic_of_type(kind: type[Event]) -> str:
    return kind.topic_of()


def encode_event(event: Event) -> bytes:
    """The JSON of an event, content included."""
    return bytes(event.raw) if isinstance(event, UnknownEvent) else encode_part(event, event)


def encode_part(part: msgspec.Struct, event: Event) -> bytes:
    """The JSON of the part of an event that is to be written, with the number of the event's form."""
    try:
        encoded = _encoder.encode(part)
        if not encoded.isascii():
            encoded = as_text(encoded)
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        encoded = _encode_the_hard_way(part, topic_of(event), error)
    return encoded if event.SCHEMA == 1 else with_schema(encoded, event.SCHEMA)


def as_text(encoded: bytes) -> bytes:
    """Encoded JSON as text: a provider's usage object is kept as it came, and may hold bytes that are no text."""
    return encoded if encoded.isascii() else encoded.decode("utf-8", "replace").encode()


def _encode_the_hard_way(part: msgspec.Struct, topic: str, error: Exception) -> bytes:
    # Half a surrogate pair, as a broken tokenizer may yield, is the likely reason: standard JSON can escape it.
    try:
        return json.dumps(msgspec.to_builtins(part)).encode("ascii")
    except Exception:
        note = f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
        return _encoder.encode({"type": topic, "unstorable": note})


def decode_event(topic: str, data: bytes | str) -> Event:
    """The event behind its JSON; an `UnknownEvent` if this version can't read it."""
    try:
        current = in_current_form(topic, data, _SCHEMAS.get(topic, 1))
        if topic in _ENDS and (end := _decode_end(current)) is not None:
            return end
        try:
            return _event_decoder().decode(current)
        except (msgspec.DecodeError, ValueError):
            return _decode_with_raw_usage(current)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):  # the latter two out of an upcast
        raw = data.encode() if isinstance(data, str) else data
        return UnknownEvent(topic=topic, raw=msgspec.Raw(raw))


def decode_as(kind: type[EventT], event: UnknownEvent) -> EventT | UnknownEvent:
    """An event of a host's own type that was read back as unknown; unchanged if it doesn't fit that type."""
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
    """An event with the provider's own usage object; msgspec reads nothing but null into ``Raw | None``."""
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
    """The end of a call with such an object, the quick way; None if there is none, or its JSON isn't as usual."""
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
    """The thing, which was just decoded and is nobody else's yet, with the usage object in it."""
    assert thing.usage is not None
    msgspec.structs.force_setattr(thing.usage, "raw", raw.copy())
    return thing


# -- Envelopes


class EncodedEnvelope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An envelope with its event still encoded. The fields are those of `Envelope`, and the event's topic."""

    seq: int
    """As in `Envelope`."""
    run_id: str
    """As in `Envelope`."""
    ts_us: int
    """As in `Envelope`."""
    mono_ns: int
    """As in `Envelope`."""
    topic: str | None = None
    """The topic of the event; None where the event's own ``type`` says it."""
    data: msgspec.Raw
    """The JSON of the event."""
    session_id: str | None = None
    """As in `Envelope`."""
    turn_id: str | None = None
    """As in `Envelope`."""
    request_id: str | None = None
    """As in `Envelope`."""
    attempt: int | None = None
    """As in `Envelope`."""
    message_id: str | None = None
    """As in `Envelope`."""
    caused_by: str | None = None
    """As in `Envelope`."""
    tags: dict[str, str] | None = None
    """As in `Envelope`."""

    def decoded(self) -> Envelope:
        """The envelope with its event. Raises ValueError if nothing says the event's topic."""
        encoded = bytes(self.data)
        event = decode_event(self.topic or _said_topic(encoded), encoded)
        return Envelope(data=event, **{name: getattr(self, name) for name in _SHARED})


_SHARED = tuple(name for name in Envelope.__struct_fields__ if name != "data")
_envelope_decoder = msgspec.json.Decoder(EncodedEnvelope)


class _Said(msgspec.Struct):
    type: str


def _said_topic(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_Said).type
    except msgspec.DecodeError as error:
        raise ValueError(f"an event without a topic: {error}") from error


def fields_of(envelope: Envelope) -> dict[str, Any]:
    """The fields of an envelope but for its event, and the event's topic."""
    return {"topic": topic_of(envelope.data), **{name: getattr(envelope, name) for name in _SHARED}}


def encode_envelope(envelope: Envelope) -> bytes:
    """An envelope as one JSON object without line breaks, the event's content included."""
    data = encode_event(envelope.data).replace(b"\n", b" ")  # between values; in a text it is escaped
    fields = {name: value for name, value in fields_of(envelope).items() if value is not None}
    try:
        return _encoder.encode(fields | {"data": msgspec.Raw(data)})
    except UnicodeError:  # half a surrogate pair, which standard JSON can escape
        return json.dumps(fields | {"data": json.loads(data)}).encode()


def decode_envelope(data: bytes | str) -> Envelope:
    """The envelope behind its JSON.

    Raises:
        ValueError: The text is no envelope, or was cut short.
    """
    try:
        return _envelope_decoder.decode(data).decoded()
    except msgspec.DecodeError:
        try:  # only standard JSON reads escaped half surrogate pairs
            fields = json.loads(data)
            fields["data"] = msgspec.Raw(json.dumps(fields["data"]))
            return msgspec.convert(fields, EncodedEnvelope).decoded()
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from error
