"""The schemas of tools: one plain object at the root, and strict mode. Pure.

Anthropic refuses `anyOf`, `oneOf` and `allOf` at the root, OpenAI also `enum` and `not`. Both require the type
`object`. `fold_root` merges the alternatives into one object with all their properties. Constants become one
`enum`. A property is required if all alternatives require it. The description lists the alternatives. A folded
schema allows more than the original, so the caller checks arguments against the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from callboard.bus.errors import InvalidRequestError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolDefinition

from .content import encode_json
from .schemas import describe, describe_constraints, normalise_schema, remembered
from .strict_schemas import NotStrict, StrictSchema, to_strict, without_added_nulls

UNIONS = ("anyOf", "oneOf", "allOf")
"""The keywords that combine schemas."""

_OTHERS = ("enum", "not")
"""More keywords that are refused at the root. They are moved to the description as text."""

_REFUSED = frozenset((*UNIONS, *_OTHERS, "$ref"))

_DEFINITIONS = "#/$defs/"
_MOST_REFERENCES = 16
"""The longest chain of references and nested unions that is followed. A longer chain is probably circular."""


class FoldedSchema(msgspec.Struct, frozen=True):
    schema: JsonObject
    """The schema, which is shared and must not be changed."""
    folded: tuple[str, ...]
    """The keywords that were folded; empty if the schema's meaning did not change."""

    def warnings(self, what: str) -> list[CallWarning]:
        if not self.folded:
            return []
        names = " and ".join(self.folded)
        message = (
            f"the schema of {what} has {names} at its root, which the server rejects. The alternatives "
            f"were merged into one object."
        )
        return [CallWarning(WarningCode.SCHEMA_FOLDED, message)]


def fold_root(schema: JsonObject) -> FoldedSchema:
    """Fold the unions at the root of a schema into one object. A plain object is returned unchanged."""
    if schema.get("type") == "object" and _REFUSED.isdisjoint(schema):
        return FoldedSchema(schema, ())
    return _fold(schema)


@remembered
def _fold(schema: JsonObject) -> FoldedSchema:
    written = normalise_schema(schema)
    definitions = written.get("$defs")
    by_name = definitions if isinstance(definitions, dict) else {}
    start = _resolved({name: value for name, value in written.items() if name != "$defs"}, by_name, 0)
    names = tuple(name for name in (*UNIONS, *_OTHERS) if name in start)
    found = _folded(start, by_name, 0)
    if found is None:  # no alternative is an object, but arguments must be one
        found = describe({"type": "object"}, describe_constraints({name: start[name] for name in names}))
    root: JsonObject = {**found, "type": "object"}
    if by_name:
        root["$defs"] = definitions
    return FoldedSchema(root, names)


def _resolved(schema: JsonObject, definitions: Mapping[str, Json], depth: int) -> JsonObject:
    """Replace the reference in a schema by its definition."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or depth > _MOST_REFERENCES:
        return schema
    name = reference.removeprefix("#/definitions/").removeprefix(_DEFINITIONS)
    target = definitions.get(name)
    beside = {name: value for name, value in schema.items() if name not in ("$ref", "$defs", "definitions")}
    return _resolved({**target, **beside}, definitions, depth + 1) if isinstance(target, dict) else beside


def _folded(schema: JsonObject, definitions: Mapping[str, Json], depth: int) -> JsonObject | None:
    """One object schema for an object schema with unions. None if no object fits."""
    schema = _resolved(schema, definitions, 0)
    kind = schema.get("type", "object")
    if depth > _MOST_REFERENCES or (kind != "object" and not (isinstance(kind, list) and "object" in kind)):
        return None
    keywords = {name: value for name, value in schema.items() if name not in (*UNIONS, *_OTHERS)}
    keywords["type"] = "object"
    described: JsonObject = {name: schema[name] for name in _OTHERS if name in schema}
    for part in _schemas(schema.get("allOf")):
        inner = _folded(part, definitions, depth + 1)
        if inner is not None:
            keywords = _both(keywords, inner)
    for name in ("anyOf", "oneOf"):
        parts = _schemas(schema.get(name))
        if not parts:
            continue
        found = (_folded(part, definitions, depth + 1) for part in parts)
        alternatives = [part for part in found if part is not None]
        if not alternatives:
            if "properties" not in keywords:
                return None
            continue
        keywords = _both(keywords, _any_of(alternatives))
        keywords = describe(keywords, _forms(name, alternatives))
    return describe(keywords, describe_constraints(described))


def _both(one: JsonObject, other: JsonObject) -> JsonObject:
    """Combine two object schemas: both sets of constraints apply."""
    merged: JsonObject = {**other, **one}
    first, second = _properties(one), _properties(other)
    if first or second:
        merged["properties"] = {**first, **{name: _joint(first.get(name), second[name]) for name in second}}
    required = dict.fromkeys((*_names(one), *_names(other)))
    if required:
        merged["required"] = list(required)
    return merged


def _joint(one: Json, other: Json) -> Json:
    """Merge two schemas of one property. The first takes precedence."""
    if not isinstance(one, dict) or not one:
        return one if one is False else other
    if not isinstance(other, dict):
        return one
    if _values(one) is None and _values(other) is not None:
        return {**one, **other}
    return {**other, **one}


def _any_of(parts: list[JsonObject]) -> JsonObject:
    """Combine object schemas. The result allows every value that one of them allows."""
    merged: JsonObject = {"type": "object"}
    forms: dict[str, list[Json]] = {}
    for part in parts:
        for name, schema in _properties(part).items():
            variants = forms.setdefault(name, [])
            if schema not in variants:
                variants.append(schema)
    if forms:
        merged["properties"] = {name: _any(several) for name, several in forms.items()}
    required = [name for name in _names(parts[0]) if all(name in _names(part) for part in parts)]
    if required:
        merged["required"] = list[Json](required)
    if all(part.get("additionalProperties") is False for part in parts):
        merged["additionalProperties"] = False
    return merged


def _any(schemas: list[Json]) -> Json:
    """Combine schemas. The result allows every value that one of them allows."""
    if len(schemas) == 1:
        return schemas[0]
    values: list[Json] = []
    for schema in schemas:
        several = _values(schema)
        if several is None:
            break
        values += [value for value in several if value not in values]
    else:
        kinds = [schema.get("type") for schema in schemas if isinstance(schema, dict)]
        typed: JsonObject = (
            {"type": kinds[0]} if kinds[0] is not None and kinds.count(kinds[0]) == len(kinds) else {}
        )
        description = next((s["description"] for s in schemas if isinstance(s, dict) and "description" in s), None)
        return {**typed, "enum": values, **({} if description is None else {"description": description})}
    if any(schema is True or schema == {} for schema in schemas):
        return {}
    return {"anyOf": schemas}


def _values(schema: Json) -> list[Json] | None:
    """The values that a constant or an enum allows. None for any other schema."""
    if isinstance(schema, dict):
        if "const" in schema:
            return [schema["const"]]
        if isinstance(values := schema.get("enum"), list):
            return values
    return None


def _forms(keyword: str, parts: list[JsonObject]) -> Iterable[str]:
    """The alternatives as text: the properties of each, the required ones first."""
    described = []
    for part in parts:
        required = _names(part)
        words = [_name_and_value(name, _properties(part).get(name)) for name in required]
        optional = [name for name in _properties(part) if name not in required]
        if optional:
            words.append(f"optionally {', '.join(optional)}")
        if words:
            described.append(" with ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0])
    described = list(dict.fromkeys(described))
    if len(described) > 1:
        how = "exactly one" if keyword == "oneOf" else "at least one"
        yield f"{how} of these forms: {' | '.join(described)}"


def _name_and_value(name: str, schema: Json) -> str:
    return f"{name}={schema['const']}" if isinstance(schema, dict) and "const" in schema else name


def _properties(schema: JsonObject) -> JsonObject:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _names(schema: JsonObject) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _schemas(value: Json) -> list[JsonObject]:
    """The schemas of a list. True becomes an empty schema, and False is removed."""
    parts = value if isinstance(value, list) else []
    return [part if isinstance(part, dict) else {} for part in parts if isinstance(part, dict) or part is True]


# --- Strict mode ---


def encoded_tool(
    tool: ToolDefinition,
    form: str,
    write: Callable[[ToolDefinition], JsonObject],
    warnings: Sequence[CallWarning] = (),
) -> Json:
    """The JSON of a tool in one protocol, cached with the tool.

    A tool with provider fields, or with warnings, is not cached.

    Args:
        tool: The tool.
        form: The cache key. It must include everything besides the tool that the JSON depends on.
        write: A function that writes the tool and adds its warnings to `warnings`.
        warnings: The request's warnings.
    """
    encoded: Json = tool.__dict__.get(form)
    if encoded is None:
        warning_count = len(warnings)
        encoded = write(tool)
        if not tool.provider_options and len(warnings) == warning_count:
            encoded = tool.__dict__[form] = cast("Json", msgspec.Raw(encode_json(encoded)))
    return encoded


def strict_tool(tool: ToolDefinition, *, by_default: bool) -> StrictSchema | str | None:
    """The strict schema of a tool. None if strict mode is off, and a text with the reason if it is impossible."""
    if not (by_default if tool.strict is None else tool.strict):
        return None
    strict = _strict(tool.input_schema)
    if isinstance(strict, str) and tool.strict:
        raise InvalidRequestError(f"tool {tool.name!r} can't be strict: {strict}. Define it with strict=False")
    return strict


def plain_schema(tool: ToolDefinition) -> JsonObject:
    """The tool's schema without strict mode, in the common form."""
    try:
        text = msgspec.json.encode(tool.input_schema)
    # The same error is raised when the body is written.
    except (TypeError, ValueError, OverflowError, RecursionError):
        return tool.input_schema
    return _plain(text)


@functools.lru_cache(maxsize=256)
def _plain(schema: bytes) -> JsonObject:
    return normalise_schema(msgspec.json.decode(schema, type=JsonObject))


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
