"""JSON Schema for OpenAI's strict mode, and back.

In strict mode every object is closed and every property is required. So an optional property becomes a required
one that may be null, and `without_added_nulls` removes these nulls from a call's arguments. An unsupported
constraint is moved into the description as text. The host checks arguments against its own schema. An unsupported
schema, for example with free keys or without a type, raises an error with its place. The host applies defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolDefinition

from .schemas import json_type, move_to_description, normalise_schema, remembered

MAX_DEPTH = 10
MAX_PROPERTIES = 5000
MAX_ENUM_VALUES = 1000
MAX_NAME_CHARACTERS = 120_000

_ANNOTATIONS = frozenset({"$id", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_KEPT = frozenset(
    {"type", "description", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minLength", "maxLength", "format"}
)
_STRUCTURE = frozenset(
    {"properties", "required", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs"}
)
_SHAPES = frozenset({"patternProperties", "prefixItems", "definitions"})
"""Keywords about parts of a value. They can't be replaced by text."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


class NotStrict(ValueError):
    """The schema can't be made strict. The text has the place and reason."""


class StrictSchema(msgspec.Struct, frozen=True):
    schema: JsonObject
    adds_nulls: bool
    """Whether optional properties have become nullable."""


def to_strict(schema: JsonObject) -> StrictSchema:
    """Rewrite a schema with an object at its root. Pure. Raises NotStrict."""
    if "anyOf" in schema or "oneOf" in schema or schema.get("type") != "object" or "properties" not in schema:
        raise NotStrict("$: the root must be an object with properties")
    schema = normalise_schema(schema)
    writer = _Writer(schema)
    strict = writer.write(schema, "$", 0)
    definitions = _mapping(schema.get("$defs"))
    if definitions:
        strict["$defs"] = {
            name: writer.write(_schema(value, f"$.$defs.{name}"), f"$.$defs.{name}", 0)
            for name, value in definitions.items()
        }
    writer.check_size()
    return StrictSchema(strict, writer.adds_nulls)


class _Writer:
    def __init__(self, root: JsonObject) -> None:
        self.adds_nulls = False
        self._root = root
        self._properties = 0
        self._enum_values = 0
        self._characters = 0

    def write(self, schema: JsonObject, path: str, depth: int) -> JsonObject:
        if depth > MAX_DEPTH:
            raise NotStrict(f"{path}: more than {MAX_DEPTH} levels")
        schema = move_to_description(schema, _is_for_words)
        for key in schema:
            if key in _SHAPES:
                raise NotStrict(f"{path}: strict mode has no {key!r}")
        if "$ref" in schema:
            return _reference(schema, path)
        if "allOf" in schema:
            return self.write(_inlined(schema, path), path, depth)
        strict: JsonObject = {key: value for key, value in schema.items() if key in _KEPT}
        alternatives = schema.get("anyOf", schema.get("oneOf"))
        if alternatives is not None:
            return self._write_alternatives(schema, strict, alternatives, path, depth)
        self._write_enum(strict)
        kinds = _as_list(strict.get("type"))
        if not kinds or not all(isinstance(name, str) for name in kinds):
            raise NotStrict(f"{path}: strict mode needs a type")
        if "array" in kinds:
            items = schema.get("items")
            strict["items"] = self.write(_schema(items, f"{path}.items"), f"{path}.items", depth + 1)
        if "object" in kinds:
            self._write_object(schema, strict, path, depth)
        return strict

    def _write_alternatives(
        self, schema: JsonObject, strict: JsonObject, alternatives: Json, path: str, depth: int
    ) -> JsonObject:
        if not isinstance(alternatives, list) or ("anyOf" in schema and "oneOf" in schema):
            raise NotStrict(f"{path}: anyOf and oneOf must be one list of schemas")
        if "properties" in schema or "items" in schema or set(strict) - {"description"}:
            raise NotStrict(f"{path}: anyOf with other constraints")
        strict["anyOf"] = [
            self.write(_schema(value, f"{path}.anyOf[{index}]"), f"{path}.anyOf[{index}]", depth + 1)
            for index, value in enumerate(alternatives)
        ]
        return strict

    def _write_enum(self, strict: JsonObject) -> None:
        values = strict.get("enum", [strict["const"]] if "const" in strict else None)
        if isinstance(values, list):
            self._enum_values += len(values)
            self._characters += sum(len(value) for value in values if isinstance(value, str))
            if "type" not in strict:
                kinds = sorted({json_type(value) for value in values})
                strict["type"] = kinds[0] if len(kinds) == 1 else list[Json](kinds)

    def _write_object(self, schema: JsonObject, strict: JsonObject, path: str, depth: int) -> None:
        closed = schema.get("additionalProperties", None if "properties" in schema else True)
        if closed not in (None, False):
            raise NotStrict(f"{path}: an object with free keys")
        required = _required(schema)
        properties: JsonObject = {}
        for name, value in _mapping(schema.get("properties")).items():
            property_path = f"{path}.properties.{name}"
            original = _schema(value, property_path)
            written = self.write(original, property_path, depth + 1)
            if name not in required and not _takes_null(original, self._root):
                written = _nullable(written)
                self.adds_nulls = True
            properties[name] = written
            self._properties += 1
            self._characters += len(name)
        strict["properties"] = properties
        strict["required"] = list[Json](properties)
        strict["additionalProperties"] = False

    def check_size(self) -> None:
        if self._properties > MAX_PROPERTIES:
            raise NotStrict(f"$: more than {MAX_PROPERTIES} properties")
        if self._enum_values > MAX_ENUM_VALUES:
            raise NotStrict(f"$: more than {MAX_ENUM_VALUES} enum values")
        if self._characters > MAX_NAME_CHARACTERS:
            raise NotStrict(f"$: names and enum values of more than {MAX_NAME_CHARACTERS} characters")


def _is_for_words(key: str, value: Json) -> bool:
    """Whether strict mode rejects a keyword that can be replaced by text."""
    match key, value:
        case "format", _:
            return value not in _FORMATS
        case "pattern", str():
            return "(?" in value.replace("(?:", "")  # look-around
        case _:
            return key not in _KEPT and key not in _STRUCTURE and key not in _SHAPES and key not in _ANNOTATIONS


def _reference(schema: JsonObject, path: str) -> JsonObject:
    target = schema["$ref"]
    if not isinstance(target, str):
        raise NotStrict(f"{path}: $ref must be a string")
    if target != "#" and not (target.startswith("#/$defs/") and target.count("/") == 2):
        raise NotStrict(f"{path}: strict mode can't follow {target!r}")
    beside = {key for key in schema if key not in _ANNOTATIONS} - {"$ref", "description", "$defs"}
    if beside:
        raise NotStrict(f"{path}: $ref with {', '.join(sorted(beside))}")
    if "description" in schema:  # strict mode allows no keywords next to $ref
        return {"description": schema["description"], "anyOf": [{"$ref": target}]}
    return {"$ref": target}


def _inlined(schema: JsonObject, path: str) -> JsonObject:
    """Merge the only alternative of a schema's allOf."""
    parts = schema["allOf"]
    if not isinstance(parts, list) or len(parts) != 1:
        raise NotStrict(f"{path}: strict mode has no allOf")
    rest = {key: value for key, value in schema.items() if key != "allOf"}
    part = _schema(parts[0], f"{path}.allOf[0]")
    clash = {key for key in rest.keys() & part.keys() if key not in _ANNOTATIONS and key != "description"}
    if clash:
        raise NotStrict(f"{path}: allOf repeats {', '.join(sorted(clash))}")
    return {**part, **rest}


def _nullable(schema: JsonObject) -> JsonObject:
    """A strict schema that also allows null."""
    kind = schema.get("type")
    if set(schema) == {"anyOf"} or set(schema) == {"anyOf", "description"}:
        alternatives = schema["anyOf"]
        assert isinstance(alternatives, list)
        return {**schema, "anyOf": [*alternatives, {"type": "null"}]}
    if isinstance(kind, str) and kind not in ("object", "array") and "const" not in schema:
        widened: JsonObject = {**schema, "type": [kind, "null"]}
        if isinstance(values := schema.get("enum"), list):
            widened["enum"] = [*values, None]
        return widened
    described: JsonObject = {"description": schema["description"]} if "description" in schema else {}
    return {**described, "anyOf": [{k: v for k, v in schema.items() if k != "description"}, {"type": "null"}]}


def _takes_null(schema: JsonObject, root: JsonObject, budget: int = MAX_DEPTH) -> bool:
    if "$ref" in schema:
        return budget > 0 and _takes_null(_resolve(schema, root), root, budget - 1)
    kind = schema.get("type")
    if "enum" in schema:
        return isinstance(values := schema["enum"], list) and None in values
    if "const" in schema:
        return schema["const"] is None
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    return any(
        isinstance(part, dict) and _takes_null(part, root, budget)
        for key in ("anyOf", "oneOf", "allOf")
        if isinstance(parts := schema.get(key), list)
        for part in parts
    )


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _schema(value: Json, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise NotStrict(f"{path}: strict mode needs a schema with a type")
    return value


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _required(schema: JsonObject) -> list[Json]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


# --- Removal of added nulls ---


def without_added_nulls(value: JsonObject, schema: JsonObject) -> JsonObject:
    """Arguments without the nulls for optional properties. Pure."""
    cleaned = _clean(value, schema, schema, MAX_DEPTH * 4)
    assert isinstance(cleaned, dict)
    return cleaned


def _clean(value: Json, schema: Json, root: JsonObject, budget: int) -> Json:
    if budget == 0 or not isinstance(schema, dict) or not isinstance(value, dict | list):
        return value
    for variant in _variants(schema, root, budget):
        cleaned = _clean_variant(value, variant, root, budget)
        if _fits(cleaned, variant, root, budget):
            return cleaned
    return value


def _clean_variant(value: JsonObject | list[Json], schema: JsonObject, root: JsonObject, budget: int) -> Json:
    if isinstance(value, list):
        return [_clean(inner, schema.get("items"), root, budget - 1) for inner in value]
    properties, required = _mapping(schema.get("properties")), _required(schema)
    cleaned: JsonObject = {}
    for name, inner in value.items():
        original = properties.get(name)
        added = inner is None and name not in required and isinstance(original, dict)
        if not added or _takes_null(_mapping(original), root):  # otherwise null means a missing property
            cleaned[name] = _clean(inner, original, root, budget - 1)
    return cleaned


def _variants(schema: JsonObject, root: JsonObject, budget: int) -> Iterator[JsonObject]:
    """The possible schemas of a value, with references and alternatives resolved."""
    if budget == 0:
        return
    target = _resolve(schema, root)
    if target is not schema:
        yield from _variants(target, root, budget - 1)
        return
    alternatives = schema.get("anyOf", schema.get("oneOf", schema.get("allOf")))
    if isinstance(alternatives, list):
        for alternative in alternatives:
            if isinstance(alternative, dict):
                yield from _variants(alternative, root, budget - 1)
    else:
        yield schema


def _resolve(schema: JsonObject, root: JsonObject) -> JsonObject:
    match schema.get("$ref"):
        case "#":
            return root
        case str() as target:
            group, _, name = target.removeprefix("#/").partition("/")
            found = _mapping(root.get(group)).get(name)
            return found if isinstance(found, dict) else {}
        case _:
            return schema


def _fits(value: Json, schema: JsonObject, root: JsonObject, budget: int) -> bool:
    """Whether a value has the shape of a schema, enough to distinguish alternatives."""
    if budget == 0:
        return True
    if "type" in schema and not _is_of(value, _as_list(schema["type"])):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if isinstance(values := schema.get("enum"), list) and value not in values:
        return False
    if isinstance(value, dict):
        properties = _mapping(schema.get("properties"))
        return (
            all(name in value for name in _required(schema) if isinstance(name, str))
            and all(name in properties for name in value)
            and all(_fits_any(inner, properties[name], root, budget - 1) for name, inner in value.items())
        )
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        return all(_fits_any(inner, items, root, budget - 1) for inner in value)
    return True


def _fits_any(value: Json, schema: Json, root: JsonObject, budget: int) -> bool:
    if not isinstance(schema, Mapping) or budget == 0:
        return True
    return any(_fits(value, variant, root, budget) for variant in _variants(schema, root, budget))


def _is_of(value: Json, kinds: list[Json]) -> bool:
    actual = json_type(value)
    return (
        actual in kinds
        or (actual == "integer" and "number" in kinds)
        or (isinstance(value, float) and value.is_integer() and "integer" in kinds)
    )


# --- Tools and replies in strict mode ---


def strict_tool(tool: ToolDefinition, *, by_default: bool) -> StrictSchema | str | None:
    """The strict schema of a tool. None if strict mode is off, and a text with the reason if it is impossible."""
    if not (by_default if tool.strict is None else tool.strict):
        return None
    strict = _strict(tool.input_schema)
    if isinstance(strict, str) and tool.strict:
        raise InvalidRequestError(f"tool {tool.name!r} can't be strict: {strict}. Define it with strict=False")
    return strict


def strict_reply(schema: JsonObject) -> JsonObject:
    """The fields `schema` and `strict` of a reply's form.

    Strict mode is used only if the schema is strict already, because added nulls could not be removed from a text.
    """
    strict = _strict(schema)
    if isinstance(strict, StrictSchema) and not strict.adds_nulls:
        return {"schema": strict.schema, "strict": True}
    return {"schema": schema, "strict": False}


def input_cleaner(
    tools: Iterable[ToolDefinition], *, by_default: bool
) -> Callable[[str, JsonObject], JsonObject] | None:
    """Return a function that removes added nulls from a call's arguments. None if no tool has added nulls."""
    schemas: dict[str, JsonObject] = {}
    for tool in [tool for tool in tools if (by_default if tool.strict is None else tool.strict)]:
        strict = _strict(tool.input_schema)
        if isinstance(strict, StrictSchema) and strict.adds_nulls:
            schemas[tool.name] = tool.input_schema
    if not schemas:
        return None

    def clean(name: str, arguments: JsonObject) -> JsonObject:
        return without_added_nulls(arguments, schemas[name]) if name in schemas else arguments

    return clean


@remembered
def _strict(schema: JsonObject) -> StrictSchema | str:
    """The strict schema, or the reason why there is none."""
    try:
        return to_strict(schema)
    except NotStrict as reason:
        return str(reason)
