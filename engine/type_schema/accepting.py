"""A quick check that a value follows a plain schema. The validator decides about all other values and schemas.

jsonschema takes 15 µs for an object with two fields, and as much for each object in a list. A schema of the
keywords below becomes functions that take one or two. These functions only ever say that a value is surely right.
jsonschema alone judges the values that they don't accept and writes the errors. It judges every value if the
schema has any other keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, TypeAlias

from callboard.bus.values.json import Json, JsonObject

Accepts: TypeAlias = Callable[[Any], bool]
"""Any: it is asked about values of one type, that of its place in a table by types."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SAY_NOTHING = {
    "$comment", "$defs", "default", "deprecated", "description", "examples", "format", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
"""Keywords that refuse no value. Formats are not checked. A schema with a reference is not plain."""

_PLAIN = {
    "$schema", "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems",
    "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip

_KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")


def accepting(schema: Json) -> Accepts | None:
    """A function that is true only of values that follow the schema; None if the schema is not plain."""
    if schema is True:
        return _anything
    if not isinstance(schema, dict) or not schema.keys() <= _SAY_NOTHING | _PLAIN:
        return None
    if schema.get("$schema", _DIALECT) != _DIALECT:
        return None
    named = schema.get("type", list(_KINDS))
    by_type: dict[type, Accepts] = {}
    for kind in _KINDS:  # a number is an integer, too, so it comes after that
        if kind == named or (isinstance(named, list) and kind in named):
            made = _of_kind(kind, schema)
            if made is None:
                return None
            by_type.update(made)
    if not _narrow(by_type, schema):
        return None

    def accepts(value: Json) -> bool:
        judge = by_type.get(type(value))
        return judge is not None and judge(value)

    return accepts


def _anything(value: object) -> bool:
    return True


def _of_kind(kind: str, schema: JsonObject) -> dict[type, Accepts] | None:
    """The functions for one of JSON's types, by the Python types of its values; None if the schema is not
    plain."""
    match kind:
        case "null":
            return {NoneType: _anything}
        case "boolean":
            return {bool: _anything}
        case "string":
            return {str: _sized(_bound(schema, "minLength"), _bound(schema, "maxLength"))}
        case "integer":
            within = _number(schema)
            return {int: within, float: lambda value: value.is_integer() and within(value)}
        case "number":
            return {int: _number(schema), float: _number(schema)}
        case "array":
            items = _array(schema)
            return None if items is None else {list: items}
        case _:
            fields = _object(schema)
            return None if fields is None else {dict: fields}


def _narrow(by_type: dict[type, Accepts], schema: JsonObject) -> bool:
    """Leave only the texts, and null, that are listed. False if anything else is, whose equality is less plain."""
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if listed is None:
        return True
    if not isinstance(listed, list) or not all(type(each) in (str, NoneType) for each in listed):
        return False
    if "enum" in schema and "const" in schema:
        return False
    texts = frozenset(each for each in listed if each is not None)
    text, null = by_type.get(str), by_type.get(NoneType)
    by_type.clear()
    if text is not None:
        by_type[str] = lambda value: value in texts and text(value)
    if null is not None and None in listed:
        by_type[NoneType] = null
    return True


def _number(schema: JsonObject) -> Accepts:
    low, above = _bound(schema, "minimum"), _bound(schema, "exclusiveMinimum")
    high, below = _bound(schema, "maximum"), _bound(schema, "exclusiveMaximum")
    if low is above is high is below is None:
        return _anything

    def within(value: float) -> bool:
        return (
            (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
            and (below is None or value < below)
        )

    return within


def _bound(schema: JsonObject, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) else None


def _sized(least: float | None, most: float | None) -> Accepts:
    if least is most is None:
        return _anything

    def fits(value: str | list[Json]) -> bool:
        size = len(value)
        return (least is None or size >= least) and (most is None or size <= most)

    return fits


def _array(schema: JsonObject) -> Accepts | None:
    fits, item = (
        _sized(_bound(schema, "minItems"), _bound(schema, "maxItems")),
        accepting(schema.get("items", True)),
    )
    if item is None:
        return None
    return lambda value: fits(value) and all(map(item, value))


def _object(schema: JsonObject) -> Accepts | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    other = _nothing if others is False else accepting(others)
    if not isinstance(properties, dict) or not isinstance(required, list) or other is None:
        return None
    fields: dict[str, Accepts] = {}
    for name, field in properties.items():
        made = accepting(field)
        if made is None:
            return None
        fields[name] = made
    find, needed = fields.get, tuple(required)

    def accepts(value: dict[str, Json]) -> bool:
        for name in needed:
            if name not in value:
                return False
        return all(find(name, other)(held) for name, held in value.items())

    return accepts


def _nothing(value: object) -> bool:
    return False
