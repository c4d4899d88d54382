"""What is made of a reply: its text, an object, a block of code, or all that is known of it as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from callboard.bus.values.json import Json
from callboard.engine import Reply

from ..common.harmless import harmless
from ..common.output import json_text
from .code_blocks import Which, extracted

if TYPE_CHECKING:
    from callboard.engine.objects.schema import ObjectSchema


def wanted_text(reply: Reply, schema: ObjectSchema[Json] | None, extract: Which | None, *, as_json: bool) -> str:
    """The text to write for a reply that has ended.

    Args:
        reply: The reply.
        schema: The schema that it is to follow.
        extract: The block of code that is wanted.
        as_json: Whether usage and cost are wanted, too, as one JSON object.

    Raises:
        ValueError: The reply is not what was wanted; the text says why.
    """
    if schema is not None:
        value = _read(reply.text, schema)
        if as_json:
            return json_text({"output": value, **reply.to_dict()})
        return json_text(value) if not sys.stdout.isatty() else _in_lines(value)
    if as_json:
        return json_text(reply.to_dict())
    if extract is None:
        return reply.text
    block = extracted(reply.text, extract)
    if block is None:
        raise ValueError("there is no block of code in the reply")
    return block


def _read(text: str, schema: ObjectSchema[Json]) -> Json:
    from callboard.engine.objects.reply import read_json

    try:
        return schema.read(read_json(text))
    except ValueError as error:
        raise ValueError(f"the reply doesn't follow the schema: {error}") from error


def _in_lines(value: Json) -> str:
    return msgspec.json.format(json_text(value), indent=2)


def note_text(text: str) -> None:
    """Write a reply of several lines to stderr, because it is not what stdout is for."""
    if text:
        sys.stderr.write(harmless(text).rstrip("\n") + "\n")
