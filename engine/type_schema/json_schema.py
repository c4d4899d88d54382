"""JSON Schemas of Python types."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import PurePath

import msgspec

from callboard.adapters.schemas.sanitizer import map_subschemas
from callboard.bus.values.json import Json, JsonObject

from .date_times import Moments
from .definitions import inline_root, lift_definitions
from .errors import SchemaError
from .fitting import Whole, described_by, fitted
from .pydantic_types import is_model, model_schema

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
    """The JSON Schema of a type, a hint, or a schema.

    The root is written out. Everything else that has a name stands in ``$defs``.

    Raises:
        SchemaError: There is no schema for it.
    """
    if isinstance(of, Mapping):
        return _given(of)
    try:
        text = _remembered(of)
    except SchemaError:
        raise
    except TypeError:
        text = _written(of)  # a hint that can't be hashed
    return msgspec.json.decode(text, type=JsonObject)


@functools.lru_cache(maxsize=256)
def _remembered(of: object) -> bytes:
    """The schema's text. The same types come with every call, and working one out takes milliseconds."""
    return _written(of)


def _written(of: object) -> bytes:
    try:
        if is_model(of):
            return msgspec.json.encode(_tidied(model_schema(of)))
        schema, definitions = _of_hint(of)
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(f"no JSON Schema says {_named(of)}: {_reason(error)}; {_ADVICE}") from error
    return msgspec.json.encode(_tidied({**schema, "$defs": definitions} if definitions else schema))


def _of_hint(of: object) -> tuple[JsonObject, JsonObject]:
    of = fitted(of)
    moments = Moments(of)
    (schema, *references), definitions = msgspec.json.schema_components(
        (of, *moments.classes), schema_hook=_custom, ref_template="#/$defs/{name}"
    )
    moments.add_formats(schema, references, definitions)
    return schema, definitions


def _custom(of: type) -> JsonObject:
    """What msgspec asks of a type that it doesn't know itself."""
    if is_model(of):
        return model_schema(of)
    if (described := described_by(of)) is not None:
        if isinstance(described, Whole):
            return described.schema()
        return lift_definitions({"anyOf": [json_schema(member) for member in described.members]})
    if issubclass(of, PurePath):
        return {"type": "string"}
    if of is object:
        return {"$comment": "any value"}  # msgspec takes an empty schema for none; `_without_noise` takes this out
    raise SchemaError(f"{_named(of)} has no form in JSON")


def _tidied(schema: JsonObject) -> JsonObject:
    return inline_root(lift_definitions(_without_noise(schema)))


def _without_noise(schema: JsonObject) -> JsonObject:
    """A schema without what generators add and no model needs: titles that repeat a name, pointers to tags,
    the indentation of docstrings."""
    kept = {name: value for name, value in schema.items() if name not in ("discriminator", "$comment")}
    if isinstance(description := kept.get("description"), str):
        kept["description"] = inspect.cleandoc(description)
    if isinstance(properties := kept.get("properties"), dict):
        kept["properties"] = {name: _without_own_name(name, value) for name, value in properties.items()}
    return map_subschemas(kept, _without_noise)


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
            return str(error).partition("\n")[0]
