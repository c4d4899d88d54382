"""Text that PostgreSQL takes: without the character NUL, which no text can have there, nor its escape in JSON."""

from __future__ import annotations

import re

import msgspec

from callboard.bus.events.envelope import Envelope

from ..codec import storable_text

_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    """The text with a replacement character for each NUL, and a question mark for half a surrogate pair."""
    return _ESCAPED_NUL.sub(rf"\1{_REPLACEMENT}", storable_text(text).replace("\0", _REPLACEMENT))


def clean_envelope(envelope: Envelope) -> Envelope:
    """The envelope with such names and tags. Its event stays as it is; its JSON has no NUL."""
    changes: dict[str, object] = {
        name: clean_text(value)
        for name in envelope.__struct_fields__
        if isinstance(value := getattr(envelope, name), str)
    }
    if envelope.tags:
        changes["tags"] = {clean_text(tag): clean_text(value) for tag, value in envelope.tags.items()}
    return msgspec.structs.replace(envelope, **changes)
