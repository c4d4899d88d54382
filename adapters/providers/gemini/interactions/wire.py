"""The fields of the Interactions API that are read here: as few as possible, and any may be missing or null.

A whole reply is an Interaction with its steps. A stream is events with an ``event_type``, in which steps begin,
grow and stop. A step may be of any kind, and is read as plain JSON.

This is revision 2026-05-20 of the API, which brought the steps. The names are those of the API.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json

REVISION = "2026-05-20"
ABSENT = msgspec.Raw(b"null")
"""Stands for a raw field that was not sent; the same as one that was sent as null."""


class Interaction(msgspec.Struct, gc=False):
    """A reply, or as much of one as an event tells."""

    id: object = None
    model: object = None
    status: object = None
    steps: list[Json] | None = None
    usage: msgspec.Raw = ABSENT
    service_tier: object = None
    error: msgspec.Raw = ABSENT
    errors: msgspec.Raw = ABSENT
    continuation_token: msgspec.Raw = ABSENT
    environment_id: msgspec.Raw = ABSENT
    created: msgspec.Raw = ABSENT
    updated: msgspec.Raw = ABSENT


class Delta(msgspec.Struct, gc=False):
    """More of a step. `content` is a piece of a thought's summary; `arguments` is a fragment of JSON text."""

    type: object = None
    text: str | None = None
    content: Json = None
    signature: str | None = None
    arguments: Json = None
    annotations: list[Json] | None = None


class Event(msgspec.Struct, gc=False):
    """An event of a stream."""

    event_type: str | None = None
    index: int | float | None = None
    delta: Delta | None = None
    step: msgspec.Raw = ABSENT
    interaction: msgspec.Raw = ABSENT
    status: object = None
    usage: msgspec.Raw = ABSENT
    continuation_token: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _DeltaOf(msgspec.Struct, gc=False):
    delta: dict[str, Json] | None = None


class ModalityTokens(msgspec.Struct, gc=False):
    """Tokens of one modality."""

    modality: object = None
    tokens: object = None


class GroundingCount(msgspec.Struct, gc=False):
    """How often a tool of the provider's was used that is billed by use."""

    type: object = None
    count: object = None


class Usage(msgspec.Struct, gc=False):
    """Token counts. The input includes what was read from a cache; thoughts are counted beside the output."""

    total_input_tokens: object = None
    total_cached_tokens: object = None
    total_output_tokens: object = None
    total_thought_tokens: object = None
    total_tool_use_tokens: object = None
    input_tokens_by_modality: list[ModalityTokens] | None = None
    cached_tokens_by_modality: list[ModalityTokens] | None = None
    output_tokens_by_modality: list[ModalityTokens] | None = None
    grounding_tool_count: list[GroundingCount] | None = None


decode_interaction = msgspec.json.Decoder(Interaction).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_delta = msgspec.json.Decoder(_DeltaOf).decode
decode_usage = msgspec.json.Decoder(Usage | None).decode
decode_json = msgspec.json.Decoder(Json).decode
