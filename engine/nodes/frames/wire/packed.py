"""Events and messages as JSON, and back, so that they come out exactly as they went in.

Two things can't stand in the JSON itself. A provider's usage object is kept as it came and may be no text, so it
travels beside it. Half a surrogate pair, as a broken tokenizer may yield, is no UTF-8: then the text is written
with the surrogates as they are, and read the same way.
"""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar

import msgspec

from callboard.bus import Message
from callboard.bus.events.envelope import UnknownEvent
from callboard.bus.streams.events import MessageComplete, StepFinish, TurnEvent
from callboard.bus.values.usage import TokenUsage

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event or a message."""

    json: bytes
    """Its JSON, without the provider's usage object."""
    usage: bytes | None = None
    """The provider's usage object as it came; None where there is none."""


def pack_event(event: TurnEvent) -> Packed:
    """An event of a turn's stream. An event that no JSON can say becomes a note of its type."""
    raw: msgspec.Raw | None = None
    if isinstance(event, MessageComplete | StepFinish) and event.usage.raw is not None:
        raw, usage = event.usage.raw, _without_raw(event.usage)
        event = msgspec.structs.replace(event, usage=usage)
    try:
        return Packed(_as_json(event), None if raw is None else bytes(raw))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Packed(_encoder.encode({"type": event.type, "unsendable": type(error).__name__}))


def unpack_event(packed: Packed) -> TurnEvent | UnknownEvent:
    """The event. One that this version doesn't know is an UnknownEvent, so that every event keeps its number."""
    try:
        event = _from_json(packed.json, _event_decoder())
    except (ValueError, TypeError, RecursionError):
        return UnknownEvent(topic=_type_in(packed.json), raw=msgspec.Raw(packed.json))
    if packed.usage is not None and isinstance(event, MessageComplete | StepFinish):
        return msgspec.structs.replace(event, usage=_with_raw(event.usage, packed.usage))
    return event


def pack_message(message: Message) -> Packed:
    """A message of a conversation.

    Raises:
        ValueError: No JSON can say it.
        TypeError: The same.
    """
    metadata = message.metadata
    if metadata is None or metadata.usage.raw is None:
        return Packed(_as_json(message))
    raw = bytes(metadata.usage.raw)
    metadata = msgspec.structs.replace(metadata, usage=_without_raw(metadata.usage))
    return Packed(_as_json(msgspec.structs.replace(message, metadata=metadata)), raw)


def unpack_message(packed: Packed) -> Message:
    """The message.

    Raises:
        ValueError: This version can't read it.
    """
    message = _from_json(packed.json, _message_decoder())
    if packed.usage is None or message.metadata is None:
        return message
    metadata = msgspec.structs.replace(message.metadata, usage=_with_raw(message.metadata.usage, packed.usage))
    return msgspec.structs.replace(message, metadata=metadata)


def text_bytes(text: str) -> bytes:
    """A text as bytes, also one that UTF-8 can't hold."""
    return text.encode("utf-8", "surrogatepass")


def text_of(encoded: bytes) -> str:
    """The text of `text_bytes`. Raises ValueError if it is none."""
    return encoded.decode("utf-8", "surrogatepass")


@functools.cache
def _event_decoder() -> msgspec.json.Decoder[TurnEvent]:
    return msgspec.json.Decoder(TurnEvent)


@functools.cache
def _message_decoder() -> msgspec.json.Decoder[Message]:
    return msgspec.json.Decoder(Message)


def _as_json(value: msgspec.Struct) -> bytes:
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair; a number that msgspec can't write
        return text_bytes(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def _from_json(encoded: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(encoded)
    except (UnicodeDecodeError, msgspec.DecodeError):
        fields: Any = json.loads(text_of(encoded))
        return msgspec.convert(fields, decoder.type)


def _without_raw(usage: TokenUsage) -> TokenUsage:
    return msgspec.structs.replace(usage, raw=None)


def _with_raw(usage: TokenUsage, raw: bytes) -> TokenUsage:
    return msgspec.structs.replace(usage, raw=msgspec.Raw(raw))


class _Typed(msgspec.Struct):
    type: str = "unknown"


def _type_in(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_Typed).type
    except (ValueError, RecursionError):
        return "unknown"
