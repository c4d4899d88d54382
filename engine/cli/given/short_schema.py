"""A JSON Schema as a person gives it: a file, the schema itself, or a short form.

    name, age int, born date, nick? str, tags str[], bio: what they are known for
    [name, age int]                                     a list of such objects

Fields stand between commas, or one on a line. A field is a name, then its type (text if there is none), then a
colon and what it means. A question mark after the name says that it may be missing. Pure but for reading the file.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.values.json import Json, JsonObject

TYPES: dict[str, JsonObject] = {
    "str": {"type": "string"},
    "string": {"type": "string"},
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}
"""The types that a field may have, by their names."""

_FIELD = re.compile(
    r"(?P<name>[A-Za-z_][\w-]*)(?P<optional>\?)?(?:\s+(?P<type>[A-Za-z]+)(?P<list>\[\])?)?\s*(?::\s*(?P<says>.*))?"
)


def schema_of(given: str) -> JsonObject:
    """The schema that a person gives.

    Args:
        given: The path of a ``.json`` file, a JSON Schema, or the short form.

    Raises:
        ConfigurationError: It is none of these; the text says what is wrong.
    """
    text = given.strip()
    if text.endswith(".json") and "\n" not in text:
        return _of_json(_read(Path(text)), text)
    return _of_json(text, "--schema") if text.startswith("{") else of_short_form(text)


def of_short_form(text: str) -> JsonObject:
    """The schema of a short form.

    Raises:
        ConfigurationError: A field can't be read.
    """
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        return {"type": "array", "items": _object(stripped[1:-1])}
    return _object(stripped)


def _object(text: str) -> JsonObject:
    parts = [part.strip() for part in (text.splitlines() if "\n" in text.strip() else text.split(","))]
    fields = [_field(part.removesuffix(",")) for part in parts if part]
    if not fields:
        raise ConfigurationError("the schema has no field: say it such as 'name, age int'")
    return {
        "type": "object",
        "properties": {name: schema for name, schema, _ in fields},
        "required": [name for name, _, required in fields if required],
        "additionalProperties": False,
    }


def _field(text: str) -> tuple[str, JsonObject, bool]:
    """A field's name, its schema, and whether it is required."""
    found = _FIELD.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text!r} is no field of a schema such as 'age int: in years'")
    schema = TYPES.get((found["type"] or "str").lower())
    if schema is None:
        raise ConfigurationError(f"{found['type']!r} is no type of a field: {', '.join(TYPES)} are")
    if found["list"]:
        schema = {"type": "array", "items": schema}
    if found["says"]:
        schema = {**schema, "description": found["says"].strip()}
    return found["name"], schema, not found["optional"]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _of_json(text: str, where: str) -> JsonObject:
    try:
        schema: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigurationError(f"{where} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigurationError(f"{where} is no JSON Schema: that is an object")
    return schema
