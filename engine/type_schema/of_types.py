"""JSON Schemas of Python types."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.schema_sanitizer import map_subschemas
from bus.json_types import Json, JsonObject

from .definitions import inline_root, lift_definitions
from .errors import SchemaError
from .pydantic_types import is_model

_ADVICE = "use a dataclass, TypedDict, msgspec Struct, pydantic model or plain hints, or pass a JSON Schema"

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})

_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "enum"}
    | {"const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$defs", "definitions", "$schema"}
    | {"description", "title", "format", "minProperties", "maxProperties", "propertyNames", "$id", "default"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "minLength"}
    | {"maxLength", "minItems", "maxItems", "uniqueItems", "contains", "dependentSchemas"}
)


def json_schema(of: object) -> JsonObject:
    """The JSON Schema of a type, or a JSON Schema as it was given.

    of: a JSON Schema as a mapping (looked at, not validated; passed through), or a type: msgspec Struct,
    dataclass, TypedDict, attrs or pydantic class, or a hint made of such and of plain types. Descriptions come
    from a class's docstring and from ``Annotated[..., msgspec.Meta(description=...)]``; a class's name is the
    ``title``.

    The root is written out, all else that has a name stands in ``$defs``. Raises SchemaError.
    """
    if isinstance(of, Mapping):
        return _given(of)
    if is_model(of):
        return _tidied(of.model_json_schema())
    try:
        schema, definitions = _of_hint(of)
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(f"no JSON Schema says {_named(of)}: {_reason(error)}; {_ADVICE}") from error
    return _tidied({**schema, "$defs": definitions} if definitions else schema)


def _of_hint(of: object) -> tuple[JsonObject, JsonObject]:
    from .moments import Moments  # it brings msgspec.inspect, which is not needed before

    moments = Moments(of)
    (schema, *references), definitions = msgspec.json.schema_components(
        (of, *moments.classes), schema_hook=_custom, ref_template="#/$defs/{name}"
    )
    moments.add_formats(schema, references, definitions)
    return schema, definitions


def _custom(of: type) -> JsonObject:
    """What msgspec asks of a type that it doesn't know itself."""
    if is_model(of):
        return of.model_json_schema()
    if of is object:
        return {"$comment": "any value"}  # msgspec takes an empty schema for none; `_untitled` takes this out
    raise SchemaError(f"{_named(of)} has no form in JSON")


def _tidied(schema: JsonObject) -> JsonObject:
    return inline_root(lift_definitions(_untitled(schema)))


def _untitled(schema: JsonObject) -> JsonObject:
    """A schema without what generators add and no model needs: titles that repeat a name, pointers to tags."""
    kept = {name: value for name, value in schema.items() if name not in ("discriminator", "$comment")}
    if isinstance(properties := kept.get("properties"), dict):
        kept["properties"] = {name: _without_own_name(name, value) for name, value in properties.items()}
    return map_subschemas(kept, _untitled)


def _without_own_name(name: str, schema: Json) -> Json:
    if not isinstance(schema, dict) or not isinstance(title := schema.get("title"), str):
        return schema
    if title.replace(" ", "").lower() != name.replace("_", "").lower():
        return schema
    return {keyword: value for keyword, value in schema.items() if keyword != "title"}


def _given(schema: Mapping[object, object]) -> JsonObject:
    """A schema that the caller wrote, looked at just enough to catch what is none."""
    if schema and not _KEYWORDS & schema.keys():
        names = ", ".join(repr(name) for name in list(schema)[:3])
        raise SchemaError(
            f"a mapping with {names} is no JSON Schema; did you mean "
            '{"type": "object", "properties": {...}, "required": [...]}?'
        )
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list | tuple) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise SchemaError(f"{kind!r} is no type of JSON Schema; the types are {', '.join(sorted(_TYPES))}")
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(schema)), type=JsonObject)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a JSON Schema consists of JSON values only: {error}") from error


def _named(of: object) -> str:
    return of.__qualname__ if isinstance(of, type) else str(of)


def _reason(error: Exception) -> str:
    match error:
        case SchemaError():
            return str(error)
        case RecursionError():
            return "it contains itself without end"
        case NameError():
            return f"{error} (names in hints must be there when the schema is made)"
        case _:
            return str(error).partition("\n\ntype ")[0] if "schema_hook" not in str(error) else "unknown type"
