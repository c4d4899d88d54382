"""A JSON Schema as Moonshot takes it. This module is pure.

Moonshot refuses a schema in which a property has no type, and one with a `type` beside `anyOf`
(https://github.com/MoonshotAI/walle/blob/main/docs/mfjs-spec.md and reports such as vercel/ai#18921). So each
alternative gets the type of its parent, and each property without a type gets the type that its keywords
imply. `oneOf` is written as `anyOf`, and `allOf` is merged. A schema for anything becomes a union of all types.
"""

from __future__ import annotations

from callboard.bus.values.json import Json, JsonObject

from .memory import remembered
from .sanitizer import map_subschemas, merge_all_of, normalise_schema, without_booleans

_ANYTHING = ("string", "number", "boolean", "object", "array", "null")
"""The types of JSON. An integer is a number."""

_IMPLIED = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    ("string", ("minLength", "maxLength", "pattern", "format")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


@remembered
def moonshot_schema(schema: JsonObject) -> JsonObject:
    """The schema to send. It belongs to all callers, so it must not be changed."""
    return _typed(without_booleans(normalise_schema(schema)))


def _typed(schema: JsonObject) -> JsonObject:
    if "allOf" in schema:
        schema = merge_all_of(schema)
    alternatives = [*_parts(schema.get("anyOf")), *_parts(schema.get("oneOf"))]
    if alternatives:
        kept = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf", "type")}
        schema = {**kept, "anyOf": _distributed(alternatives, schema.get("type"))}
    elif "type" not in schema and "$ref" not in schema:
        schema = _with_type(schema)
    if isinstance(items := schema.get("items"), list):  # a schema for each place
        schema = {**{name: value for name, value in schema.items() if name != "items"}, "prefixItems": items}
    return map_subschemas(schema, _typed)


def _distributed(alternatives: list[JsonObject], kind: Json) -> list[Json]:
    """The alternatives, each with the parent's type if it has none of its own."""
    return [
        part
        if kind is None or not {"type", "$ref", "anyOf", "oneOf", "enum", "const"}.isdisjoint(part)
        else {"type": kind, **part}
        for part in alternatives
    ]


def _with_type(schema: JsonObject) -> JsonObject:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        kinds = list(dict.fromkeys("null" if value is None else _TYPES[type(value)] for value in values))
        return {"type": kinds[0] if len(kinds) == 1 else list[Json](kinds), **schema}
    for kind, keywords in _IMPLIED:
        if any(name in schema for name in keywords):
            return {"type": kind, **schema}
    return {**schema, "anyOf": [{"type": kind} for kind in _ANYTHING]}


def _parts(value: Json) -> list[JsonObject]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
