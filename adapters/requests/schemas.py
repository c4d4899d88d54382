"""The common form of a JSON Schema, and constraints as text.

`normalise_schema` changes the form of a schema, never its meaning. `move_to_description` removes the keywords
that a target lacks, and puts them into the description as text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from callboard.bus.values.base import Json, JsonObject

from .content import as_text

_NOISE = frozenset({"$schema", "$anchor", "$comment", "$vocabulary", "def"})
"""Keywords that mean nothing to a model, including leftovers of schema generators. Keywords that start with ~ are
removed, too.
"""

_NAMED = ("properties", "patternProperties", "$defs", "dependentSchemas")
"""Keywords whose value is an object that contains schemas by name."""

_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_ONE_OR_NONE = ("additionalItems", "unevaluatedItems", "unevaluatedProperties")
_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")

_WORDS = {
    "format": "format: {}",
    "pattern": "matching {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
    "const": "always {}",
    "examples": "for example {}",
    "not": "nothing that matches {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of media type {}",
}


def normalise_schema(schema: JsonObject) -> JsonObject:
    """The same schema in the common form. Pure. Schemas inside definitions are included.

    ``definitions`` at the root become ``$defs``, and references are changed to match. Properties may have any
    name.
    """
    written = _normalised(schema)
    definitions = written.pop("definitions", None)
    if isinstance(definitions, dict):
        local = written.get("$defs")
        renamed: JsonObject = {name: _each(inner, _normalised) for name, inner in definitions.items()}
        written["$defs"] = {**renamed, **(local if isinstance(local, dict) else {})}
    return written


def _normalised(schema: JsonObject) -> JsonObject:
    keywords = {name: value for name, value in schema.items() if name not in _NOISE and not name.startswith("~")}
    reference = keywords.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/definitions/"):
        keywords["$ref"] = "#/$defs/" + reference.removeprefix("#/definitions/")
    return map_subschemas(keywords, _normalised)


def map_subschemas(schema: JsonObject, change: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """Copy a schema, and apply `change` to its direct subschemas."""
    changed = dict(schema)
    for name in _NAMED:
        if isinstance(named := changed.get(name), dict):
            changed[name] = {key: _each(inner, change) for key, inner in named.items()}
    for name in (*_ONE, *_ONE_OR_NONE):
        if name in changed:
            changed[name] = _each(changed[name], change)
    for name in _SEVERAL:
        if isinstance(several := changed.get(name), list):
            changed[name] = [_each(inner, change) for inner in several]
    return changed


def without_booleans(schema: JsonObject) -> JsonObject:
    """A schema for targets that need an object for every schema. Pure.

    True, which allows anything, becomes an empty schema. False, which allows nothing, is removed.
    """
    changed = map_subschemas(schema, without_booleans)
    for name in _NAMED:
        if isinstance(named := changed.get(name), dict):
            changed[name] = {key: _as_object(inner) for key, inner in named.items() if inner is not False}
    for name in ("items", "contains", "propertyNames"):
        if isinstance(changed.get(name), bool):
            allows_any = changed.pop(name)
            changed |= {name: {}} if allows_any else {}
    for name in _SEVERAL:
        if isinstance(several := changed.get(name), list):
            changed[name] = [_as_object(inner) for inner in several if inner is not False]
    return changed


def _as_object(value: Json) -> Json:
    return {} if value is True else value


def _each(value: Json, change: Callable[[JsonObject], JsonObject]) -> Json:
    return change(value) if isinstance(value, dict) else value


def move_to_description(schema: JsonObject, refused: Callable[[str, Json], bool]) -> JsonObject:
    """Remove the keywords that the target refuses, and add them as text to the schema's description. Pure.

    Inner schemas are unchanged.
    """
    moved = {name: value for name, value in schema.items() if name != "description" and refused(name, value)}
    if not moved:
        return schema
    keywords = {name: value for name, value in schema.items() if name not in moved}
    return describe(keywords, describe_constraints(moved))


def describe_constraints(constraints: JsonObject) -> Iterator[str]:
    """Constraints as text, a few words each. A constraint without effect is dropped."""
    for name, value in constraints.items():
        if value is None or value is False:
            continue
        if name == "uniqueItems":
            yield "unique items"
        else:
            yield _WORDS.get(name, f"{name}: {{}}").replace("{}", as_text(value))


def describe(schema: JsonObject, words: Iterable[str]) -> JsonObject:
    """A schema with text added to the end of its description. Pure."""
    added = "; ".join(words)
    if not added:
        return schema
    description = schema.get("description")
    return {
        **schema,
        "description": f"{description} ({added})" if isinstance(description, str) and description else added,
    }


def merge_all_of(schema: JsonObject) -> JsonObject:
    """Merge the allOf of a schema. Contradictory parts stay in allOf, and are later written as text."""
    parts = schema["allOf"]
    merged = {name: value for name, value in schema.items() if name != "allOf"}
    unmerged: list[Json] = []
    for part in parts if isinstance(parts, list) else [parts]:
        inner = merge_all_of(part) if isinstance(part, dict) and "allOf" in part else part
        if not isinstance(inner, dict) or not _join(merged, inner):
            unmerged.append(part)
    return describe(merged, describe_constraints({"allOf": unmerged})) if unmerged else merged


def _join(merged: JsonObject, part: JsonObject) -> bool:
    """Add a schema's constraints. Return False without a change if they contradict the earlier constraints."""
    joined: JsonObject = {}
    for name, value in part.items():
        before = merged.get(name)
        if name not in merged or before == value:
            joined[name] = value
        elif name == "required" and isinstance(before, list) and isinstance(value, list):
            joined[name] = [*before, *(entry for entry in value if entry not in before)]
        elif (
            name in ("properties", "$defs", "definitions") and isinstance(before, dict) and isinstance(value, dict)
        ):
            if any(before[key] != value[key] for key in before.keys() & value.keys()):
                return False
            joined[name] = {**before, **value}
        elif name in ("title", "description"):
            pass  # keep the outer constraint, which is more specific
        else:
            return False
    merged.update(joined)
    return True


def instruction(schema: JsonObject, *, with_tools: bool) -> str:
    """The instruction for a model that does not support this schema, or supports no schema."""
    when = "When you answer and call no tool, answer" if with_tools else "Answer"
    text = msgspec.json.encode(schema).decode()
    return (
        f"{when} with one JSON object only, without a code fence or any other text. "
        f"It holds the answer, not the schema, and follows this JSON Schema: {text}"
    )


_T = TypeVar("_T")


def remembered(work: Callable[[JsonObject], _T]) -> Callable[[JsonObject], _T]:
    """Decorator: cache the latest 256 results of a function of a schema.

    Every call passes equal schemas again. The result for a schema that is not JSON is not cached. A result is
    shared, so it must not be changed.
    """

    @functools.lru_cache(maxsize=256)
    def by_text(schema: bytes) -> _T:
        return work(msgspec.json.decode(schema, type=JsonObject))

    @functools.wraps(work)
    def remembering(schema: JsonObject) -> _T:
        try:
            text = msgspec.json.encode(schema)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return work(schema)
        return by_text(text)

    return remembering


# --- Moonshot's form ---

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
    """Convert a schema to Moonshot's form. The result is shared, so it must not be changed."""
    return _typed(without_booleans(normalise_schema(schema)))


def _typed(schema: JsonObject) -> JsonObject:
    if "allOf" in schema:
        schema = merge_all_of(schema)
    alternatives = [*_parts(schema.get("anyOf")), *_parts(schema.get("oneOf"))]
    if alternatives:
        keywords = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf", "type")}
        schema = {**keywords, "anyOf": _distributed(alternatives, schema.get("type"))}
    elif "type" not in schema and "$ref" not in schema:
        schema = _with_type(schema)
    if isinstance(items := schema.get("items"), list):  # a schema for each position
        schema = {**{name: value for name, value in schema.items() if name != "items"}, "prefixItems": items}
    return map_subschemas(schema, _typed)


def _distributed(alternatives: list[JsonObject], kind: Json) -> list[Json]:
    """Give each alternative the parent's type if it has none."""
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
