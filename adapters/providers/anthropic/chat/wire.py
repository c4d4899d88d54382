"""The fields of the Messages API that are read here: as few as possible, and any of them may be missing or null.

A field that only some replies need is taken as `object` or left as raw JSON, and is examined where it is used. So
an odd value in one field never costs a reply. Content blocks stay plain JSON objects, because their kinds are
open-ended. Blocks outside our catalogue are kept word for word.

The garbage collector doesn't track these structs (gc=False), as it tracks no struct of our wires. They live for
one event and can't refer to themselves, and a collection costs more than their decoding.

This is version 2023-06-01 of the API.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json

VERSION = "2023-06-01"
PATH = "/v1/messages"

CONTAINER = "container"
"""Our name for the opaque block that keeps in which container a reply's tools run. It is no block on the wire."""

FALLBACK = "fallback"
"""The type of the block where a model declined and another went on."""

ABSENT = msgspec.Raw(b"null")
"""Stands for a raw field that was not sent; the same as one that was sent as null."""


class Reply(msgspec.Struct, gc=False):
    """A whole message, or the `message` of a `message_start`. Also an error's body, which has `error` instead."""

    type: object = None
    id: object = None
    model: object = None
    content: list[Json] | None = None
    stop_reason: object = None
    stop_sequence: Json = None
    stop_details: Json = None
    container: Json = None
    context_management: Json = None
    input_transformations: Json = None
    diagnostics: Json = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Delta(msgspec.Struct, gc=False):
    """The `delta` of a `content_block_delta` or a `message_delta`; which fields are set depends on `type`."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: Json = None
    stop_reason: object = None
    stop_sequence: Json = None
    stop_details: Json = None
    container: Json = None


class Event(msgspec.Struct, gc=False):
    """One event of a streamed reply, of any type."""

    type: str | None = None
    index: int | float | None = None
    delta: Delta | None = None
    content_block: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    context_management: Json = None
    input_transformations: Json = None
    error: msgspec.Raw = ABSENT


class EventType(msgspec.Struct, gc=False):
    """No more than an event's type and its delta, for events that can't be read as `Event`."""

    type: object = None
    delta: Json = None


class BlockDelta(msgspec.Struct, gc=False):
    """A delta as it came, for blocks that are kept word for word."""

    delta: Json = None


decode_reply = msgspec.json.Decoder(Reply).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_event_type = msgspec.json.Decoder(EventType).decode
decode_block_delta = msgspec.json.Decoder(BlockDelta).decode
decode_json = msgspec.json.Decoder(Json).decode
