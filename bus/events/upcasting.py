"""Old forms of stored events, brought to today's.

Fields that are added need nothing here: they have defaults. Where that is not enough, the event's class counts its
`SCHEMA` up, and ``upcast[topic, n]`` turns the fields of form n into those of form n + 1. Stored text is never
rewritten; it is brought up as it is read. The number stands in an event's JSON under ``@schema``, which can be no
field's name. Without it the form is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ..values.json import JsonObject

Upcast: TypeAlias = Callable[[JsonObject], JsonObject]

upcast: dict[tuple[str, int], Upcast] = {}
"""By topic and old number. A host adds those of its own events."""

_KEY = "@schema"
_OPENING = b'{"@schema":'
_decoder: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(JsonObject)


def with_schema(encoded: bytes, schema: int) -> bytes:
    """The JSON object of an event, with the number of its form if that isn't 1."""
    return encoded if schema == 1 else b"%b%d,%b" % (_OPENING, schema, encoded[1:])


def in_current_form(topic: str, data: bytes | str, schema: int) -> bytes | str:
    """The JSON of an event as `schema` has it. Raises ValueError for a form that is newer than that."""
    if schema == 1 and not _says_its_form(data):
        return data
    fields = _decoder.decode(data)
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
