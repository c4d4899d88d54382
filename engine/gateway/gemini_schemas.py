"""Google's schemas as JSON Schema. Pure."""

from __future__ import annotations

from callboard.adapters.requests.schemas import remembered
from callboard.bus.values.base import Json, JsonObject

from .gemini_contents import camel
from .wire import BadRequest

_CAMEL_KEYWORDS = frozenset(
    {"anyOf", "oneOf", "allOf", "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
    | {"additionalProperties", "propertyOrdering", "prefixItems"}
)
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Keywords of 64-bit integers, which JSON of protocol buffers has as text."""

_RENAMED = {"ref": "$ref", "defs": "$defs"}


def json_schema(schema: Json, where: str) -> JsonObject:
    """The JSON Schema of Google's Schema object, whose types are in capitals.

    The result is shared, because the same tools come with every request. It must not be changed.

    Raises:
        BadRequest: It is no object.
    """
    if isinstance(schema, dict):
        try:
            return _remembered(schema)
        except BadRequest:
            pass  # the text of the error needs the place
    return _converted(schema, where)


def _converted(schema: Json, where: str) -> JsonObject:
    written: JsonObject = {}
    nullable = False
    ordering: Json = None
    for name, value in camel_keywords(schema, where).items():
        match name, value:
            case "type", str():
                if value.upper() != "TYPE_UNSPECIFIED":
                    written[name] = value.lower()
            case "type", list():
                written[name] = [kind.lower() if isinstance(kind, str) else kind for kind in value]
            case "nullable", bool():
                nullable = value
            case "propertyOrdering", _:
                ordering = value
            case "example", _:
                written["examples"] = [value]
            case "format", "enum":
                pass  # the keyword `enum` says it
            case "properties" | "$defs" | "defs", dict():
                named: JsonObject = {
                    key: _converted(inner, f"{where}.{name}[{key}]") for key, inner in value.items()
                }
                written[_RENAMED.get(name, name)] = named
            case "items" | "additionalProperties", dict():
                written[name] = _converted(value, f"{where}.{name}")
            case "anyOf" | "oneOf" | "allOf" | "prefixItems", list():
                written[name] = [
                    _converted(inner, f"{where}.{name}[{number}]") for number, inner in enumerate(value)
                ]
            case _ if name in _COUNTS and isinstance(value, str) and value.isdigit():
                written[name] = int(value)
            case "ref", str():
                written["$ref"] = value
            case _:
                written[name] = value
    _put_in_order(written, ordering)
    return _or_null(written) if nullable else written


@remembered
def _remembered(schema: JsonObject) -> JsonObject:
    return _converted(schema, "schema")


def camel_keywords(schema: Json, where: str) -> JsonObject:
    """A schema with the keywords of JSON Schema in camel case."""
    if not isinstance(schema, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(schema):
        return schema
    renamed: JsonObject = {}
    for name, value in schema.items():
        known = next(iter(camel({name: None}, where)))
        renamed[known if known in _CAMEL_KEYWORDS else name] = value
    return renamed


def _put_in_order(schema: JsonObject, ordering: Json) -> None:
    properties = schema.get("properties")
    if isinstance(ordering, list) and isinstance(properties, dict):
        first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
        schema["properties"] = {**first, **properties}


def _or_null(schema: JsonObject) -> JsonObject:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and None not in values:
        schema["enum"] = [*values, None]
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        schema["type"] = [*kind, "null"]
    elif isinstance(choices := schema.get("anyOf"), list):
        schema["anyOf"] = [*choices, {"type": "null"}]
    elif "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema
