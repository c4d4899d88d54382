"""The fields of a part, of a request or a reply: which say of what kind it is, and which are said of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.bus.values.json import Json, JsonObject

from .. import wire
from . import continuation

NOTHING: JsonObject = {}
"""What is said of most parts. Nobody writes to it."""

OF_TEXT = ("partMetadata", "speechMetadata")
"""What may be said of a text or a call of the model's."""

OF_A_PART = (
    *OF_TEXT, "videoMetadata", "mediaResolution", "mediaProcessing", "audioMetadata", "documentMetadata",
    "spreadsheetMetadata",
)  # fmt: skip
"""What a host may say of a part, in the `provider_raw` of its block."""

SIBLINGS = frozenset(("text", "thought", "thoughtSignature", "functionCall", *OF_A_PART))
"""A part's fields that don't say of what kind it is."""

REPLY_KINDS = ("citationMetadata", "groundingMetadata", "urlContextMetadata", "logprobsResult", continuation.KIND)
"""Opaque blocks that are no parts: about the whole reply, and never sent back."""

SIGNATURE_KIND = "thoughtSignature"
"""The kind of an opaque block whose part holds a signature alone."""


def said_of(part: wire.Part) -> JsonObject:
    """What is said of a text, a thought or a call beside it."""
    said = {"partMetadata": part.partMetadata, "speechMetadata": part.speechMetadata}
    return {name: wire.decode_json(raw) for name, raw in said.items() if raw != wire.ABSENT}


def has_others(parts: Sequence[wire.Part]) -> bool:
    """Whether a part is neither text nor a call."""
    for part in parts:  # noqa: SIM110  (a generator costs more than the loop, and this is done for every delta)
        if part.text is None and part.functionCall is None:
            return True
    return False


def raw_parts(data: bytes) -> Sequence[Json]:
    """The first candidate's parts as plain JSON."""
    value = wire.decode_json(data)
    candidates = value.get("candidates") if isinstance(value, dict) else None
    for one in candidates if isinstance(candidates, list) else ():
        if isinstance(one, dict) and one.get("index") in (None, 0) and isinstance(one.get("content"), dict):
            parts = one["content"].get("parts")
            return parts if isinstance(parts, list) else ()
    return ()
